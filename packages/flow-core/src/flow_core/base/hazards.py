"""Hazard analysis: the waits that keep the streams of a program in order where they share memory.

The tasks are given in an order that is correct on a single stream.  A task must wait for the tasks
of other streams that wrote what it reads (read after write), read what it overwrites (write after
read), or wrote what it overwrites (write after write).  Each task has a vector clock: for each
stream, the last task that is known to be finished when the task ends.  The clocks serve to omit
waits that other waits imply.

Invariants: the ranges of a space are sorted and disjoint; waits point backwards in the order, so
they cannot form a cycle; no wait is redundant.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Access:
    """A read or write of a range of memory."""

    # Identifies the memory: an arena's device, or a device and the name of a variable.
    space: Hashable
    low: int  # the first byte of the range
    high: int  # the byte after the last one
    writes: bool  # whether the access changes the bytes


@dataclass(slots=True)
class _Range:
    """Bytes with a common history: the last writer, and each stream's last reader since then."""

    low: int
    high: int
    writer: int | None = None
    readers: dict[int, int] = field(default_factory=dict)

    def part(self, low: int, high: int) -> _Range:
        return _Range(low, high, self.writer, dict(self.readers))


class _Space:
    """The history of an address space, as sorted ranges that do not overlap."""

    def __init__(self) -> None:
        self.ranges: list[_Range] = []
        self.lows: list[int] = []

    def cover(self, low: int, high: int) -> tuple[int, int]:
        """Split ranges at ``low`` and ``high``, fill gaps, and return the index range between."""
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
        """Replace several ranges with a single one."""
        self.ranges[first:last] = [new]
        self.lows[first:last] = [new.low]


def find_waits(
    streams: Sequence[int], accesses: Sequence[Iterable[Access]]
) -> list[tuple[int, ...]]:
    """Return, for each task, the tasks of other streams that must be finished before it starts.

    >>> write, read = Access("arena", 0, 8, True), Access("arena", 4, 8, False)
    >>> find_waits([0, 1, 1, 0], [[write], [read], [read], [write]])
    [(), (0,), (), (2,)]
    """
    spaces: dict[Hashable, _Space] = {}
    known: list[tuple[int, ...]] = []  # the vector clock at the end of each task
    last = [-1] * (max(streams, default=0) + 1)
    waits: list[tuple[int, ...]] = []
    for task, (stream, touched) in enumerate(zip(streams, accesses, strict=True)):
        needed: set[int] = set()
        for access in touched:
            needed |= _conflicts(spaces.setdefault(access.space, _Space()), access, task, stream)
        clock = list(known[last[stream]]) if last[stream] >= 0 else [-1] * len(last)
        waited_for = []
        for other in sorted(needed, reverse=True):  # late tasks may imply earlier ones
            if streams[other] != stream and clock[streams[other]] < other:
                waited_for.append(other)
                clock = list(map(max, clock, known[other]))
        clock[stream] = task
        known.append(tuple(clock))
        last[stream] = task
        waits.append(tuple(sorted(waited_for)))
    return waits


def _conflicts(space: _Space, access: Access, task: int, stream: int) -> set[int]:
    """Return the tasks that an access must come after, and record the access."""
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
