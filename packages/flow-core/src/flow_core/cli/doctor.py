"""The diagnostics of ``flow doctor``."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import flow_core
from flow_core.base import thread_pools
from flow_core.base.config import Settings
from flow_core.base.errors import PluginError, described
from flow_core.base.thread_budget import find_budget, usable_cores
from flow_core.base.time_limit import CallTimeoutError, call_within
from flow_core.cli.plugin_commands import collect_commands
from flow_core.compiler.kept_plans import folder
from flow_core.observe.tables import Table
from flow_core.plugins.host import Host
from flow_core.plugins.records import PluginRecord
from flow_core.plugins.registry import PROVIDERS, HookCall, Registry
from flow_core.plugins.specs import Available

LIBRARIES = ("numpy", "pluggy", "ml_dtypes", "click", "rich")
FACADE = "oneflow"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of a diagnosis."""

    tables: tuple[Table, ...]  # versions, plugins, devices and cores
    problems: tuple[str, ...]  # one text per problem
    tracebacks: tuple[str, ...]  # of plugins that failed

    def to_json(self) -> str:
        """Return the rows of each table, by title, and the problems as JSON text."""
        tables = {
            table.title: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
            for table in self.tables
        }
        found = {"tables": tables, "problems": self.problems, "tracebacks": self.tracebacks}
        return json.dumps(found, indent=2)


def diagnose(settings: Settings, commands: Iterable[str] = ()) -> Diagnosis:
    """Inspect versions, plugins and devices; probe hardware.

    Args:
        settings: the process's settings; FLOW_PLUGIN_STRICT is ignored to list all plugins.
    """
    host = Host(replace(settings, plugin_strict=False))
    registry, problems = None, []
    try:
        registry = host.load()
    except PluginError as error:
        problems.append(str(error))
    failures = [record.failure for record in host.records if record.failure]
    quoted = " ".join(problems)  # core's own failures are also raised; list them once
    problems += [str(f) for f in failures if str(f.error) not in quoted]
    problems += [str(error) for record in host.records for error in record.refused]
    problems += _facade_problems()
    tables = [_versions(), _environment(os.environ), _plugins(host.records)]
    if registry is not None:
        tables += [_devices(registry), _lines(registry, settings)]
        problems += _command_problems(registry, commands)
    tables += [_cores(settings), _kept_plans(settings)]
    shown = tuple(table for table in tables if table.rows)
    return Diagnosis(shown, tuple(problems), tuple(f.traceback for f in failures))


def _versions() -> Table:
    rows = [
        ("Python", platform.python_version(), sys.executable),
        ("system", platform.system(), platform.platform()),
        ("flow-core", flow_core.__version__, _folder(flow_core.__file__)),
        *((name, _version(name), "") for name in LIBRARIES),
    ]
    return Table("Versions", ("what", "version", "where"), tuple(rows))


def _folder(file: str | None) -> str:
    return str(Path(file).parent) if file else ""


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _environment(environment: Mapping[str, str]) -> Table:
    names = sorted(n for n in environment if n.startswith(("FLOW_", "ONEFLOW_")))
    return Table("Settings", ("name", "value"), tuple((n, environment[n]) for n in names))


def _plugins(records: Sequence[PluginRecord]) -> Table:
    rows = tuple(
        (
            record.origin.plugin,
            f"{record.origin.distribution} {record.origin.version}".strip(),
            record.api,
            record.state,
            _details(record),
        )
        for record in records
    )
    return Table("Plugins", ("plugin", "distribution", "API", "state", "details"), rows)


def _details(record: PluginRecord) -> str:
    if record.failure:
        return f"{record.failure.stage}: {record.failure.reason}"
    refused = [f"{len(record.refused)} records refused"] if record.refused else []
    return ", ".join([*(f"{count} {what}" for what, count in record.counts.items()), *refused])


def _devices(registry: Registry) -> Table:
    types = [*registry.devices, *(name for name in PROVIDERS if name not in registry.devices)]
    rows = tuple(_device(registry, device_type) for device_type in types)
    return Table("Devices", ("type", "provided by", "state", "details"), rows)


def _device(registry: Registry, device_type: str) -> tuple[str, ...]:
    owner = registry.origins.get(("devices", device_type))
    provider = owner.distribution or owner.plugin if owner else PROVIDERS[device_type][0]
    try:
        found = registry.probe(device_type)
    except PluginError as error:
        return (device_type, provider, "unavailable", str(error))
    if isinstance(found, Available):
        details = f"{found.count}, {found.note}" if found.note else str(found.count)
        return (device_type, provider, "available", details)
    hint = f"; next: {found.hint}" if found.hint else ""
    return (device_type, provider, "unavailable", found.reason + hint)


def _cores(settings: Settings) -> Table:
    """Return the thread budget and thread pools; to be called after plugins have loaded pools."""
    thread_pools.find_open_mp()
    found = thread_pools.blas()
    blas = f"{found.name}, {found.get()} threads now" if found else "its threads cannot be counted"
    rows = (
        ("usable", str(len(usable_cores()))),
        ("budget", str(find_budget(settings.cores))),
        ("numpy's BLAS", blas),
        ("OpenMP", ", ".join(thread_pools.open_mp()) or "not loaded"),
    )
    return Table("Cores", ("what", "how many"), rows)


def _kept_plans(settings: Settings) -> Table:
    """Return where plans are kept on disk, and their size."""
    place = folder()
    sizes = [path.stat().st_size for path in place.glob("*.json")]
    limit = f"{settings.plan_cache:,} bytes" if settings.plan_cache else "0: no plan is kept"
    rows = (
        ("folder, which may be deleted", str(place)),
        ("files", f"{len(sizes):,}"),
        ("size", f"{sum(sizes):,} bytes"),
        ("largest size (FLOW_PLAN_CACHE)", limit),
    )
    return Table("Plans on disk", ("what", "value"), rows)


def _lines(registry: Registry, settings: Settings) -> Table:
    rows = tuple(
        (entry.origin.plugin, line)
        for entry in reversed(registry.calls["flow_doctor"])
        for line in _doctor_lines(entry, settings)
    )
    return Table("What plugins say", ("plugin", "line"), rows)


def _doctor_lines(entry: HookCall, settings: Settings) -> Iterator[str]:
    try:
        lines = call_within(settings.probe_seconds, lambda: _as_tuple(entry.call(settings)))
    except CallTimeoutError:
        yield f"flow_doctor did not return within {settings.probe_seconds} seconds"
        return
    except (Exception, SystemExit) as error:  # noqa: BLE001  # foreign code; shown to the user
        yield f"flow_doctor failed: {described(error)}"
        return
    for line in lines:
        yield line if isinstance(line, str) else f"flow_doctor returned {line!r} instead of a text"


def _as_tuple(lines: Iterable[object] | None) -> tuple[object, ...]:
    return (lines,) if isinstance(lines, str) else tuple(lines or ())


def _command_problems(registry: Registry, commands: Iterable[str]) -> list[str]:
    try:
        return [str(failure) for failure in collect_commands(registry.commands, commands)[1]]
    except PluginError as error:
        return [str(error)]


def _facade_problems() -> Iterator[str]:
    """Yield a problem if ``import oneflow`` does not find flow-core's own facade."""
    for name in sorted({n for n in _owners(FACADE) if n.lower().replace("_", "-") != "flow-core"}):
        yield (
            f"distribution {name} {_version(name)} also has a top-level {FACADE!r}: the two "
            f"overwrite each other's files; next: uv pip uninstall {name}, then "
            "uv pip install --reinstall flow-core"
        )
    own = Path(flow_core.__file__).parent.parent / FACADE
    spec = importlib.util.find_spec(FACADE)
    if spec is None or spec.origin is None:
        yield f"import {FACADE} finds nothing; flow-core's own should be at {own}"
    elif Path(_folder(spec.origin)) != own:
        yield f"import {FACADE} finds {spec.origin}, not flow-core's own at {own}"


def _owners(package: str) -> Sequence[str]:
    return metadata.packages_distributions().get(package, [])


def settings_table() -> Table:
    """Return the attributes of a function config, and their effects."""
    from flow_core.frontend.config.function_config import SETTINGS

    rows = tuple(
        (name, "yes" if setting.effect else "no", setting.effect or "accepted, without effect")
        for name, setting in sorted(SETTINGS.items(), key=lambda item: not item[1].effect)
    )
    return Table("function_config", ("attribute", "has effect", "what it does"), rows)
