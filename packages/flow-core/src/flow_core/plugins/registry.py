"""The registry: frozen tables of all plugins' records, lookups and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flow_core.base.errors import (
    DeviceUnavailableError,
    KernelNotFoundError,
    MissingKernel,
    PluginResultError,
    SourceLine,
    described,
    install_command,
    nearest,
)
from flow_core.base.time_limit import CallTimeoutError, call_within
from flow_core.plugins.exporters import ExporterSpec
from flow_core.plugins.missing_kernels import lookup_error
from flow_core.plugins.records import Origin, PluginFailure, PluginRecord
from flow_core.plugins.specs import (
    ANY_DEVICE_TYPE,
    AnnotationSpec,
    Available,
    BoxingSpec,
    CommSpec,
    DecoderSpec,
    DeviceSpec,
    FormatSpec,
    KernelQuery,
    KernelSpec,
    OpSpec,
    PassSpec,
    ReaderSpec,
    Unavailable,
    load,
)
from flow_core.sharding.topology import Device

ANY_OP = "*"
"""The op type of a kernel that can run any op."""

PROVIDERS: Mapping[str, tuple[str, str]] = {
    "gpu": ("flow-cuda", f"{install_command('flow-cuda[cu12]')} (or [cu13])")
}
"""For each known device type: the distribution that provides it, and the command to install it."""

_SKIPPED = {
    "disabled": "FLOW_DISABLE_PLUGINS names it",
    "not allowed": "FLOW_PLUGINS does not name it",
}

EMULATION = "ONEFLOW_EMULATE_GPUS=1 (or `flow run --emulate-gpus 1 script.py`)"


def kernel_key(spec: KernelSpec) -> tuple[str, str, int, str]:
    """Return the unique key of a kernel."""
    return (spec.op, spec.device, spec.priority, spec.name)


def describe_kernel(spec: KernelSpec) -> str:
    """Return a description of a kernel.

    >>> describe_kernel(KernelSpec("cube", "cpu", "a:b", name="fast"))
    "kernel 'fast' of op 'cube' on device type 'cpu'"
    """
    name = f" {spec.name!r}" if spec.name else ""
    return f"kernel{name} of op {spec.op!r} on device type {spec.device!r}"


def _lines(texts: Iterable[str]) -> str:
    """Join texts as lines with the indentation of the values in a `FlowError`'s message."""
    return "\n           ".join(texts)


@dataclass(frozen=True, slots=True)
class HookCall:
    """A plugin's implementation of a hook that is called after loading.

    Attributes:
        origin: the plugin.
        call: the function, which takes all arguments of the hook by position.
    """

    origin: Origin
    call: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Registry:
    """All records of all plugins; frozen.  `flow_core.plugins.host` creates it.

    Attributes:
        ops, devices, comms, boxing, readers, decoders, annotations, formats, exporters: records
            by name.
        passes: passes in execution order, by stage.
        all_kernels: kernels by (op, device type); use `kernels` or `find_kernel` for lookups.
        calls: implementations of the hooks that are called after loading, by hook.
        plugins: the result of loading each plugin.
        origins: the plugin of each record, by (table, name).
        probe_seconds: the time limit of a probe, in seconds.
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
    probe_seconds: float
    _probed: dict[str, Available | Unavailable] = field(default_factory=dict, compare=False)

    @property
    def failures(self) -> tuple[PluginFailure, ...]:
        """The failures of plugins that could not be loaded."""
        return tuple(record.failure for record in self.plugins if record.failure)

    @property
    def host_numbers(self) -> frozenset[str]:
        """The device types whose kernels read numbers in host memory."""
        return frozenset(type_ for type_, spec in self.devices.items() if spec.host_numbers)

    @property
    def commands(self) -> tuple[HookCall, ...]:
        """Implementations of ``flow_register_commands``."""
        return self.calls["flow_register_commands"]

    def observers(self, hook: str) -> tuple[Callable[..., Any], ...]:
        """Return the implementations of ``flow_plan_ready`` or ``flow_step_finished``.

        These functions take positional arguments.  Look them up once per plan, not once per step.
        """
        return tuple(entry.call for entry in self.calls[hook])

    def choose_boxing(
        self, src: object, dst: object, tensor: object, candidates: Sequence[BoxingSpec]
    ) -> str | None:
        """Return the boxing that a plugin chooses, or None if no plugin does.

        Raises:
            PluginResultError: a plugin returned a name that is not a candidate's.
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
        """Return the kernels of an op on a device type; the first that accepts a query runs.

        The kernels are sorted by descending priority.  Among kernels of equal priority, kernels for
        this op come before kernels for any op, then kernels with a predicate before kernels
        without, then names in alphabetical order.
        """
        found = self.all_kernels.get((op, device_type))
        return self.all_kernels.get((ANY_OP, device_type), ()) if found is None else found

    def find_kernel(
        self, query: KernelQuery, device_type: str, at: SourceLine | None = None
    ) -> KernelSpec:
        """Return the kernel for an op with concrete types on a device type.

        Args:
            query: the op, its types and attributes.
            device_type: the device type.
            at: the user's line, for the error.

        Raises:
            KernelNotFoundError: no kernel accepts the query; the error lists each candidate with
                the reason.
        """
        found = self.accepting_kernel(query, device_type)
        if found is None:
            raise self._no_kernel(query, device_type, at)
        return found

    def accepting_kernel(self, query: KernelQuery, device_type: str) -> KernelSpec | None:
        """Return the kernel for an op with concrete types on a device type, or None."""
        for spec in self.kernels(query.op, device_type):
            if spec.accepts is None or spec.accepts(query):
                return spec
        return None

    def _kernel_text(self, spec: KernelSpec) -> str:
        origin = self.origins["kernels", kernel_key(spec)]
        return f"{spec.name or spec.op!r} ({origin}, priority {spec.priority})"

    def _no_kernel(
        self, query: KernelQuery, device_type: str, at: SourceLine | None
    ) -> KernelNotFoundError:
        types = ", ".join(map(str, query.inputs)) + " -> " + ", ".join(map(str, query.outputs))
        reasons = tuple(
            f"{self._kernel_text(spec)}: its predicate rejects these types or attributes"
            for spec in self.kernels(query.op, device_type)
        )
        others = (d for d in self.devices if d != device_type)
        elsewhere = tuple(d for d in others if self.accepting_kernel(query, d))
        missing = MissingKernel(query.op, device_type, types, reasons, elsewhere)
        return lookup_error(
            missing, self._failure_hint() or "see `flow doctor` for the loaded plugins", at
        )

    def _failure_hint(self) -> str:
        if not self.failures:
            return ""
        return _lines(["a plugin that failed to load may provide it:", *map(str, self.failures)])

    def probe(self, device_type: str) -> Available | Unavailable:
        """Return the number of devices of a type, or why none is available; cache the result."""
        found = self._probed.get(device_type)
        if found is None:
            found = self._probed[device_type] = self._probe(device_type)
        return found

    def _probe(self, device_type: str) -> Available | Unavailable:
        spec = self.devices.get(device_type)
        if spec is None:
            return self._not_registered(device_type)
        limit = self.probe_seconds
        try:
            found = call_within(limit, lambda: load(spec.probe)())
        except CallTimeoutError:
            return Unavailable(
                f"its probe did not return within {limit:g} seconds",
                "allow more time: FLOW_PROBE_SECONDS; or disable the plugin: "
                f"FLOW_DISABLE_PLUGINS={self.origins['devices', device_type].plugin}",
            )
        except Exception as error:  # noqa: BLE001  # the plugin's error is the reason
            return Unavailable(f"its probe raised {described(error)}")
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
            return Unavailable("no plugin registers this type", nearest(device_type, self.devices))
        records = [r for r in self.plugins if r.origin.distribution == provider]
        if not records:
            return Unavailable(f"{provider}, which provides it, is not installed", install)
        record = records[0]
        if record.state == "loaded":
            return Unavailable(f"{record.origin} did not register it")
        return Unavailable(str(record.failure or f"{record.origin}: {_SKIPPED[record.state]}"))

    def comm(self, devices: Sequence[Device]) -> Any:
        """Create a comm between devices; all processes must call this together.

        Raises:
            DeviceUnavailableError: no library connects these device types; the error lists the
                reasons.
        """
        return load(self.comm_spec(devices).load)(tuple(devices))

    def comm_spec(self, devices: Sequence[Device]) -> CommSpec:
        """Return the communication library that connects devices.

        Raises:
            DeviceUnavailableError: no library connects these device types; the error lists the
                reasons.
        """
        types = {device.type for device in devices}
        fitting = [
            spec
            for spec in self.comms.values()
            if types <= set(spec.device_types) or ANY_DEVICE_TYPE in spec.device_types
        ]
        for spec in sorted(fitting, key=lambda spec: (-spec.priority, spec.name)):
            if isinstance(self._joined(spec), Available):
                return spec
        reasons = [f"{spec.name}: {self._joined(spec)}" for spec in fitting]
        raise DeviceUnavailableError(
            f"connecting devices of type {' and '.join(sorted(types))}",
            found=_lines(reasons or ["no plugin registers a comm for these types"]),
            allowed=_lines(f"{c.name}: {', '.join(c.device_types)}" for c in self.comms.values()),
            hint=self._failure_hint() or "see `flow doctor` for the loaded plugins",
        )

    def world(self) -> Any:
        """Return the processes that run this program, or None for a single process."""
        for spec in self._comms_by_priority():
            if spec.world is not None and isinstance(self._joined(spec), Available):
                return load(spec.world)()
        return None

    def static_bootstrap(self, machines: Sequence[str], used: int, port: int | None) -> Any:
        """Connect the processes of a program that was started manually on each machine.

        Args:
            machines: the addresses of the machines.
            used: the number of machines that the program uses, counted from the first.
            port: the port on which the first machine listens.

        Returns:
            A `flow_core.device.World`, or None if this process is not one of those processes.
        """
        for spec in self._comms_by_priority():
            if spec.static_bootstrap is None:
                continue
            world = load(spec.static_bootstrap)(machines, used, port)
            if world is not None:
                for comm in self.comms:  # discard results from before the rendezvous
                    self._probed.pop(f"comm {comm}", None)
                return world
        return None

    def _comms_by_priority(self) -> list[CommSpec]:
        return sorted(self.comms.values(), key=lambda spec: (-spec.priority, spec.name))

    def _joined(self, spec: CommSpec) -> Available | Unavailable:
        """Return the result of a comm's bootstrap, which is cached."""
        one_process = ANY_DEVICE_TYPE in spec.device_types and spec.world is None
        if one_process and (world := self.world()) is not None:
            return Unavailable(f"the program runs in {world.size} processes")
        key = f"comm {spec.name}"
        if key not in self._probed:
            self._probed[key] = load(spec.bootstrap)()
        return self._probed[key]

    def require_device(
        self, device_type: str, count: int = 1, at: SourceLine | None = None
    ) -> DeviceSpec:
        """Return the spec of a device type that has at least ``count`` devices.

        Raises:
            DeviceUnavailableError: fewer devices are available; the error names the plugin, the
                reason and the next step.
        """
        found = self.probe(device_type)
        if isinstance(found, Available) and found.count >= count:
            return self.devices[device_type]
        raise self._no_device(device_type, count, found, at)

    def _no_device(
        self, device_type: str, count: int, found: Available | Unavailable, at: SourceLine | None
    ) -> DeviceUnavailableError:
        origin = self.origins.get(("devices", device_type))
        provider = PROVIDERS.get(device_type, ("no known plugin", ""))[0]
        few = f"{found.count} available" if isinstance(found, Available) else found.reason
        steps = [found.hint] if isinstance(found, Unavailable) and found.hint else []
        if device_type == "gpu":  # give the hint once, with the number of devices
            steps = [step for step in steps if "ONEFLOW_EMULATE_GPUS" not in step]
            steps.append(f"to run it on the CPU, set {EMULATION.replace('1', str(count))}")
        if device_type in ("cuda", "nvidia") and isinstance(gpu := self.probe("gpu"), Unavailable):
            steps.append(f"GPUs of NVIDIA are of type 'gpu'; now unavailable: {gpu.reason}")
        elif device_type in ("cuda", "nvidia"):
            steps.append("GPUs of NVIDIA are of type 'gpu'")
        known = (d for d in self.devices if d != "null")  # whose steps compute nothing
        kinds = [d for d in known if isinstance(self.probe(d), Available)]
        return DeviceUnavailableError(
            f"using {count} device{'s' * (count != 1)} of type {device_type!r}, "
            f"provided by {origin or provider}",
            at=at,
            found=few,
            allowed=f"available device types: {', '.join(kinds)}",
            hint="; ".join(steps) or None,
        )

    def driver(self, device: Device, at: SourceLine | None = None) -> Any:
        """Create the driver of a device.

        Raises:
            DeviceUnavailableError: the device is not available.
        """
        return load(self.require_device(device.type, device.index + 1, at).driver)(device)
