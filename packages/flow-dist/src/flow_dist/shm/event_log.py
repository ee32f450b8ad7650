"""Running hashes of each process's events, which peers compare with their own without waiting.

The hash of an event covers all events so far, so equal hashes mean equal histories.  Processes on
one host publish their hashes in shared memory; between hosts, the hashes travel in non-blocking
collectives.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import c_int64
from functools import partial
from typing import Any

import numpy as np

from flow_dist.control.waiting import wait
from flow_dist.shm.counters import CACHE_LINE
from flow_dist.shm.memory import Segment, open_segment

HISTORY = 1024
"""Number of hashes that a process keeps for comparisons with processes that are behind."""

PUBLISHED = 4
"""Number of hashes that a process publishes, in one cache line with its event count and alarm."""

KEPT_EVENTS = 8
"""Number of most recent events that a process can describe."""

MAX_PENDING = 64
"""Maximum number of pending collectives; a process further ahead waits."""

Event = tuple[Any, ...]
"""An object with a method ``describe``, and the arguments of that method."""


class EventLog(ABC):
    """The hashes of the events of this process and of its peers; events are numbered from 1.

    Attributes:
        count: number of events of this process.
        events: the last events of this process.
    """

    def __init__(self) -> None:
        self.count = 0
        self.events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._chain = 0

    @abstractmethod
    def post(self, key: object, event: Event) -> None:
        """Record an event.

        Args:
            key: a number or a tuple of numbers, equal in all processes for the same event.
            event: describes the event in messages.
        """

    def quick_difference(self) -> int | None:
        """Return the number of an event that differs in a neighbor, else None; the cost is low."""
        return self.difference()

    @abstractmethod
    def difference(self) -> int | None:
        """Return the number of an event that differs in any other process, else None."""

    def drain(self) -> None:  # noqa: B027 - logs in shared memory have nothing pending
        """Wait until all pending collectives have completed."""


class SharedEventLog(EventLog):
    """Hashes in shared memory, for processes that all share memory with each other.

    A reader loads the count before and after the hashes, and ignores the hashes if the count has
    changed.  The reader never compares the slot of the next event, which the owner writes before it
    advances the count.  This protocol relies on `flow_dist.shm.counters.TOTAL_STORE_ORDER`.

    Args:
        own: this process's cache line: event count, alarm, and the last hashes.
        others: the cache lines of all other processes, neighbors first.
        neighbors: number of processes at the start of ``others`` that are neighbors.
    """

    def __init__(self, own: Any, others: Sequence[Any], neighbors: int) -> None:
        super().__init__()
        self._own = own
        self._others = tuple(others)
        self._neighbors = self._others[:neighbors]
        self._history = [0] * HISTORY

    def post(self, key: object, event: Event) -> None:
        """Record an event as `EventLog.post` does; the hash is published before the count."""
        count = self.count + 1
        self._chain = value = hash((self._chain, key))
        self._history[count % HISTORY] = value
        self.events.append(event)
        self.count = count  # last: another thread may read
        own = self._own
        own[_HASHES + count % PUBLISHED] = value
        own[_COUNT] = count

    def quick_difference(self) -> int | None:
        """Compare with the neighbors only: if all neighbors agree, all processes agree."""
        count, history = self.count, self._history
        for other in self._neighbors:
            other_count = other[_COUNT]
            common = other_count if other_count < count else count
            if other[_HASHES + common % PUBLISHED] != history[common % HISTORY]:
                return self.difference()  # also checks whether the slot has been overwritten
        return None

    def difference(self) -> int | None:
        """Compare with all processes; after a difference, raise the alarm for all processes."""
        for other in self._others:
            number = self._compare(other) or other[_ALARM]
            if number:
                self._own[_ALARM] = number
                return int(number)
        return None

    def _compare(self, other: Any) -> int:
        """Return the number of the first event in which another process differs, else 0."""
        other_count = other[_COUNT]
        common = min(other_count, self.count)
        oldest = max(other_count - PUBLISHED + 2, self.count - HISTORY + 1, 1)
        hashes = [(n, other[_HASHES + n % PUBLISHED]) for n in range(oldest, common + 1)]
        if other[_COUNT] != other_count:  # slots may have been overwritten
            return 0
        return next((n for n, value in hashes if value != self._history[n % HISTORY]), 0)


_COUNT, _ALARM, _HASHES = 0, 1, 2


def shared_event_logs(
    lanes: int, rank: int, size: int, gather: Callable[[bytes], Sequence[bytes]]
) -> tuple[EventLog, ...]:
    """Create one log per lane in shared memory; a collective of all processes.

    Args:
        lanes: number of independent event orders.
        rank, size: rank of this process, and number of processes.
        gather: all-gathers bytes over all processes, in rank order.
    """
    segment = Segment(lanes * CACHE_LINE)
    locations = gather(b"%d %d %d" % segment.location[:3])
    after = [(rank + step) % size for step in range(1, size)]
    nearest = list(dict.fromkeys([after[0], after[-1]]))
    order = [*nearest, *(other for other in after if other not in nearest)]
    memories = [open_segment(*map(int, locations[other].split())) for other in order]
    gather(b"")  # all have mapped the segment, so its descriptor may be closed
    return tuple(
        SharedEventLog(
            _line(segment.bytes, lane), [_line(m, lane) for m in memories], neighbors=len(nearest)
        )
        for lane in range(lanes)
    )


def _line(memory: Any, lane: int) -> Any:
    return (c_int64 * (_HASHES + PUBLISHED)).from_buffer(memory, lane * CACHE_LINE)


class AllgatherEventLog(EventLog):
    """An event log whose hashes travel in non-blocking all-gathers, between any hosts.

    Args:
        comm: a communicator of all processes, used for this log only.
    """

    def __init__(self, comm: Any) -> None:
        super().__init__()
        self._comm, self._rank = comm, int(comm.rank)
        self._rows = np.zeros((MAX_PENDING, int(comm.size)), np.int64)
        self._sent = np.zeros((MAX_PENDING, 1), np.int64)
        self._pending: deque[tuple[int, Any]] = deque()
        self._lock = threading.Lock()
        self._found: int | None = None

    def post(self, key: object, event: Event) -> None:
        """Record an event as `EventLog.post` does; wait while too many collectives are pending."""
        if len(self._pending) == MAX_PENDING:
            wait(partial(self._has_fewer_pending, MAX_PENDING))
        with self._lock:
            self.count = count = self.count + 1
            self._chain = hash((self._chain, key))
            self.events.append(event)
            slot = count % MAX_PENDING
            self._sent[slot] = self._chain
            request = self._comm.Iallgather(self._sent[slot], self._rows[slot])
            self._pending.append((count, request))

    def _has_fewer_pending(self, limit: int) -> bool:
        self.difference()
        return len(self._pending) < limit

    def difference(self) -> int | None:
        """Compare the hashes of completed collectives, unless another thread is doing so."""
        if self._lock.acquire(blocking=False):
            try:
                self._complete()
            finally:
                self._lock.release()
        return self._found

    def _complete(self) -> None:
        while self._pending and self._pending[0][1].Test():
            number, _ = self._pending.popleft()
            row = self._rows[number % MAX_PENDING]
            if self._found is None and (row != row[self._rank]).any():
                self._found = number

    def drain(self) -> None:
        """Wait until all collectives have completed, as MPI_Finalize requires."""
        wait(partial(self._has_fewer_pending, 1))
