"""Schedule work on several streams of one or more devices, in a given sequential order.

The input order is valid on a single stream.  Each item goes to its own stream and waits for the
earlier items on other streams that access the same bytes, unless an earlier wait already implies
it.  All waits follow from address ranges, and so cover data dependencies and memory reuse.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from flow_cuda.device.hardware import Hardware, Span
from flow_cuda.device.launch import Queued


@dataclass(frozen=True, slots=True)
class Lane:
    """A named stream of a device.

    Attributes:
        hardware: the device.
        name: name of the stream; empty for the compute stream.
    """

    hardware: Hardware
    name: str = ""

    @property
    def stream(self) -> Any:
        """The native stream."""
        return self.hardware.lane(self.name)


@dataclass(frozen=True, slots=True)
class ScheduledWork:
    """An item of work with its stream and dependencies.

    Attributes:
        work: what is queued.
        lane: index in `StreamSchedule.lanes`.
        waits: indices of earlier items that must complete first.
        is_awaited: whether later items wait for it.
    """

    work: Queued
    lane: int
    waits: tuple[int, ...] = ()
    is_awaited: bool = False


@dataclass(frozen=True, slots=True)
class StreamSchedule:
    """Work on streams that fork from the first one and join it at the end.

    Attributes:
        lanes: the streams; the first one is the caller's.
        items: the work, in order.
    """

    lanes: tuple[Lane, ...]
    items: tuple[ScheduledWork, ...]

    def queue(self) -> None:
        """Queue the work; work queued later on the first stream runs after all of it."""
        streams = [lane.stream for lane in self.lanes]
        first, others = self.lanes[0].hardware, range(1, len(streams))
        if others:
            start = first.record(streams[0])
            for i in others:
                self.lanes[i].hardware.wait(streams[i], start)
        events: dict[int, Any] = {}
        for position, item in enumerate(self.items):
            stream, hardware = streams[item.lane], item.work.hardware
            for other in item.waits:
                hardware.wait(stream, events[other])
            item.work.queue(stream)
            if item.is_awaited:
                events[position] = hardware.record(stream)
        for i in others:
            first.wait(streams[0], self.lanes[i].hardware.record(streams[i]))


def schedule(works: Sequence[Queued], first: Hardware) -> StreamSchedule:
    """Return the schedule of some work, which starts and ends on a device's compute stream.

    Args:
        works: the work, in an order that is valid on a single stream.
        first: the device.
    """
    lanes: dict[tuple[int, str], int] = {(id(first), ""): 0}
    of_work = [lanes.setdefault((id(w.hardware), w.lane), len(lanes)) for w in works]
    devices = {id(w.hardware): w.hardware for w in works} | {id(first): first}
    made = tuple(Lane(devices[device], name) for device, name in lanes)
    if len(made) == 1:
        return StreamSchedule(made, tuple(ScheduledWork(work, 0) for work in works))
    waits = _waits(works, of_work, len(made))
    awaited = {other for row in waits for other in row}
    rows = zip(works, of_work, waits, strict=True)
    return StreamSchedule(
        made, tuple(ScheduledWork(w, k, row, i in awaited) for i, (w, k, row) in enumerate(rows))
    )


def _waits(works: Sequence[Queued], lanes: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Return, for each item, the items that it waits for."""
    accesses = [work.touched() for work in works]
    pieces = _Pieces(_shared_ranges([(*a.reads, *a.writes) for a in accesses], lanes, count))
    known: list[list[int]] = []
    now = [[-1] * count for _ in range(count)]
    found: list[tuple[int, ...]] = []
    for position, (access, lane) in enumerate(zip(accesses, lanes, strict=True)):
        needed = set(pieces.dependencies(access.reads, access.writes))
        clock, waits = list(now[lane]), []
        for other in sorted(needed, reverse=True):  # later items may imply earlier ones
            if clock[lanes[other]] < other:
                waits.append(other)
                clock = list(map(max, clock, known[other]))
        clock[lane] = position
        now[lane] = clock
        known.append(clock)
        found.append(tuple(waits))
        pieces.record(position, lane, access.reads, access.writes)
    return found


def _shared_ranges(spans: Sequence[Iterable[Span]], lanes: Sequence[int], count: int) -> list[Span]:
    """Return the address ranges that several streams access, sorted, split at every boundary."""
    of_lane: list[list[Span]] = [[] for _ in range(count)]
    for row, lane in zip(spans, lanes, strict=True):
        of_lane[lane].extend(row)
    borders = sorted({x for row in spans for span in row for x in span})
    change = dict.fromkeys(borders, 0)
    for row in of_lane:
        for low, high in _union(row):
            change[low] += 1
            change[high] -= 1
    depths = accumulate(change[border] for border in borders)
    return [piece for piece, depth in zip(pairwise(borders), depths, strict=False) if depth > 1]


def _union(spans: Iterable[Span]) -> Iterator[Span]:
    """Merge overlapping and adjacent ranges."""
    low = high = -1
    for start, stop in sorted(spans):
        if start > high:
            if high > low:
                yield low, high
            low, high = start, stop
        high = max(high, stop)
    if high > low:
        yield low, high


@dataclass(slots=True)
class _Pieces:
    """The last accesses of each shared address range.

    Attributes:
        pieces: the ranges, sorted.
        writers: the last item that wrote each.
        readers: items that read it since, the last one per stream.
    """

    pieces: list[Span]
    writers: dict[int, int] = field(default_factory=dict)
    readers: dict[int, dict[int, int]] = field(default_factory=dict)

    def dependencies(self, reads: Iterable[Span], writes: Iterable[Span]) -> Iterator[int]:
        """Yield the items that a new item depends on."""
        for piece in self._indices_of((*reads, *writes)):
            if piece in self.writers:
                yield self.writers[piece]
        for piece in self._indices_of(writes):
            yield from self.readers.get(piece, {}).values()

    def record(
        self, position: int, lane: int, reads: Iterable[Span], writes: Iterable[Span]
    ) -> None:
        """Record the accesses of a new item."""
        for piece in self._indices_of(writes):
            self.writers[piece] = position
            self.readers[piece] = {}
        for piece in self._indices_of(reads):
            self.readers.setdefault(piece, {})[lane] = position

    def _indices_of(self, spans: Iterable[Span]) -> Iterator[int]:
        """Yield the shared ranges contained in some ranges."""
        for start, stop in spans:
            first = bisect_left(self.pieces, (start, start))
            yield from range(first, bisect_left(self.pieces, (stop, stop)))
