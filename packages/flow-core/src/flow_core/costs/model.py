"""The cost model: links, devices, and measured kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from flow_core.costs.links import LinkModel
from flow_core.ir.graph import AttrValue, TensorType
from flow_core.plugins.specs import OpSpec, SbpContext


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """The roofline of a device, with the price of its memory.

    The time of an op is the time to launch it, of its arithmetic, and of one read of its inputs and
    one write of its outputs.  Memory has a cost as well, so that the smaller of two equally fast
    plans wins.

    Attributes:
        flops: floating point operations per second.
        bandwidth: bytes per second between the device and its memory.
        held: cost of memory, in seconds per byte that a step or a variable occupies.
        launch: fixed time to start a kernel or a reshard step, in seconds.
    """

    flops: float = 1e13
    bandwidth: float = 1e12
    held: float = 1e-13
    launch: float = 1e-6

    def seconds(self, flops: float, nbytes: float) -> float:
        """Return the time of ``flops`` operations that access ``nbytes`` bytes, without the launch.

        >>> DeviceModel(flops=1e12, bandwidth=1e11).seconds(1e9, 10**8)
        0.002
        """
        return flops / self.flops + nbytes / self.bandwidth


HOST = "cpu"
"""The device type of which one device is a core of the host."""

ACCELERATOR = DeviceModel()
"""The roofline of device types that a model does not describe."""

CORE = DeviceModel(flops=8e10, bandwidth=8e9, held=5e-12, launch=3e-6)
"""The roofline of a CPU core."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """What a plan costs: links, rooflines of devices, and measured kernels.

    Attributes:
        name: the name in reports.
        source: where the numbers are from.
        links: the links between devices.
        devices: the rooflines, by device type.
        kernels: measured seconds of kernels, by `kernel_key`.
        step: the seconds of a step besides its tasks: the call, feeds and results.
        cores: the cores of a machine, which its processes share; 0 if each process has its own.
        measures: whether a simulation measures the kernels that are not among these.
    """

    name: str = "default"
    source: str = "constants for one CPU core per device, links of 10 and 1.25 GB/s"
    links: LinkModel = field(default_factory=LinkModel)
    devices: Mapping[str, DeviceModel] = field(default_factory=lambda: {HOST: CORE})
    kernels: Mapping[str, float] = field(default_factory=dict)
    step: float = 5e-5
    cores: int = 0
    measures: bool = False

    def __str__(self) -> str:
        measured = f"; {len(self.kernels):,} measured kernels" if self.kernels else ""
        return f"{self.name} ({self.source}{measured})"

    def device(self, type_: str) -> DeviceModel:
        """Return the roofline of a device type."""
        return self.devices.get(type_, ACCELERATOR)

    def computes_on_host(self, type_: str, accelerators: Collection[str]) -> bool:
        """Return whether devices of a type are cores of the host: the host's own and emulated ones.

        Args:
            accelerators: the types that have hardware of their own.
        """
        return type_ == HOST or (type_ not in self.devices and type_ not in accelerators)

    def kernel_seconds(
        self, work: Work, device_type: str, device: DeviceModel, threads: int = 1
    ) -> float:
        """Return the time of an op: as measured, or else by a roofline.

        Args:
            work: the op.
            device: the roofline of what computes the op.
            threads: the number of threads of a kernel.
        """
        if self.kernels:
            known = self.kernels.get(kernel_key(work, device_type, threads))
            if known is not None:
                return known
        return device.launch + device.seconds(work.flops, work.nbytes)


DEFAULT = CostModel()


@dataclass(frozen=True, slots=True)
class Work:
    """An op with concrete types on one device."""

    spec: OpSpec
    attrs: Mapping[str, AttrValue]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]

    @property
    def nbytes(self) -> int:
        """The bytes that are read and written."""
        return sum(t.nbytes for t in (*self.inputs, *self.outputs))

    @property
    def flops(self) -> float:
        """The floating-point operations, 0 for ops that only read and write their elements."""
        if self.spec.work is None:
            return 0.0
        return self.spec.work(SbpContext(self.inputs, self.outputs, self.attrs))


def kernel_key(work: Work, device_type: str, threads: int) -> str:
    """Return the key of a measured kernel, equal for ops that the same kernel computes."""
    attrs = repr(sorted(work.attrs.items()))
    digest = hashlib.sha256(attrs.encode(errors="surrogatepass")).hexdigest()[:12]
    types = (" ".join(map(str, side)) for side in (work.inputs, work.outputs))
    return f"{device_type}/{threads} {work.spec.type} {' -> '.join(types)} {digest}"
