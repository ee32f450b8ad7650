"""The reports of ``flow ops``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flow_core.base.errors import JobError
from flow_core.cli.job_ops import needed_ops
from flow_core.observe.op_catalog import (
    SCHEMA,
    OpEntry,
    catalog,
    catalog_json,
    check_device_type,
    op_entry,
)
from flow_core.observe.op_tables import (
    device_tables,
    list_table,
    markdown,
    op_tables,
    run_on_devices,
)
from flow_core.observe.tables import Table
from flow_core.plugins.host import default_registry


@dataclass(frozen=True, slots=True)
class Report:
    """A report as tables and as JSON data."""

    tables: Sequence[Table]
    data: object

    def to_json(self) -> str:
        """Return the data as text."""
        return json.dumps(self.data, indent=2, allow_nan=False)


def report(name: str | None = None, device: str | None = None) -> Report:
    """Return the report of all ops, of one op, or of a device type.

    Raises:
        GraphError: no plugin registers the op.
        DeviceUnavailableError: no plugin registers the device type.
        JobError: both an op and a device type are given.
    """
    registry = default_registry()
    if name is not None and device is not None:
        raise JobError(
            "listing ops", found=f"op {name!r} and device type {device!r}", allowed="one of them"
        )
    if name is not None:
        entry = op_entry(registry, name)
        return Report(tuple(op_tables(entry)), catalog_json([entry]))
    if device is None:
        entries = catalog(registry)
        return Report((list_table(entries),), catalog_json(entries))
    check_device_type(registry, device)
    entries, needed = catalog(registry), needed_ops(registry)
    tables = tuple(device_tables(entries, device, needed))
    return Report(tables, _device_data(entries, device, needed))


def _device_data(
    entries: Sequence[OpEntry], device: str, needed: Mapping[str, str]
) -> dict[str, object]:
    ops = {
        entry.type: {
            "kernels": [kernel.name for kernel in entry.kernels.get(device, ())],
            "needed_by": needed.get(entry.type),
            "internal": entry.internal,
        }
        for entry in run_on_devices(entries)
    }
    return {"schema": SCHEMA, "device": device, "ops": ops}


def page() -> str:
    """Return the documentation page that lists all ops, as Markdown."""
    registry = default_registry()
    return markdown(catalog(registry), needed_ops(registry))
