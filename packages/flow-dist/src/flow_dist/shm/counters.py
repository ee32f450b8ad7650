"""Counters in shared memory that only grow: one process increments a counter, its peers wait.

Invariants:

- A counter is an aligned 64-bit integer, written by one process.
- The value of a counter never decreases, so a reader that misses a value sees a later one.
- The owner stores a new value after all stores that the value announces.

Loads and stores go through `ctypes`, which CPython's compiler cannot reorder with the copies around
them.  Ordering between processors is left to the hardware: see `TOTAL_STORE_ORDER`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_int64
from functools import partial
from os import sched_yield
from typing import Any

from flow_core.authoring.backends import Launch
from flow_dist.control.waiting import WAIT_POLICY, wait
from flow_dist.shm.memory import Segment, open_segment

TOTAL_STORE_ORDER = platform.machine().lower() in ("x86_64", "amd64")
"""Whether stores become visible in program order, and loads take effect in program order.

On x86, whose memory model is total store order (TSO), a store has release semantics and a load has
acquire semantics without a fence; counters need no more.  Other processors would need fences, so
callers do not use counters on them.
"""

CACHE_LINE = 64
"""Distance in bytes between counters of different writers or readers, to avoid false sharing."""

YIELDS = 100
"""Number of polls, with a `sched_yield` between two polls, before `flow_dist.control.waiting.wait`
takes over."""

WatchedCounter = tuple[c_int64, int]
"""A counter of a peer, and how often to poll it before yielding the core."""


def counter(memory: Any, line: int) -> c_int64:
    """Return the counter at the start of a cache line of shared memory."""
    offset = CACHE_LINE * line
    return c_int64.from_buffer(memory, offset)  # faster than numpy or a memoryview


def watch(counters: Mapping[int, c_int64]) -> tuple[WatchedCounter, ...]:
    """Return peers' counters, given by rank, in the order in which to wait for them.

    Peers that need this process's core come first.
    """
    spins = {rank: WAIT_POLICY.spins_for(rank, counters) for rank in counters}
    return tuple([(counters[rank], spins[rank]) for rank in sorted(spins, key=spins.__getitem__)])


def wait_until(counter: c_int64, count: int, spins: int) -> None:
    """Wait until a peer's counter reaches a count: spin, then yield the core, then block."""
    for _ in range(spins):
        if counter.value >= count:
            return
    WAIT_POLICY.count_yield()
    for _ in range(YIELDS):
        sched_yield()
        if counter.value >= count:
            return
    wait(partial(_reached, counter, count))


def _reached(counter: c_int64, count: int) -> bool:
    return counter.value >= count


class Tokens:
    """Tokens between ranks that share memory: each rank counts the tokens sent to each peer.

    Args:
        rank, size: rank of this process, and number of processes.
        gather: all-gathers bytes over all processes, in rank order.
        peers: the ranks that this process shares memory with.
    """

    def __init__(
        self, rank: int, size: int, gather: Callable[[bytes], Sequence[bytes]], peers: Iterable[int]
    ) -> None:
        self._segment = Segment(CACHE_LINE * size)
        locations = gather(b"%d %d %d" % self._segment.location[:3])
        self._sent, self._received = [0] * size, [0] * size
        self._own = [counter(self._segment.bytes, other) for other in range(size)]
        self._peers = {
            other: counter(open_segment(*map(int, locations[other].split())), rank)
            for other in peers
            if other != rank
        }

    def launch(self, targets: frozenset[int], sources: frozenset[int]) -> Launch:
        """Return a launch that sends a token to each target and waits for one from each source."""
        spins = {rank: WAIT_POLICY.spins_for(rank, sources) for rank in sources}
        return partial(self._exchange, tuple(sorted(targets)), tuple(sorted(spins.items())))

    def _exchange(self, targets: tuple[int, ...], sources: tuple[tuple[int, int], ...]) -> None:
        for target in targets:
            self._sent[target] += 1
            self._own[target].value = self._sent[target]
        for source, spins in sources:
            self._received[source] += 1
            wait_until(self._peers[source], self._received[source], spins)
