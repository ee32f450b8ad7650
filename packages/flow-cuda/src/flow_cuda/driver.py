"""The driver: arenas, streams, copies through pinned memory, and steps as captured graphs.

It is written against `flow_cuda.hardware.Hardware` and so runs on a device and in a rehearsal.
Kernels are queued on one compute stream; copies to the device and back have streams of their own,
joined to it by events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.device import Launch
from flow_cuda.arrays import DeviceArray
from flow_cuda.batch import joined
from flow_cuda.capture import Part, parts
from flow_cuda.hardware import Hardware, Memory
from flow_cuda.launch import HostNumber
from flow_cuda.staging import Staging

CHUNK = 8 << 20
"""Bytes of a piece of pinned memory; larger copies are cut into such pieces."""


@dataclass(frozen=True, slots=True)
class GpuArena:
    """One allocation of a device."""

    nbytes: int
    memory: Memory
    hardware: Hardware

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """The C-contiguous array of ``shape`` that starts at byte ``offset``."""
        address = self.memory.address + offset
        return DeviceArray(self.memory, address, tuple(shape), np.dtype(dtype), self.hardware)


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """A point in a stream."""

    hardware: Hardware
    handle: Any

    def wait(self) -> None:
        """Blocks the calling thread until it has happened."""
        self.hardware.synchronize(self.handle)


@dataclass(frozen=True, slots=True)
class GpuStream:
    """An in-order queue."""

    hardware: Hardware
    handle: Any

    def record(self) -> GpuEvent:
        """An event behind all that is queued."""
        return GpuEvent(self.hardware, self.hardware.record(self.handle))

    def wait_event(self, event: Any) -> None:
        """Makes later work wait; an event of another device type blocks the caller instead."""
        if isinstance(event, GpuEvent):
            self.hardware.wait(self.handle, event.handle)
        else:
            event.wait()

    def synchronize(self) -> None:
        """Blocks until all queued work is done."""
        self.record().wait()


class GpuDriver:
    """`flow_core.device.Driver` of one GPU.

    Args:
        hardware: the device.
        chunk: bytes of a piece of pinned memory.
    """

    def __init__(self, hardware: Hardware, chunk: int = CHUNK) -> None:
        self.hardware = hardware
        self._to = Staging(hardware, "h2d", chunk)
        self._back = Staging(hardware, "d2h", chunk)
        self._numbers = Staging(hardware, "numbers", 64, stream=hardware.compute, slots=64)

    def allocate(self, nbytes: int) -> GpuArena:
        """One plain allocation."""
        return GpuArena(nbytes, self.hardware.allocate(nbytes), self.hardware)

    def stream(self, name: str) -> GpuStream:
        """A new stream."""
        return GpuStream(self.hardware, self.hardware.stream(name))

    def copy_in(self, target: DeviceArray, source: Any) -> None:
        """Copies a host array to the device, behind all that computes with the old numbers.

        The source may change as soon as this returns; the copy itself may still be under way.
        """
        host = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        if not host.size:
            return
        hardware = self.hardware
        hardware.wait(self._to.stream, hardware.record(hardware.compute))
        self._to.upload(target.address, host)
        hardware.wait(hardware.compute, hardware.record(self._to.stream))

    def copy_out(self, source: DeviceArray) -> Any:
        """A new host array with the numbers that all queued work leaves."""
        result = np.empty(source.shape, source.dtype)
        if source.nbytes:
            hardware = self.hardware
            hardware.wait(self._back.stream, hardware.record(hardware.compute))
            self._back.download(source.address, result.reshape(-1).view(np.uint8))
        return result

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """A step: runs of launches as graphs, captured when it is called the second time."""
        return Step(self, parts(joined(launches)))

    def memory(self) -> int | None:
        """Bytes that can still be allocated."""
        return self.hardware.free_bytes()

    def upload(self, numbers: Sequence[HostNumber]) -> None:
        """Queues copies of numbers of the host before what is queued next."""
        for number in numbers:
            self._numbers.upload(number.device.address, number.host.reshape(1).view(np.uint8))


class Step:
    """What a step does: graphs, and calls of the host between them.

    The first call queues launch by launch, so that libraries make their plans outside of a
    capture, and what runs only once is never captured.
    """

    def __init__(self, driver: GpuDriver, cut: Sequence[Part]) -> None:
        self.parts = tuple(cut)
        self._driver = driver
        found = {id(n): n for part in cut for work in part.queued for n in work.numbers}
        self._numbers = tuple(found.values())
        self._calls = 0
        self._graphs: list[Any] = []

    def __call__(self) -> None:
        self._driver.upload(self._numbers)
        self._calls += 1
        if self._calls == 1:
            for part in self.parts:
                part.run(self._driver.hardware.compute)
            return
        if self._calls == 2:
            self._graphs = [self._captured(part) for part in self.parts]
        for part, graph in zip(self.parts, self._graphs, strict=True):
            self._replay(part, graph)

    def _captured(self, part: Part) -> Any:
        hardware = self._driver.hardware
        if not part.captured:
            return None
        hardware.begin_capture(hardware.compute)
        try:
            part.run(hardware.compute)
        finally:
            graph = hardware.end_capture(hardware.compute)
        return graph

    def _replay(self, part: Part, graph: Any) -> None:
        hardware = self._driver.hardware
        if graph is None:
            part.run(hardware.compute)
        else:
            hardware.replay(hardware.compute, graph)


def CudaDriver(index: int) -> GpuDriver:  # named in records like a class
    """The driver of a CUDA device, over CuPy."""
    from flow_cuda.cupy_hardware import CupyHardware

    return GpuDriver(CupyHardware(index))
