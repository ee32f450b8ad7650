"""What tasks of different streams must wait for, from what they do to memory.

The order of the plan is one in which everything is right.  A task of another stream may start
as soon as the earlier tasks are over that wrote what it reads, that read what it writes, or
that wrote what it overwrites.  Waits always go back in the order of the plan, so that they
cannot make a circle, and whatever the speed of the streams, every task sees the same bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Access:
    """What a task does to a piece of memory.

    Attributes:
        space: identifies the memory: the arena's device, or a device and the name of a variable.
        low, high: bytes.
        writes: whether it changes them.
    """

    space: Hashable
    low: int
    high: int
    writes: bool


@dataclass(slots=True)
class _Range:
    """Bytes with one history: who wrote them last, and who has read them since, by stream."""

    low: int
    high: int
    writer: int | None = None
    readers: dict[int, int] = field(default_factory=dict)

    def part(self, low: int, high: int) -> _Range:
        return _Range(low, high, self.writer, dict(self.readers))


class _Space:
    """The history of one piece of memory, as ranges in order that do not overlap."""

    def __init__(self) -> None:
        self.ranges: list[_Range] = []
        self.lows: list[int] = []

    def cover(self, low: int, high: int) -> tuple[int, int]:
        """Makes ranges that lie exactly between ``low`` and ``high``; gives them, by index."""
        self._split(low)
        self._split(high)
        at = low
        i = bisect_left(self.lows, low)
        while at < high:
            if i == len(self.lows) or self.lows[i] > at:
                end = min(high, self.lows[i]) if i < len(self.lows) else high
                self.ranges.insert(i, _Range(at, end))
                self.lows.insert(i, at)
            at = self.ranges[i].high
            i += 1
        return bisect_left(self.lows, low), i

    def _split(self, at: int) -> None:
        i = bisect_left(self.lows, at) - 1
        if i >= 0 and self.ranges[i].low < at < self.ranges[i].high:
            old = self.ranges[i]
            self.ranges[i : i + 1] = [old.part(old.low, at), old.part(at, old.high)]
            self.lows.insert(i + 1, at)

    def replace(self, first: int, last: int, new: _Range) -> None:
        """Puts one range in the place of several."""
        self.ranges[first:last] = [new]
        self.lows[first:last] = [new.low]


def find_waits(
    streams: Sequence[int], accesses: Sequence[Sequence[Access]]
) -> list[tuple[int, ...]]:
    """Per task, the tasks of other streams that must be over before it starts.

    They are those that wrote what it reads, and those that used memory that it writes; none
    that the waits before it in its own stream imply.

    Args:
        streams: the stream of each task, in the order of the plan.
        accesses: what each task does to memory.
    """
    spaces: dict[Hashable, _Space] = {}
    known: list[tuple[int, ...]] = []
    last = [-1] * (max(streams, default=0) + 1)
    waits: list[tuple[int, ...]] = []
    for task, (stream, touched) in enumerate(zip(streams, accesses, strict=True)):
        needed: set[int] = set()
        for access in touched:
            needed |= _conflicts(spaces.setdefault(access.space, _Space()), access, task, stream)
        clock = list(known[last[stream]]) if last[stream] >= 0 else [-1] * len(last)
        found = []
        for other in sorted(needed, reverse=True):
            if streams[other] != stream and clock[streams[other]] < other:
                found.append(other)
                clock = list(map(max, clock, known[other]))
        clock[stream] = task
        known.append(tuple(clock))
        last[stream] = task
        waits.append(tuple(sorted(found)))
    return waits


def _conflicts(space: _Space, access: Access, task: int, stream: int) -> set[int]:
    """The tasks that an access comes after; takes note of the access."""
    if access.low >= access.high:
        return set()
    first, last = space.cover(access.low, access.high)
    ranges = space.ranges[first:last]
    needed = {r.writer for r in ranges if r.writer is not None}
    if access.writes:
        needed |= {reader for r in ranges for reader in r.readers.values()}
        space.replace(first, last, _Range(access.low, access.high, task))
    else:
        for r in ranges:
            r.readers[stream] = task
    return needed - {task}
