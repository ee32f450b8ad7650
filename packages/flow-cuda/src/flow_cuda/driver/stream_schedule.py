"""Work of several streams, of one device or of several, in the order that the plan has it in.

All work comes in one order, in which it would be right on one stream.  Each piece goes to its own
stream, and waits for those pieces of other streams before it that touch the same bytes, as far as
its earlier waits do not imply that.  So the waits follow from the addresses alone: of data that
travel, and of memory that is used again.
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
    """A stream of a device.

    Attributes:
        hardware: the device.
        name: of the stream; empty for the one that computes.
    """

    hardware: Hardware
    name: str = ""

    @property
    def stream(self) -> Any:
        """The stream."""
        return self.hardware.lane(self.name)


@dataclass(frozen=True, slots=True)
class ScheduledWork:
    """A piece of work in its place.

    Attributes:
        work: what is queued.
        lane: where, by position in `Course.lanes`.
        waits: turns before it, by position, that must be over first.
        is_awaited: whether later ones wait for it.
    """

    work: Queued
    lane: int
    waits: tuple[int, ...] = ()
    is_awaited: bool = False


@dataclass(frozen=True, slots=True)
class StreamSchedule:
    """Work on its lanes, forked from the first lane and joined to it again.

    Attributes:
        lanes: the streams; the first one is the caller's.
        turns: the work, in order.
    """

    lanes: tuple[Lane, ...]
    turns: tuple[ScheduledWork, ...]

    def queue(self) -> None:
        """Queues the work; what is queued on the first lane later comes after all of it."""
        streams = [lane.stream for lane in self.lanes]
        first, others = self.lanes[0].hardware, range(1, len(streams))
        if others:
            start = first.record(streams[0])
            for i in others:
                self.lanes[i].hardware.wait(streams[i], start)
        events: dict[int, Any] = {}
        for position, turn in enumerate(self.turns):
            stream, hardware = streams[turn.lane], turn.work.hardware
            for other in turn.waits:
                hardware.wait(stream, events[other])
            turn.work.queue(stream)
            if turn.is_awaited:
                events[position] = hardware.record(stream)
        for i in others:
            first.wait(streams[0], self.lanes[i].hardware.record(streams[i]))


def course(works: Sequence[Queued], first: Hardware) -> StreamSchedule:
    """The course of some work, which begins and ends where a device computes.

    Args:
        works: in an order in which it would be right on one stream.
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
    """The turns that each turn waits for."""
    accesses = [work.touched() for work in works]
    pieces = _Pieces(_shared([(*a.reads, *a.writes) for a in accesses], lanes, count))
    known: list[list[int]] = []
    now = [[-1] * count for _ in range(count)]
    found: list[tuple[int, ...]] = []
    for position, (access, lane) in enumerate(zip(accesses, lanes, strict=True)):
        needed = set(pieces.turns_before(access.reads, access.writes))
        clock, waits = list(now[lane]), []
        for other in sorted(needed, reverse=True):  # late ones may imply early ones
            if clock[lanes[other]] < other:
                waits.append(other)
                clock = list(map(max, clock, known[other]))
        clock[lane] = position
        now[lane] = clock
        known.append(clock)
        found.append(tuple(waits))
        pieces.touch(position, lane, access.reads, access.writes)
    return found


def _shared(spans: Sequence[Iterable[Span]], lanes: Sequence[int], count: int) -> list[Span]:
    """The pieces of memory that several lanes touch, in order, cut wherever a span ends."""
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
    """The same bytes as spans that do not meet."""
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
    """Who touched each piece of shared memory last.

    Attributes:
        pieces: from where to where each is, in order.
        writers: the turn that wrote each.
        readers: turns that read it since, the last one per lane.
    """

    pieces: list[Span]
    writers: dict[int, int] = field(default_factory=dict)
    readers: dict[int, dict[int, int]] = field(default_factory=dict)

    def turns_before(self, reads: Iterable[Span], writes: Iterable[Span]) -> Iterator[int]:
        """The turns that matter for a new one."""
        for piece in self._of((*reads, *writes)):
            if piece in self.writers:
                yield self.writers[piece]
        for piece in self._of(writes):
            yield from self.readers.get(piece, {}).values()

    def touch(
        self, position: int, lane: int, reads: Iterable[Span], writes: Iterable[Span]
    ) -> None:
        """Takes note of a new turn."""
        for piece in self._of(writes):
            self.writers[piece] = position
            self.readers[piece] = {}
        for piece in self._of(reads):
            self.readers.setdefault(piece, {})[lane] = position

    def _of(self, spans: Iterable[Span]) -> Iterator[int]:
        """The pieces that some spans are made of, as far as they are shared."""
        for start, stop in spans:
            first = bisect_left(self.pieces, (start, start))
            yield from range(first, bisect_left(self.pieces, (stop, stop)))
