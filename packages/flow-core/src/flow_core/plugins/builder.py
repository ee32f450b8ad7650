"""Collect the records of plugins into a `Registry`, and reject duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flow_core.base.errors import PluginConflictError
from flow_core.plugins.kinds import KINDS, Kind
from flow_core.plugins.order import ordered_passes
from flow_core.plugins.records import Origin, PluginRecord
from flow_core.plugins.registry import ANY_OP, HookCall, Registry, kernel_key
from flow_core.plugins.specs import DeviceSpec, KernelSpec

Kernels = Mapping[tuple[str, str], tuple[KernelSpec, ...]]


class RegistryBuilder:
    """The tables of a registry while plugins are loaded."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[Any, Any]] = {kind.table: {} for kind in KINDS}
        self._origins: dict[tuple[str, Any], Origin] = {}
        self._unconditional: dict[tuple[str, str, int], KernelSpec] = {}

    def add(self, origin: Origin, records: Mapping[Kind, Iterable[Any]]) -> None:
        """Add all records of one plugin.

        Raises:
            PluginConflictError: this or another plugin has registered a record with the same key.
        """
        for kind, specs in records.items():
            for spec in specs:
                if isinstance(spec, KernelSpec):
                    self._check_unconditional(origin, kind, spec)
                    self._add(origin, kind, kernel_key(spec), spec)
                else:
                    self._add(origin, kind, getattr(spec, kind.key), spec)

    def _add(self, origin: Origin, kind: Kind, key: object, spec: object) -> None:
        table = self._tables[kind.table]
        if key in table:
            raise self._conflict(origin, kind, key, key)
        table[key] = spec
        self._origins[kind.table, key] = origin

    def _check_unconditional(self, origin: Origin, kind: Kind, spec: KernelSpec) -> None:
        """Reject two kernels without predicates at the same priority: the order is undefined."""
        if spec.accepts is None:
            first = self._unconditional.setdefault((spec.op, spec.device, spec.priority), spec)
            if first is not spec:
                raise self._conflict(origin, kind, kernel_key(spec), kernel_key(first))

    def _conflict(
        self, origin: Origin, kind: Kind, key: object, other: object
    ) -> PluginConflictError:
        owner = self._origins[kind.table, other]
        kernel_hint = "give one kernel another priority, or " if kind.spec is KernelSpec else ""
        return PluginConflictError(
            f"registering {kind.noun} {_key_text(key)} of {origin}",
            found=f"{kind.noun} {_key_text(other)} is already registered by {owner}",
            allowed=f"one {kind.noun} per {'kind and priority' if kernel_hint else kind.key}",
            hint=f"{kernel_hint}disable one: FLOW_DISABLE_PLUGINS={origin.plugin}"
            + ("" if owner.plugin == origin.plugin else f" or ={owner.plugin}"),
        )

    def build(
        self, plugins: Sequence[PluginRecord], calls: Mapping[str, tuple[HookCall, ...]]
    ) -> Registry:
        """Create the frozen registry.

        Raises:
            PluginOrderError: ``before`` and ``after`` of the passes form a cycle.
        """
        tables: dict[str, Any] = {
            name: MappingProxyType(dict(table)) for name, table in self._tables.items()
        }
        kernels = tables.pop("kernels")
        passes = tables.pop("passes")
        owners = {name: self._origins["passes", name] for name in passes}
        return Registry(
            **tables,
            passes=ordered_passes(tuple(passes.values()), owners),
            all_kernels=self._kernel_table(tuple(kernels.values()), tables["devices"]),
            calls=MappingProxyType(dict(calls)),
            plugins=tuple(plugins),
            origins=MappingProxyType(dict(self._origins)),
        )

    def _kernel_table(
        self, kernels: Sequence[KernelSpec], devices: Mapping[str, DeviceSpec]
    ) -> Kernels:
        """Return all kernels per (op, device type), best first, with borrowed and any-op ones."""
        by_device: dict[str, list[KernelSpec]] = {device: [] for device in devices}
        for spec in kernels:
            by_device.setdefault(spec.device, []).append(spec)
        usable = {device: self._usable(device, devices, by_device) for device in by_device}
        return MappingProxyType(
            {
                (op, device): ranked
                for device, specs in usable.items()
                for op, ranked in _by_op(specs).items()
            }
        )

    def _usable(
        self,
        device: str,
        devices: Mapping[str, DeviceSpec],
        by_device: Mapping[str, Sequence[KernelSpec]],
    ) -> list[KernelSpec]:
        """Return the kernels that run on a device type.

        An emulated device type borrows the kernels of another one.  Kernels that other plugins
        registered for the real device do not run on it, so it keeps only those of its own plugin.
        """
        lender = devices[device].kernels if device in devices else None
        if lender is None:
            return list(by_device[device])
        owner = self._origins["devices", device]
        own = [
            spec
            for spec in by_device[device]
            if owner.is_family(self._origins["kernels", kernel_key(spec)])
        ]
        return [*own, *by_device.get(lender, ())]


def _by_op(kernels: Sequence[KernelSpec]) -> dict[str, tuple[KernelSpec, ...]]:
    """Group kernels by op, best first; every op's list includes the kernels for any op."""
    grouped: dict[str, list[KernelSpec]] = {}
    for spec in kernels:
        grouped.setdefault(spec.op, []).append(spec)
    general = grouped.get(ANY_OP, [])
    return {
        op: tuple(sorted(own if own is general else own + general, key=_rank))
        for op, own in grouped.items()
    }


def _rank(spec: KernelSpec) -> tuple[Any, ...]:
    return (-spec.priority, spec.op == ANY_OP, spec.accepts is None, spec.name, spec.device)


def _key_text(key: Any) -> str:
    if isinstance(key, str):
        return repr(key)
    op, device, priority, name = key
    return f"{name or '(unnamed)'!r} (op {op!r}, device {device!r}, priority {priority})"
