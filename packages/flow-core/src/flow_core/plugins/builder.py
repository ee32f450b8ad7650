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

    def add(self, origin: Origin, records: Mapping[Kind, Iterable[Any]], guard: bool) -> None:
        """Add all records of one plugin, or none.

        Args:
            origin: the plugin.
            records: its records.
            guard: whether failures of their functions are reported as the plugin's.

        Raises:
            PluginConflictError: this or another plugin has registered a record with the same key.
        """
        new: dict[tuple[Kind, Any], Any] = {}
        alone: dict[tuple[str, str, int], KernelSpec] = {}
        for kind, specs in records.items():
            for spec in specs:
                key = kernel_key(spec) if isinstance(spec, KernelSpec) else getattr(spec, kind.key)
                if (kind, key) in new or key in self._tables[kind.table]:
                    raise self._conflict(origin, kind, key, key)
                if isinstance(spec, KernelSpec) and spec.accepts is None:
                    self._check_unconditional(origin, kind, spec, alone)
                new[kind, key] = guarded(spec, record_text(kind, spec), origin) if guard else spec
        self._unconditional |= alone
        for (kind, key), spec in new.items():
            self._tables[kind.table][key] = spec
            self._origins[kind.table, key] = origin

    def _check_unconditional(
        self,
        origin: Origin,
        kind: Kind,
        spec: KernelSpec,
        own: dict[tuple[str, str, int], KernelSpec],
    ) -> None:
        """Reject two kernels without predicates at the same priority: the order is undefined."""
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

    def refuse_unknown(self) -> dict[Origin, list[PluginError]]:
        """Remove the kernels and devices that refer to ops or device types that no plugin has.

        Returns:
            An error for each of them, by plugin.
        """
        refused: dict[Origin, list[PluginError]] = {}
        for kind in sorted(KINDS, key=lambda kind: kind.spec is KernelSpec):  # devices first
            for key, spec in list(self._tables[kind.table].items()):
                unknown = self._unknown(spec)
                if unknown:
                    noun, name, known = unknown
                    del self._tables[kind.table][key]
                    origin = self._origins.pop((kind.table, key))
                    error = PluginError(
                        f"registering {record_text(kind, spec)} of {origin}",
                        found=f"no plugin has registered {noun} {name!r}",
                        allowed=f"a registered {noun}",
                        hint=nearest(name, known) or "`flow doctor` lists plugins that failed",
                    )
                    refused.setdefault(origin, []).append(error)
        return refused

    def _unknown(self, spec: object) -> tuple[str, str, Iterable[str]] | None:
        """Return the noun, the name and the known names of what a record lacks."""
        ops = self._tables["ops"]
        devices = {*self._tables["devices"], *PROVIDERS}
        if isinstance(spec, KernelSpec):
            if spec.op not in ops and spec.op != ANY_OP:
                return "op", spec.op, ops
            if spec.device not in devices:
                return "device type", spec.device, devices
        if isinstance(spec, DeviceSpec) and spec.kernels not in (None, *devices):
            return "device type", str(spec.kernels), devices
        return None

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
            probe_seconds=probe_seconds,
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


def record_text(kind: Kind, spec: Any) -> str:
    """Return a record in words."""
    if isinstance(spec, KernelSpec):
        return describe_kernel(spec)
    return f"{kind.noun} {getattr(spec, kind.key)!r}"


def _key_text(key: Any) -> str:
    if isinstance(key, str):
        return repr(key)
    op, device, priority, name = key
    return f"{name or '(unnamed)'!r} (op {op!r}, device {device!r}, priority {priority})"
