"""The schedule of work on several streams of one or more devices.

The input is a list of work in an order that is correct on a single stream. Each piece of work names
its stream; it waits for the earlier pieces on other streams that access the same bytes, unless
earlier waits already imply this order (see `flow_core.base.hazards`). The waits are derived from
addresses alone, so they also protect memory that is reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.base.errors import FlowError
from flow_core.base.hazards import Access, find_waits
from flow_cuda.device.hardware import Hardware
from flow_cuda.device.launch import Queued


class LaunchError(FlowError):
    """The error for a launch that failed while the host waited for it."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream of a device.

    Attributes:
        hardware: the device.
        name: the stream's name; empty for the compute stream.
    """

    hardware: Hardware
    name: str = ""

    @property
    def stream(self) -> Any:
        """The stream, created on first use."""
        return self.hardware.lane(self.name)


@dataclass(frozen=True, slots=True)
class ScheduledWork:
    """A piece of work with its stream and with the work for which it waits.

    Attributes:
        work: the work to queue.
        lane: position of the work's stream in `StreamSchedule.lanes`.
        waits: positions of the earlier works that must complete first.
        is_awaited: whether later work waits for this work.
    """

    work: Queued
    lane: int
    waits: tuple[int, ...] = ()
    is_awaited: bool = False


@dataclass(frozen=True, slots=True)
class StreamSchedule:
    """Work on several streams, which fork from the first stream and join it again.

    Attributes:
        lanes: the streams; the first one is the caller's stream.
        works: the work, in order.
    """

    lanes: tuple[Lane, ...]
    works: tuple[ScheduledWork, ...]

    def queue(self, synchronous: bool = False) -> None:
        """Queue the work; what the caller queues next on the first stream runs after all of it.

        Args:
            synchronous: whether to wait for each piece of work.

        Raises:
            LaunchError: work failed; only if ``synchronous``.
        """
        queue = _run_alone if synchronous else _queue
        streams = [lane.stream for lane in self.lanes]
        first, others = self.lanes[0].hardware, range(1, len(streams))
        if others:
            start = first.record(streams[0])
            for i in others:
                self.lanes[i].hardware.wait(streams[i], start)
        events: dict[int, Any] = {}
        for position, scheduled in enumerate(self.works):
            stream, hardware = streams[scheduled.lane], scheduled.work.hardware
            for other in scheduled.waits:
                hardware.wait(stream, events[other])
            queue(scheduled.work, stream)
            if scheduled.is_awaited:
                events[position] = hardware.record(stream)
        for i in others:
            first.wait(streams[0], self.lanes[i].hardware.record(streams[i]))


def _queue(work: Queued, stream: Any) -> None:
    work.queue(stream)


def _run_alone(work: Queued, stream: Any) -> None:
    try:
        work.queue(stream)
        work.hardware.synchronize(work.hardware.record(stream))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        raise LaunchError(f"running {work.title}", found=found) from error


def schedule_streams(works: Sequence[Queued], first: Hardware) -> StreamSchedule:
    """Return a schedule of work that begins and ends on a device's compute stream.

    Args:
        works: the work, in an order that is correct on one stream.
        first: the device on whose compute stream the schedule begins and ends.
    """
    lanes: dict[tuple[int, str], int] = {(id(first), ""): 0}
    of_work = [lanes.setdefault((id(w.hardware), w.lane), len(lanes)) for w in works]
    devices = {id(w.hardware): w.hardware for w in works} | {id(first): first}
    made = tuple(Lane(devices[device], name) for device, name in lanes)
    if len(made) == 1:
        return StreamSchedule(made, tuple(ScheduledWork(work, 0) for work in works))
    waits = find_waits(of_work, [_accesses(work) for work in works])
    awaited = {other for row in waits for other in row}
    rows = zip(works, of_work, waits, strict=True)
    return StreamSchedule(
        made, tuple(ScheduledWork(w, k, row, i in awaited) for i, (w, k, row) in enumerate(rows))
    )


def _accesses(work: Queued) -> Iterator[Access]:
    """Yield the address ranges that work reads and writes; no two devices share addresses."""
    touched = work.touched()
    for spans, writes in ((touched.reads, False), (touched.writes, True)):
        for low, high in spans:
            yield Access("", low, high, writes)
