"""A plugin whose "gpu" devices are simulated on the host and run the kernels of real GPUs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from cuda_references import REFERRED

from cuda_simulator import host_compiler
from cuda_simulator.cudnn import SimulatedCudnn
from cuda_simulator.hardware import Machine, Simulator, simulated_plans
from flow_core.authoring.specs import (
    Available,
    Device,
    DeviceSpec,
    KernelSpec,
    Lazy,
    OpSpec,
    PassSpec,
    Unavailable,
)
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.families import kernels
from flow_cuda.passes.attention import JoinAttention
from flow_cuda.passes.convolutions import Convolutions
from flow_cuda.passes.norms import Norms
from flow_cuda.plugin import ALIGNMENT, PASSES

FLOW_PLUGIN_API = "1.0"


@functools.cache
def compiler() -> host_compiler.HostCompiler:
    """Return the host compiler shared by all simulators of a process."""
    return host_compiler.HostCompiler()


class Drivers:
    """The drivers of simulated devices; the devices of one session share a machine.

    A second request for the same device comes from a new session and therefore starts a new
    machine.
    """

    def __init__(self) -> None:
        self._machine = Machine()
        self._given: set[int] = set()

    def __call__(self, device: Device) -> GpuDriver:
        if device.index in self._given:
            self._machine, self._given = Machine(), set()
        self._given.add(device.index)
        hardware = Simulator(device.index, compiler=compiler(), machine=self._machine)
        return GpuDriver(hardware, chunk=1 << 20)


@functools.cache
def dnn_plans() -> DnnPlans:
    """Return the planner of the simulated cuDNN, for compiling programs."""
    return simulated_plans(SimulatedCudnn())


def probe(count: int = 4) -> Available | Unavailable:
    """Report ``count`` devices if a host compiler is installed."""
    if host_compiler.compiler() is None:
        return Unavailable("no C++ compiler for the simulated device", "install g++")
    return Available(count, "simulated on the host")


def flow_register_devices() -> tuple[DeviceSpec, ...]:
    """Return the device type "gpu"."""
    spec = DeviceSpec(
        "gpu", partial(probe), Drivers(),
        records_launches=True, alignment=ALIGNMENT, host_fallback="warn",
    )  # fmt: skip
    return (spec,)


def flow_register_ops() -> tuple[OpSpec, ...]:
    """Return the ops that the passes create."""
    return REFERRED


def flow_register_passes() -> tuple[PassSpec, ...]:
    """Return the passes of flow-cuda."""
    loads: dict[str, Lazy] = {
        "cudnn_convolutions": lambda: Convolutions(dnn_plans),
        "cudnn_norms": lambda: Norms(dnn_plans),
        "cudnn_attention": lambda: JoinAttention(dnn_plans),
    }
    return tuple(replace(spec, load=loads.get(spec.name, spec.load)) for _, spec in PASSES)


def flow_register_kernels() -> Iterator[KernelSpec]:
    """Return the kernels of real GPUs."""
    yield from kernels()
