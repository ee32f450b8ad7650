"""Simulated GPUs whose exchanges go over the fake of NCCL that flow-dist's tests have."""

import ctypes
import threading
from functools import partial
from typing import Any

import numpy as np
from cuda_simulator.hardware import Simulator
from cuda_simulator.host_compiler import HostCompiler, HostFunction
from nccl_fakes import NUMPY, Fabric, FakeNccl, Operation

from flow_cuda.codegen.program import Kernel
from flow_cuda.device.hardware import Access
from flow_cuda.driver.gpu import GpuDriver
from flow_dist.nccl.communicators import Communicators


class OneAtATime(HostCompiler):
    """Kernels of the host know one block and one thread at a time: ranks take turns."""

    turn = threading.Lock()

    def function(self, kernel: Kernel) -> HostFunction:
        with self.turn:
            found = super().function(kernel)

        def call(*arguments: Any) -> Any:
            with self.turn:
                return found.call(*arguments)

        return HostFunction(kernel, call)


COMPILER = OneAtATime()


class Gpu:
    """A simulated device, as the fake of NCCL sees it."""

    def __init__(self, index: int) -> None:
        self.hardware = Simulator(index, compiler=COMPILER)
        self.driver = GpuDriver(self.hardware, chunk=1 << 12)

    @property
    def stream(self) -> int:
        return self.hardware.handle(self.hardware.compute)

    def bytes_at(self, address: int, nbytes: int) -> Any:
        return np.frombuffer((ctypes.c_char * nbytes).from_address(address), np.uint8)

    def array(self, value: Any) -> Any:
        made = self.driver.allocate(value.nbytes).view(0, value.shape, value.dtype)
        self.driver.copy_in(made, value)
        return made


GPUS: dict[int, Gpu] = {}


class QueuedNccl(FakeNccl):
    """A library whose groups are queued on the stream of its one device."""

    gpu: Gpu

    def current(self) -> Gpu:
        return self.gpu

    def submit(self, operations: Any) -> None:
        spans = [span(op, name) for op in operations for name in ("send", "receive")]
        touched = tuple(found for found in spans if found is not None)
        run = partial(self._run, list(operations))
        names = ", ".join(op.name for op in operations)
        self.gpu.hardware.enqueue(self.gpu.stream, names, run, Access(touched, touched))


def span(operation: Operation, name: str) -> tuple[int, int] | None:
    told = operation.arguments
    if name not in told:
        return None
    size = told["count"] * np.dtype(NUMPY[told["dtype"]]).itemsize
    return told[name], told[name] + size


def rank(fabric: Fabric, world: Any) -> tuple[Gpu, Communicators]:
    """A process with one device, and its communicators; of a program of its own without a world."""
    index = 0 if world is None else world.rank
    gpu = GPUS[index] = Gpu(index)
    fabric.groups.append([])
    library = QueuedNccl(fabric, fabric.groups[-1], 23203)
    library.gpu = gpu
    return gpu, Communicators(library, world)
