"""What all plugins together registered: frozen tables, look-ups and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flow_core.base.errors import (
    DeviceUnavailableError,
    KernelNotFoundError,
    PluginError,
    PluginResultError,
    SourceLine,
    nearest,
)
from flow_core.plugins.records import Origin, PluginFailure, PluginRecord
from flow_core.plugins.specs import (
    AnnotationSpec,
    Available,
    BoxingSpec,
    CommSpec,
    DecoderSpec,
    DeviceSpec,
    ExporterSpec,
    FormatSpec,
    KernelQuery,
    KernelSpec,
    OpSpec,
    PassSpec,
    ReaderSpec,
    Unavailable,
    load,
)

ANY_OP = "*"
"""Op of a kernel that runs any op."""

PROVIDERS: Mapping[str, tuple[str, str]] = {
    "gpu": ("flow-cuda", "uv add 'flow-cuda[cu12]' (or [cu13])"),
}
"""The distribution that provides a device type, and how to install it."""

_SKIPPED = {
    "disabled": "FLOW_DISABLE_PLUGINS names it",
    "not allowed": "FLOW_PLUGINS does not name it",
}

EMULATION = "ONEFLOW_EMULATE_GPUS=1 (or `flow run --emulate-gpus 1 script.py`)"


def kernel_key(spec: KernelSpec) -> tuple[str, str, int, str]:
    """What is unique among kernels."""
    return (spec.op, spec.device, spec.priority, spec.name)


def _lines(texts: Iterable[str]) -> str:
    """Texts below each other, as far right as `FlowError` puts what it was given."""
    return "\n           ".join(texts)


@dataclass(frozen=True, slots=True)
class HookCall:
    """An implementation of a hook that is called after loading.

    Attributes:
        origin: whose it is.
        call: takes all arguments of the hook, by position.
    """

    origin: Origin
    call: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Registry:
    """Everything the plugins registered; frozen.  `flow_core.plugins.host` makes it.

    Attributes:
        ops, devices, comms, boxing, readers, decoders, annotations, formats, exporters: by
            name.
        passes: in the order in which they run, stage by stage.
        all_kernels: by (op, device type) as registered; `kernels` and `find_kernel` look up.
        calls: implementations of the hooks that are called later, by hook.
        plugins: how loading each plugin went.
        origins: who registered what, by (table, name).
    """

    ops: Mapping[str, OpSpec]
    devices: Mapping[str, DeviceSpec]
    comms: Mapping[str, CommSpec]
    boxing: Mapping[str, BoxingSpec]
    readers: Mapping[str, ReaderSpec]
    decoders: Mapping[str, DecoderSpec]
    annotations: Mapping[str, AnnotationSpec]
    formats: Mapping[str, FormatSpec]
    exporters: Mapping[str, ExporterSpec]
    passes: tuple[PassSpec, ...]
    all_kernels: Mapping[tuple[str, str], tuple[KernelSpec, ...]]
    calls: Mapping[str, tuple[HookCall, ...]]
    plugins: tuple[PluginRecord, ...]
    origins: Mapping[tuple[str, Any], Origin]
    _probed: dict[str, Available | Unavailable] = field(default_factory=dict, compare=False)

    @property
    def failures(self) -> tuple[PluginFailure, ...]:
        """Why plugins are not registered."""
        return tuple(record.failure for record in self.plugins if record.failure)

    @property
    def commands(self) -> tuple[HookCall, ...]:
        """Implementations of ``flow_register_commands``."""
        return self.calls["flow_register_commands"]

    def observers(self, hook: str) -> tuple[Callable[..., Any], ...]:
        """The functions behind ``flow_plan_ready`` or ``flow_step_finished``, by position.

        Look them up once per plan, not per step.
        """
        return tuple(entry.call for entry in self.calls[hook])

    def choose_boxing(
        self, src: object, dst: object, tensor: object, candidates: Sequence[BoxingSpec]
    ) -> str | None:
        """The boxing that a plugin chooses, None when none cares.

        Raises:
            PluginResultError: the answer is none of the candidates.
        """
        names = [spec.name for spec in candidates]
        for entry in self.calls["flow_choose_boxing"]:
            name: str | None = entry.call(src, dst, tensor, candidates)
            if name is None:
                continue
            if name not in names:
                raise PluginResultError(
                    f"hook flow_choose_boxing of {entry.origin}",
                    found=repr(name),
                    allowed=f"None or one of {', '.join(names)}",
                )
            return name
        return None

    def kernels(self, op: str, device_type: str) -> tuple[KernelSpec, ...]:
        """The kernels of an op on a device type, the first that accepts a query wins.

        Higher priorities come first, then kernels for any op last, those with a predicate
        before those without, and names in alphabetical order.
        """
        found = self.all_kernels.get((op, device_type))
        return self.all_kernels.get((ANY_OP, device_type), ()) if found is None else found

    def find_kernel(
        self, query: KernelQuery, device_type: str, at: SourceLine | None = None
    ) -> KernelSpec:
        """The kernel that runs an op with concrete types on a device type.

        Args:
            query: the op, its types and attributes.
            device_type: where it shall run.
            at: the user's line, for the error.

        Raises:
            KernelNotFoundError: with each candidate and why it does not fit.
        """
        for spec in self.kernels(query.op, device_type):
            if spec.accepts is None or self._accepts(spec, query):
                return spec
        raise self._no_kernel(query, device_type, at)

    def _accepts(self, spec: KernelSpec, query: KernelQuery) -> bool:
        accepts = spec.accepts
        try:
            return accepts is None or bool(accepts(query))
        except Exception as error:
            raise PluginError(
                f"asking kernel {self._kernel_text(spec)} whether it takes {query.op}",
                found=f"{type(error).__name__}: {error}",
                hint="predicates answer True or False, they do not raise",
            ) from error

    def _kernel_text(self, spec: KernelSpec) -> str:
        origin = self.origins["kernels", kernel_key(spec)]
        return f"{spec.name or spec.op!r} ({origin}, priority {spec.priority})"

    def _no_kernel(
        self, query: KernelQuery, device_type: str, at: SourceLine | None
    ) -> KernelNotFoundError:
        types = ", ".join(map(str, query.inputs)) + " -> " + ", ".join(map(str, query.outputs))
        tried = [
            f"{self._kernel_text(spec)}: its predicate refuses these types or attributes"
            for spec in self.kernels(query.op, device_type)
        ]
        found = _lines([types, *(tried or ["no kernel is registered for it"])])
        others = [d for d in self.devices if d != device_type and self._takes(query, d)]
        return KernelNotFoundError(
            f"finding a kernel for op {query.op!r} on device type {device_type!r}",
            at=at,
            found=found,
            allowed=f"device types that have one: {', '.join(others) or 'none'}",
            hint=self._failure_hint() or "see `flow doctor` for the plugins that are loaded",
        )

    def _takes(self, query: KernelQuery, device_type: str) -> bool:
        return any(self._accepts(spec, query) for spec in self.kernels(query.op, device_type))

    def _failure_hint(self) -> str:
        if not self.failures:
            return ""
        return _lines(["a plugin that failed may have it:", *map(str, self.failures)])

    def probe(self, device_type: str) -> Available | Unavailable:
        """How many devices of a type there are, or why there are none; asked once."""
        found = self._probed.get(device_type)
        if found is None:
            found = self._probed[device_type] = self._probe(device_type)
        return found

    def _probe(self, device_type: str) -> Available | Unavailable:
        spec = self.devices.get(device_type)
        if spec is None:
            return self._not_registered(device_type)
        try:
            found = load(spec.probe)()
        except Exception as error:  # noqa: BLE001  # a foreign probe; its error is the reason
            return Unavailable(f"its probe raised {type(error).__name__}: {error}")
        if isinstance(found, Available | Unavailable):
            return found
        raise PluginResultError(
            f"probe of device {device_type!r} of {self.origins['devices', device_type]}",
            found=repr(found),
            allowed="Available or Unavailable",
        )

    def _not_registered(self, device_type: str) -> Unavailable:
        provider, install = PROVIDERS.get(device_type, ("", ""))
        if not provider:
            return Unavailable("no plugin registers it", nearest(device_type, self.devices))
        records = [r for r in self.plugins if r.origin.distribution == provider]
        if not records:
            return Unavailable(f"{provider}, which provides it, is not installed", install)
        record = records[0]
        if record.state == "loaded":
            return Unavailable(f"{record.origin} did not register it")
        return Unavailable(str(record.failure or f"{record.origin}: {_SKIPPED[record.state]}"))

    def comm(self, devices: Sequence[str]) -> Any:
        """A new comm between devices, by their text forms; the same call in all processes.

        Raises:
            DeviceUnavailableError: none joins these types of devices; with each one's reason.
        """
        return load(self.comm_spec(devices).load)(tuple(devices))

    def comm_spec(self, devices: Sequence[str]) -> CommSpec:
        """The communication library that joins devices, by their text forms.

        Raises:
            DeviceUnavailableError: none joins these types of devices; with each one's reason.
        """
        types = {device.split(":")[0] for device in devices}
        fitting = [spec for spec in self.comms.values() if types <= set(spec.device_types)]
        for spec in sorted(fitting, key=lambda spec: (-spec.priority, spec.name)):
            if isinstance(self._joined(spec), Available):
                return spec
        reasons = [f"{spec.name}: {self._joined(spec)}" for spec in fitting]
        raise DeviceUnavailableError(
            f"joining devices of type {' and '.join(sorted(types))}",
            found=_lines(reasons or ["no plugin registers a comm for them"]),
            allowed=_lines(f"{c.name}: {', '.join(c.device_types)}" for c in self.comms.values()),
            hint=self._failure_hint() or "see `flow doctor` for the plugins that are loaded",
        )

    def world(self) -> Any:
        """The processes that run this program together, None for one that runs it alone."""
        for spec in self._comms_by_priority():
            if spec.world is not None and isinstance(self._joined(spec), Available):
                return load(spec.world)()
        return None

    def meet(self, machines: Sequence[str], used: int, port: int | None) -> Any:
        """The processes of a program that was started by hand on each of its machines.

        Args:
            machines: their addresses.
            used: how many of them, from the first, the program uses.
            port: where the first one is to listen.

        Returns:
            A `flow_core.device.World`; None where this process is not one of them.
        """
        for spec in self._comms_by_priority():
            world = load(spec.meet)(machines, used, port) if spec.meet is not None else None
            if world is not None:
                for comm in self.comms:  # what was said before the processes had met
                    self._probed.pop(f"comm {comm}", None)
                return world
        return None

    def _comms_by_priority(self) -> list[CommSpec]:
        return sorted(self.comms.values(), key=lambda spec: (-spec.priority, spec.name))

    def _joined(self, spec: CommSpec) -> Available | Unavailable:
        """What a comm's bootstrap says, asked once."""
        key = f"comm {spec.name}"
        if key not in self._probed:
            self._probed[key] = load(spec.bootstrap)()
        return self._probed[key]

    def require_device(
        self, device_type: str, count: int = 1, at: SourceLine | None = None
    ) -> DeviceSpec:
        """The spec of a device type of which there are at least ``count`` devices.

        Raises:
            DeviceUnavailableError: names the device, its plugin, the reason and what to do.
        """
        found = self.probe(device_type)
        if isinstance(found, Available) and found.count >= count:
            return self.devices[device_type]
        raise self._no_device(device_type, count, found, at)

    def _no_device(
        self,
        device_type: str,
        count: int,
        found: Available | Unavailable,
        at: SourceLine | None,
    ) -> DeviceUnavailableError:
        origin = self.origins.get(("devices", device_type))
        provider = PROVIDERS.get(device_type, ("no known plugin", ""))[0]
        few = f"there are {found.count}" if isinstance(found, Available) else found.reason
        steps = [found.hint] if isinstance(found, Unavailable) and found.hint else []
        if device_type == "gpu":  # said once, with the number that is needed
            steps = [step for step in steps if "ONEFLOW_EMULATE_GPUS" not in step]
            steps.append(f"to run it on the CPU, set {EMULATION.replace('1', str(count))}")
        kinds = [d for d in self.devices if isinstance(self.probe(d), Available)]
        return DeviceUnavailableError(
            f"using {count} device{'s' * (count != 1)} of type {device_type!r}, "
            f"provided by {origin or provider}",
            at=at,
            found=few,
            allowed=f"device types that are there: {', '.join(kinds)}",
            hint="; ".join(steps) or None,
        )

    def driver(self, device_type: str, index: int = 0, at: SourceLine | None = None) -> Any:
        """A new driver of one device, checked to be there."""
        return load(self.require_device(device_type, index + 1, at).driver)(index)
