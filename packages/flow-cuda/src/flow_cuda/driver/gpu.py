"""The driver of a GPU: arenas, streams, copies through pinned memory, and steps as CUDA graphs.

The driver uses only the `flow_cuda.device.hardware.Hardware` protocol and therefore runs on a GPU
and on the simulator.  Each device has a compute stream for kernels and separate streams for
host-to-device and device-to-host copies, synchronized by events.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.authoring.backends import Driver, Launch
from flow_core.base.errors import FlowError
from flow_core.base.garbage import gc_paused
from flow_cuda.device.arrays import DeviceArray, GpuArena
from flow_cuda.device.batch import merge_launches
from flow_cuda.device.config import settings
from flow_cuda.device.hardware import Hardware
from flow_cuda.device.launch import HostNumber, Queued, advance
from flow_cuda.device.staging import HostCopies, Staging
from flow_cuda.driver.capture import Part, parts

CHUNK = 8 << 20
"""The size in bytes of a staging buffer in pinned memory; larger copies are split."""


class LaunchError(FlowError):
    """The error for a launch that failed while the host waited for it."""


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """An event recorded on a stream."""

    hardware: Hardware
    handle: Any

    def wait(self) -> None:
        """Block the calling thread until the event has completed."""
        self.hardware.synchronize(self.handle)


@dataclass(frozen=True, slots=True)
class GpuStream:
    """An in-order queue of device work."""

    hardware: Hardware
    handle: Any

    def record(self) -> GpuEvent:
        """Record an event that completes after all work queued so far."""
        return GpuEvent(self.hardware, self.hardware.record(self.handle))

    def wait_event(self, event: Any) -> None:
        """Make later work wait for an event; block the caller if it is of another device type."""
        if isinstance(event, GpuEvent):
            self.hardware.wait(self.handle, event.handle)
        else:
            event.wait()

    def synchronize(self) -> None:
        """Block until all queued work has completed."""
        self.record().wait()


class GpuDriver(Driver):
    """`flow_core.device.Driver` of one GPU.

    Attributes:
        asynchronous: True, because launches only enqueue work.
        compile_group: the GPUs of a process form one group, so that one graph can span them.
    """

    asynchronous = True
    compile_group = "cuda"

    def __init__(self, hardware: Hardware, chunk: int = CHUNK) -> None:
        self.hardware = hardware
        self._host_copies = HostCopies(hardware, chunk)
        hardware.uploads = Staging(hardware, "numbers", 64, stream=hardware.compute, slots=64)

    def allocate(self, nbytes: int) -> GpuArena:
        return GpuArena(nbytes, self.hardware.allocate(nbytes), self.hardware)

    def stream(self, name: str) -> GpuStream:
        """Return the compute stream, whatever the name: all launches of plans are ordered on it."""
        return GpuStream(self.hardware, self.hardware.compute)

    def copy_in(self, target: DeviceArray, source: Any) -> None:
        """Copy a host array to the device; see `flow_cuda.device.staging.HostCopies.upload`."""
        self._host_copies.upload(target, source)

    def copy_out(self, source: DeviceArray, target: Any = None) -> Any:
        """Wait for queued work, then copy an array into ``target`` (default: a new host array)."""
        result = np.empty(source.shape, source.dtype) if target is None else target
        self._host_copies.download(source, result)
        return result

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """Compile a step; its second call captures sequences of launches as CUDA graphs.

        The launches are in a valid execution order and may belong to several devices of the
        process.
        """
        return Step(self, launches)

    def memory(self) -> int | None:
        """Return the number of bytes that can still be allocated."""
        return self.hardware.free_bytes()

    def allocations(self) -> int:
        """Return the number of allocations of device and page-locked memory so far."""
        return self.hardware.allocations


class Step:
    """A compiled step on one or several devices: CUDA graphs, and host calls between them.

    The first call queues each launch separately, so that libraries do their planning outside of a
    capture and one-time work is not captured. From the second call on, the work of all devices
    between two host calls is one graph; work that cannot be captured is queued at each call, after
    a warning.  Host numbers are copied to a device only if the device
    copy is not up to date.  If several steps read one value of a number, the last of these steps
    increments the device copy; the first calls of the steps determine which step is the last.

    Args:
        driver: the driver of the device that launches the graphs.
        launches: the launches, in a valid execution order.

    Attributes:
        kept: host numbers that a later step reads at the same value, as of the second call.
    """

    def __init__(self, driver: GpuDriver, launches: Sequence[Launch]) -> None:
        self._first = driver.hardware
        self._launches = tuple(launches)
        self._numbers = numbers_of(launches)
        self.kept: set[HostNumber] = set()
        self._synchronous = settings().synchronous
        self._calls = 0
        self._graphs: list[Any] = []
        self._arrange()

    def _arrange(self) -> None:
        """Split the step into parts."""
        self._advanced = [number for number in self._numbers if number not in self.kept]
        counts = map(advance, self._advanced)
        self.parts = parts(merge_launches([*self._launches, *counts]))
        works = [work for part in self.parts for work in part.queued]
        self._others = others_of(works, self._first)

    def __call__(self) -> None:
        if self._calls == 1 and self.kept:
            self._arrange()
        values = [number.host.item() for number in self._numbers]
        for number, value in zip(self._numbers, values, strict=True):
            if number.held != value:
                upload(number)
            number.held = None
            if self._calls == 0:
                number.note_reader(self, value)
        self._queue()
        for number, value in zip(self._numbers, values, strict=True):
            number.held = value + (number in self._advanced)

    def _queue(self) -> None:
        self._calls += 1
        if self._calls <= 2:  # later calls launch nothing new
            for hardware in (self._first, *self._others):
                hardware.load()
        if self._calls == 1:
            self._graphs = [None] * len(self.parts)
        elif self._calls == 2:
            self._graphs = list(map(self._capture, self.parts))
        for part, graph in zip(self.parts, self._graphs, strict=True):
            if part.queued:
                self._run(part, graph)
            for call in part.calls:
                call()

    def _capture(self, part: Part) -> Any:
        """Return the graph of a part; None if the part is not to be captured.

        If the capture fails, warn and return None.
        """
        if self._synchronous or not part.captured:
            return None
        try:
            with gc_paused():  # freeing memory invalidates a capture
                return self._record(part)
        except Exception as error:  # noqa: BLE001 - libraries raise errors of any type
            text = (
                f"a part of {len(part.queued)} launches was not captured and stays eager: {error}"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return None

    def _record(self, part: Part) -> Any:
        first = self._first
        first.begin_capture(first.compute)
        try:
            queue_works(part.queued, first)
        except BaseException:
            with suppress(Exception):  # an invalidated capture raises an error
                first.end_capture(first.compute)
            raise
        return first.end_capture(first.compute)

    def _run(self, part: Part, graph: Any) -> None:
        """Queue a part after the earlier and before the later work of all compute streams."""
        first = self._first
        for other in self._others:
            first.wait(first.compute, other.record(other.compute))
        if graph is None:
            queue_works(part.queued, first, self._synchronous)
        else:
            first.replay(first.compute, graph)
        if self._others:
            over = first.record(first.compute)
            for other in self._others:
                other.wait(other.compute, over)


def others_of(works: Sequence[Queued], first: Hardware) -> tuple[Hardware, ...]:
    """Return the devices of works other than the first device."""
    return tuple({id(w.hardware): w.hardware for w in works if w.hardware is not first}.values())


def queue_works(works: Sequence[Queued], first: Hardware, synchronous: bool = False) -> None:
    """Queue works on the compute streams of their devices, forked from that of the first device.

    The streams join it again.  Works of several devices access different memory, and need no order.

    Args:
        works: the works, in an order that is correct on one stream.
        first: the device on whose stream the works begin and end.
        synchronous: whether to wait for each work.

    Raises:
        LaunchError: a work failed; only if ``synchronous``.
    """
    others = others_of(works, first)
    start = first.record(first.compute) if others else None
    for other in others:
        other.wait(other.compute, start)
    for work in works:
        try:
            work()
            if synchronous:
                work.hardware.synchronize(work.hardware.record(work.hardware.compute))
        except Exception as error:
            if not synchronous:
                raise
            found = f"{type(error).__name__}: {error}"
            raise LaunchError(f"running {work.title}", found=found) from error
    for other in others:
        first.wait(first.compute, other.record(other.compute))


def recorded_parts(launch: Launch) -> tuple[Part, ...]:
    """Return the parts of all GPU steps in a bound step."""
    calls = getattr(launch, "calls", (launch,))
    return tuple(part for call in calls if isinstance(call, Step) for part in call.parts)


def numbers_of(launches: Sequence[Launch]) -> tuple[HostNumber, ...]:
    """Return the host numbers that the launches read."""
    works = [launch for launch in launches if isinstance(launch, Queued)]
    return tuple({id(number): number for work in works for number in work.numbers}.values())


def upload(number: HostNumber) -> None:
    """Queue the copy of a host number on its device's compute stream."""
    where = number.device
    where.hardware.uploads.upload(where.address, number.host.reshape(1).view(np.uint8))
