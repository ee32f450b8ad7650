"""Collect the records of plugins into a `Registry`, and reject duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flow_core.base.errors import PluginConflictError, PluginError, nearest
from flow_core.plugins.guards import guarded
from flow_core.plugins.kinds import KINDS, Kind
from flow_core.plugins.order import ordered_passes
from flow_core.plugins.records import Origin, PluginRecord
from flow_core.plugins.registry import (
    ANY_OP,
    PROVIDERS,
    HookCall,
    Registry,
    describe_kernel,
    kernel_key,
)
from flow_core.plugins.specs import DeviceSpec, KernelSpec

Kernels = Mapping[tuple[str, str], tuple[KernelSpec, ...]]


class RegistryBuilder:
    """The tables of a registry while plugins are loaded."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[Any, Any]] = {kind.table: {} for kind in KINDS}
        self._origins: dict[tuple[str, Any], Origin] = {}
        self._unconditional: dict[tuple[str, str, int], KernelSpec] = {}

    def add(self, origin: Origin, records: Mapping[Kind, Iterable[object]], guard: bool) -> None:
        """Add all records of one plugin, or none.

        Args:
            origin: the plugin.
            records: the plugin's records.
            guard: whether exceptions of the records' functions are reported with the plugin's name.

        Raises:
            PluginConflictError: this or another plugin has registered a record with the same key.
        """
        new: dict[str, dict[Any, Any]] = {}
        alone: dict[tuple[str, str, int], KernelSpec] = {}
        for kind, specs in records.items():
            table = new[kind.table] = {}
            for spec in specs:
                key = kernel_key(spec) if isinstance(spec, KernelSpec) else getattr(spec, kind.key)
                if key in table or key in self._tables[kind.table]:
                    raise self._conflict(origin, kind, key, key)
                if isinstance(spec, KernelSpec) and spec.accepts is None:
                    self._check_unconditional(origin, kind, spec, alone)
                table[key] = guarded(spec, record_text(kind, spec), origin) if guard else spec
        self._unconditional |= alone
        for name, table in new.items():
            self._tables[name] |= table
            self._origins |= {(name, key): origin for key in table}

    def _check_unconditional(
        self,
        origin: Origin,
        kind: Kind,
        spec: KernelSpec,
        own: dict[tuple[str, str, int], KernelSpec],
    ) -> None:
        """Reject two kernels without predicates at one priority: they have no defined order."""
        key = (spec.op, spec.device, spec.priority)
        first = self._unconditional.get(key) or own.setdefault(key, spec)
        if first is not spec:
            raise self._conflict(origin, kind, kernel_key(spec), kernel_key(first))

    def _conflict(
        self, origin: Origin, kind: Kind, key: object, other: object
    ) -> PluginConflictError:
        owner = self._origins.get((kind.table, other), origin)
        kernel_hint = "give one kernel another priority, or " if kind.spec is KernelSpec else ""
        return PluginConflictError(
            f"registering {kind.noun} {_key_text(key)} of {origin}",
            found=f"{kind.noun} {_key_text(other)} is already registered by {owner}",
            allowed=f"one {kind.noun} per {'kind and priority' if kernel_hint else kind.key}",
            hint=f"{kernel_hint}disable one: FLOW_DISABLE_PLUGINS={origin.plugin}"
            + ("" if owner.plugin == origin.plugin else f" or ={owner.plugin}"),
        )

    def refuse(self) -> dict[Origin, list[PluginError]]:
        """Remove the records that cannot be used together with those of other plugins.

        These are kernels and devices that refer to ops or device types that no plugin registers,
        and passes without an order.

        Returns:
            An error for each removed record, by plugin.
        """
        refused: dict[Origin, list[PluginError]] = {}
        ops, known = self._tables["ops"], {*self._tables["devices"], *PROVIDERS}
        for key, device in list(self._tables["devices"].items()):
            if device.kernels not in (None, *known):
                self._refuse("devices", key, ("device type", device.kernels, known), refused)
        known = {*self._tables["devices"], *PROVIDERS}
        for key, kernel in list(self._tables["kernels"].items()):
            if kernel.op not in ops and kernel.op != ANY_OP:
                self._refuse("kernels", key, ("op", kernel.op, ops), refused)
            elif kernel.device not in known:
                self._refuse("kernels", key, ("device type", kernel.device, known), refused)
        self._order_passes(refused)
        return refused

    def _order_passes(self, refused: dict[Origin, list[PluginError]]) -> None:
        """Sort the passes, and remove those without an order."""
        passes = self._tables["passes"]
        owners = {name: self._origins["passes", name] for name in passes}
        ordered, errors = ordered_passes(tuple(passes.values()), owners)
        self._tables["passes"] = {spec.name: spec for spec in ordered}
        for name, error in errors.items():
            del self._origins["passes", name]
            refused.setdefault(owners[name], []).append(error)

    def _refuse(
        self,
        table: str,
        key: object,
        unknown: tuple[str, str, Iterable[str]],
        refused: dict[Origin, list[PluginError]],
    ) -> None:
        """Remove a record that refers to an unknown op or device type, and record an error.

        Args:
            table: name of the record's table.
            key: key of the record.
            unknown: "op" or "device type", the unknown name, and the known names.
            refused: the errors so far, by plugin, to which the new error is added.
        """
        noun, name, known = unknown
        spec = self._tables[table].pop(key)
        origin = self._origins.pop((table, key))
        (kind,) = (kind for kind in KINDS if kind.table == table)
        error = PluginError(
            f"registering {record_text(kind, spec)} of {origin}",
            found=f"no plugin has registered {noun} {name!r}",
            allowed=f"a registered {noun}",
            hint=nearest(name, known) or "see `flow doctor` for plugins that failed",
        )
        refused.setdefault(origin, []).append(error)

    def build(
        self,
        plugins: Sequence[PluginRecord],
        calls: Mapping[str, tuple[HookCall, ...]],
        probe_seconds: float,
    ) -> Registry:
        """Create the frozen registry.

        Args:
            plugins: the result of loading each plugin.
            calls: implementations of the hooks that are called after loading.
            probe_seconds: the time limit of a probe.
        """
        tables: dict[str, Any] = {
            name: MappingProxyType(dict(table)) for name, table in self._tables.items()
        }
        kernels, passes = tables.pop("kernels"), tables.pop("passes")
        return Registry(
            **tables,
            passes=tuple(passes.values()),
            all_kernels=self._kernel_table(tuple(kernels.values()), tables["devices"]),
            calls=MappingProxyType(dict(calls)),
            plugins=tuple(plugins),
            origins=MappingProxyType(dict(self._origins)),
            probe_seconds=probe_seconds,
        )

    def _kernel_table(
        self, kernels: Sequence[KernelSpec], devices: Mapping[str, DeviceSpec]
    ) -> Kernels:
        """Return all kernels by (op, device type), best first.

        These include kernels borrowed from another device type, and kernels for any op.
        """
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

        An emulated device type borrows the kernels of another device type (`DeviceSpec.kernels`).
        Kernels that other plugins registered under the same name for hardware cannot run on an
        emulated device, so only kernels of the emulating plugin are kept besides the borrowed ones.
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


def record_text(kind: Kind, spec: object) -> str:
    """Return a description of a record."""
    if isinstance(spec, KernelSpec):
        return describe_kernel(spec)
    return f"{kind.noun} {getattr(spec, kind.key)!r}"


def _key_text(key: Any) -> str:
    if isinstance(key, str):
        return repr(key)
    op, device, priority, name = key
    return f"{name or '(unnamed)'!r} (op {op!r}, device {device!r}, priority {priority})"
