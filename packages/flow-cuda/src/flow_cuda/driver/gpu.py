"""The driver: arenas, streams, copies through pinned memory, and steps as captured graphs.

It is written against `flow_cuda.device.hardware.Hardware` and so runs on a device and in a
simulator. Each device has a compute stream for its kernels; copies to it and back have streams of
their own, and so have copies between devices, all joined by events.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_cuda.device.arrays import DeviceArray, GpuArena
from flow_cuda.device.batch import joined
from flow_cuda.device.hardware import Hardware
from flow_cuda.device.launch import HostNumber, Queued, advance
from flow_cuda.device.staging import Staging, Traffic
from flow_cuda.driver.capture import Part, parts
from flow_cuda.driver.stream_schedule import StreamSchedule, schedule_streams

CHUNK = 8 << 20
"""Bytes of a piece of pinned memory; larger copies are cut into such pieces."""


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

    Attributes:
        queues: calls of launches only queue work, so that threads would gain nothing.
    """

    queues = True

    def __init__(self, hardware: Hardware, chunk: int = CHUNK) -> None:
        self.hardware = hardware
        self._traffic = Traffic(hardware, chunk)
        hardware.uploads = Staging(hardware, "numbers", 64, stream=hardware.compute, slots=64)

    def allocate(self, nbytes: int) -> GpuArena:
        """One plain allocation."""
        return GpuArena(nbytes, self.hardware.allocate(nbytes), self.hardware)

    def stream(self, name: str) -> GpuStream:
        """A new stream."""
        return GpuStream(self.hardware, self.hardware.stream(name))

    def copy_in(self, target: DeviceArray, source: Any) -> None:
        """Copies a host array to the device; see `flow_cuda.device.staging.Traffic.bring`."""
        self._traffic.bring(target, source)

    def copy_out(self, source: DeviceArray) -> Any:
        """A new host array with the numbers that all queued work leaves."""
        result = np.empty(source.shape, source.dtype)
        self._traffic.fetch(source, result)
        return result

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """A step: runs of launches as graphs, captured when it is called the second time.

        Launches may be those of several devices of the process, in an order that is right.
        """
        counts = [advance(number) for number in numbers_of(launches)]
        return Step(self, parts(joined([*launches, *counts])))

    def memory(self) -> int | None:
        """Bytes that can still be allocated."""
        return self.hardware.free_bytes()


class Step:
    """What a step does on one device or on several: graphs, and calls of the host between them.

    The first call queues launch by launch, so that libraries make their plans outside of a
    capture, and what runs only once is never captured.  From the second call on, what lies
    between two calls of the host is one graph, with the work of all devices in it.  Numbers of the
    host are copied to the devices only where the devices have not counted along.

    Args:
        driver: of the device where graphs are launched.
        cut: the parts.
    """

    def __init__(self, driver: GpuDriver, cut: Sequence[Part]) -> None:
        self.parts = tuple(cut)
        hardware = driver.hardware
        works = [work for part in cut for work in part.queued]
        self._first = hardware
        devices = {id(x): x for work in works for x in (work.hardware, *work.peers)}
        devices.pop(id(hardware), None)
        self._others = tuple(devices.values())
        self._schedules = [schedule_streams(part.queued, hardware) for part in cut]
        self._numbers = numbers_of(works)
        self._calls = 0
        self._graphs: list[Any] = []

    def __call__(self) -> None:
        values = [number.host.item() for number in self._numbers]
        for number, value in zip(self._numbers, values, strict=True):
            if number.held != value:
                upload(number)
            number.held = None
        self._queue()
        for number, value in zip(self._numbers, values, strict=True):
            number.held = value + 1

    def _queue(self) -> None:
        self._calls += 1
        if self._calls == 1:
            self._graphs = [None] * len(self.parts)
        elif self._calls == 2:
            self._graphs = list(map(self._captured, self.parts, self._schedules))
        for part, own, graph in zip(self.parts, self._schedules, self._graphs, strict=True):
            if part.queued:
                self._run(own, graph)
            for call in part.calls:
                call()

    def _captured(self, part: Part, own: StreamSchedule) -> Any:
        if not part.captured:
            return None
        first = self._first
        first.begin_capture(first.compute)
        try:
            own.queue()
        except BaseException:
            with suppress(Exception):  # of a capture that is broken
                first.end_capture(first.compute)
            raise
        return first.end_capture(first.compute)

    def _run(self, own: StreamSchedule, graph: Any) -> None:
        """Queues a part behind all that the devices are to compute, and before what comes later."""
        first = self._first
        for other in self._others:
            first.wait(first.compute, other.record(other.compute))
        if graph is None:
            own.queue()
        else:
            first.replay(first.compute, graph)
        if self._others:
            over = first.record(first.compute)
            for other in self._others:
                other.wait(other.compute, over)


def numbers_of(launches: Sequence[Launch]) -> tuple[HostNumber, ...]:
    """The numbers of the host that some launches read."""
    works = [launch for launch in launches if isinstance(launch, Queued)]
    return tuple({id(number): number for work in works for number in work.numbers}.values())


def upload(number: HostNumber) -> None:
    """Queues the copy of a number of the host before what its device computes next."""
    where = number.device
    where.hardware.uploads.upload(where.address, number.host.reshape(1).view(np.uint8))
