"""Numbers in shared memory that only grow: one process counts, and others wait for it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_int64
from functools import partial
from os import sched_yield
from typing import Any

from flow_core.authoring.backends import Launch
from flow_dist.control.waiting import PATIENCE, wait
from flow_dist.shm.memory import Segment, open_segment

IN_ORDER = platform.machine().lower() in ("x86_64", "amd64")
"""Whether others see what a process stores in the order in which it does so, without barriers."""

LINE = 64
"""Bytes between counters that different processes look at, or one while others are written."""

SOON = 100
"""Looks with the core offered to others in between, before one waits as for anything else."""

Watched = tuple[c_int64, int]
"""A counter of another process, and how often to look at it before the core is offered."""


def counter(memory: Any, line: int) -> c_int64:
    """The counter at the beginning of a line of shared memory."""
    return c_int64.from_buffer(memory, LINE * line)  # quicker than through numpy or a memoryview


def watched(counters: Mapping[int, c_int64]) -> tuple[Watched, ...]:
    """Counters of other processes, by rank, in the order in which to wait for them.

    First of those which need this process's core.
    """
    looks = {rank: PATIENCE.looks_for(rank, counters) for rank in counters}
    return tuple([(counters[rank], looks[rank]) for rank in sorted(looks, key=looks.__getitem__)])


def until(counter: c_int64, count: int, looks: int) -> None:
    """Waits until another process has counted so far; looks at once so many times."""
    for _ in range(looks):
        if counter.value >= count:
            return
    PATIENCE.count()
    for _ in range(SOON):
        sched_yield()
        if counter.value >= count:
            return
    wait(partial(_reached, counter, count))


def _reached(counter: c_int64, count: int) -> bool:
    return counter.value >= count


class Tokens:
    """Tokens between neighbours, as counters: how many each has given each other.

    Args:
        rank, size: this process's rank, and how many processes there are.
        gather: gives what all processes say, in the order of the ranks.
        neighbours: the ranks that this process shares memory with.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        gather: Callable[[bytes], Sequence[bytes]],
        neighbours: Iterable[int],
    ) -> None:
        self._segment = Segment(LINE * size)
        told = gather(b"%d %d %d" % self._segment.place[:3])
        self._given, self._taken = [0] * size, [0] * size
        self._own = [counter(self._segment.bytes, other) for other in range(size)]
        self._theirs = {
            other: counter(open_segment(*map(int, told[other].split())), rank)
            for other in neighbours
            if other != rank
        }

    def launch(self, targets: frozenset[int], sources: frozenset[int]) -> Launch:
        """Gives some processes a token, and waits for one of each of others: a launch."""
        looks = {rank: PATIENCE.looks_for(rank, sources) for rank in sources}
        return partial(self._exchange, tuple(sorted(targets)), tuple(sorted(looks.items())))

    def _exchange(self, targets: tuple[int, ...], sources: tuple[tuple[int, int], ...]) -> None:
        for target in targets:
            self._given[target] += 1
            self._own[target].value = self._given[target]
        for source, looks in sources:
            self._taken[source] += 1
            until(self._theirs[source], self._taken[source], looks)
