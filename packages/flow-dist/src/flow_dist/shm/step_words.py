"""A word per event of each process, which the others compare with their own without waiting.

A word is made of all events so far, so that whoever has another one has done something else.
Processes of one host leave their words in shared memory; between hosts they travel in collectives
that nobody waits for.
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
from flow_dist.shm.counters import LINE
from flow_dist.shm.memory import Segment, open_segment

HISTORY = 1024
"""Words of this process with which it can compare those of processes that are behind."""

SEEN = 4
"""Words that a process shows the others, in one cache line with their number and its alarm."""

KEPT = 8
"""Events that a process can still describe."""

UNDERWAY = 64
"""Collectives at most that are not over; a process that is further ahead waits."""

Event = tuple[Any, ...]
"""What can describe an event, and the arguments of its ``told``."""


class Words(ABC):
    """The words of this process and of the others, for events in one order, numbered from 1.

    Attributes:
        count: how many events there have been here.
        events: the last ones.
    """

    def __init__(self) -> None:
        self.count = 0
        self.events: deque[Event] = deque(maxlen=KEPT)
        self._chain = 0

    @abstractmethod
    def post(self, key: object, event: Event) -> None:
        """Record an event.

        Args:
            key: a number, or a tuple of numbers, the same in all processes.
            event: what can describe it.
        """

    def differ(self) -> int | None:
        """The number of an event that is another one in a neighbour, at next to no cost."""
        return self.search()

    @abstractmethod
    def search(self) -> int | None:
        """The number of an event that differs in any other process."""

    def finish(self) -> None:  # noqa: B027 - words in shared memory have nothing underway
        """Wait until all others have come as far, where a collective has to end."""


class SharedWords(Words):
    """Words in shared memory, for processes that all share some.

    Args:
        own: this process's cache line: the number of its last event, its alarm, and some words.
        others: those of all others, neighbours first.
        neighbours: how many neighbours there are.
    """

    def __init__(self, own: Any, others: Sequence[Any], neighbours: int) -> None:
        super().__init__()
        self._own = own
        self._others = tuple(others)
        self._neighbours = self._others[:neighbours]
        self._history = [0] * HISTORY

    def post(self, key: object, event: Event) -> None:
        """See `Words.post`; the word is there before its number."""
        count = self.count + 1
        self._chain = word = hash((self._chain, key))
        self._history[count % HISTORY] = word
        self.events.append(event)
        self.count = count  # last: another thread may look
        own = self._own
        own[_WORDS + count % SEEN] = word
        own[_COUNT] = count

    def differ(self) -> int | None:
        """Looks at the neighbours: where each agrees with its neighbours, all agree."""
        count, history = self.count, self._history
        for other in self._neighbours:
            there = other[_COUNT]
            common = there if there < count else count
            if other[_WORDS + common % SEEN] != history[common % HISTORY]:
                return self.search()  # which knows whether that is the word of this number still
        return None

    def search(self) -> int | None:
        """Looks at all; one that has found a difference tells all others."""
        for other in self._others:
            found = self._compared(other) or other[_ALARM]
            if found:
                self._own[_ALARM] = found
                return int(found)
        return None

    def _compared(self, other: Any) -> int:
        """The first event in which another process differs, of those that can be compared."""
        there = other[_COUNT]
        common = min(there, self.count)
        oldest = max(there - SEEN + 2, self.count - HISTORY + 1, 1)
        words = [(n, other[_WORDS + n % SEEN]) for n in range(oldest, common + 1)]
        if other[_COUNT] != there:  # slots may be in use again
            return 0
        return next((n for n, word in words if word != self._history[n % HISTORY]), 0)


_COUNT, _ALARM, _WORDS = 0, 1, 2


def shared_words(
    lanes: int, rank: int, size: int, gather: Callable[[bytes], Sequence[bytes]]
) -> tuple[Words, ...]:
    """Words for events in some orders, in shared memory; called by all processes.

    Args:
        lanes: how many orders.
        rank, size: of this process, and how many there are.
        gather: gives what all processes say, in the order of the ranks.
    """
    segment = Segment(lanes * LINE)
    told = gather(b"%d %d %d" % segment.place[:3])
    after = [(rank + step) % size for step in range(1, size)]
    nearest = list(dict.fromkeys([after[0], after[-1]]))
    order = [*nearest, *(other for other in after if other not in nearest)]
    memories = [open_segment(*map(int, told[other].split())) for other in order]
    gather(b"")  # all have opened it, so that it need not be reachable any more
    return tuple(
        SharedWords(
            _line(segment.bytes, lane), [_line(m, lane) for m in memories], neighbours=len(nearest)
        )
        for lane in range(lanes)
    )


def _line(memory: Any, lane: int) -> Any:
    return (c_int64 * (_WORDS + SEEN)).from_buffer(memory, lane * LINE)


class SentWords(Words):
    """Words that travel in collectives, between any hosts.

    Args:
        comm: a communicator of all processes, for these words only.
    """

    def __init__(self, comm: Any) -> None:
        super().__init__()
        self._comm, self._rank = comm, int(comm.rank)
        self._rows = np.zeros((UNDERWAY, int(comm.size)), np.int64)
        self._sent = np.zeros((UNDERWAY, 1), np.int64)
        self._underway: deque[tuple[int, Any]] = deque()
        self._lock = threading.Lock()
        self._found: int | None = None

    def post(self, key: object, event: Event) -> None:
        """See `Words.post`; waits where too many words are underway."""
        if len(self._underway) == UNDERWAY:
            wait(partial(self._is_below, UNDERWAY))
        with self._lock:
            self.count = count = self.count + 1
            self._chain = hash((self._chain, key))
            self.events.append(event)
            slot = count % UNDERWAY
            self._sent[slot] = self._chain
            request = self._comm.Iallgather(self._sent[slot], self._rows[slot])
            self._underway.append((count, request))

    def _is_below(self, many: int) -> bool:
        self.search()
        return len(self._underway) < many

    def search(self) -> int | None:
        """Looks at all that has arrived; nothing while another thread does so."""
        if self._lock.acquire(blocking=False):
            try:
                self._take()
            finally:
                self._lock.release()
        return self._found

    def _take(self) -> None:
        while self._underway and self._underway[0][1].Test():
            number, _ = self._underway.popleft()
            row = self._rows[number % UNDERWAY]
            if self._found is None and (row != row[self._rank]).any():
                self._found = number

    def finish(self) -> None:
        """Waits until all has arrived: MPI cannot end before."""
        wait(partial(self._is_below, 1))
