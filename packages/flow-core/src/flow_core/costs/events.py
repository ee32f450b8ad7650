"""Discrete events: items that wait for each other and for queues, with a clock.

The same loop orders the ops of a plan, where a queue chooses among its ready items, and simulates a
finished plan, where each queue runs its items in a fixed order.  An item of several queues, such as
an exchange between processes, starts when all of them have reached it, and keeps all of them busy
until it ends.  Items that share resources, such as the network adapter or the cores of a machine,
divide their speed among each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Queue(Protocol[Item]):
    """A queue, which runs one item at a time."""

    def put(self, item: Item) -> None:
        """Add an item whose predecessors have ended."""

    def take(self) -> Item | None:
        """Remove and return the next item that may start, or None."""

    def done(self, item: Item) -> None:
        """Note that an item has ended."""


class Progress(Protocol[Item]):
    """The items that wait for others; `flow_core.ir.order.Dependencies` implements it."""

    def free(self) -> Iterable[Item]:
        """Return the items that wait for no other item."""

    def finish(self, item: Item) -> Iterable[Item]:
        """Note the end of an item, and return the items that wait for nothing any more."""


class InOrder(Generic[Item]):
    """A queue that runs its items in a fixed order."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items, self._next, self._ready = items, 0, set[Item]()

    def put(self, item: Item) -> None:
        self._ready.add(item)

    def take(self) -> Item | None:
        """Return the first item that was not taken, if it is ready."""
        if self._next == len(self._items) or self._items[self._next] not in self._ready:
            return None
        self._next += 1
        return self._items[self._next - 1]

    def done(self, item: Item) -> None:
        """Note that an item has ended."""


@dataclass(slots=True)
class Run(Generic[Item]):
    """The clock times of all items.

    Attributes:
        started: the items in the order of their start.
        now: the time of the last end.
    """

    started: list[Item] = field(default_factory=list)
    start: dict[Item, float] = field(default_factory=dict)
    end: dict[Item, float] = field(default_factory=dict)
    now: float = 0.0


class EventLoop(Generic[Item]):
    """An event-driven simulation, in which time advances when no item can start.

    Args:
        progress: which items wait for others.
        queues: the queues, in the order in which they start items at the same time.
        queues_of: the names of the queues of each item.
        seconds: returns the duration of an item, if it shares no resource.
        rank: orders items that end at the same time.
        shared: the resources that an item shares with others, each as often as it needs units.
        units: the units of resources of which there are several.
        limit: the number of queues that may be busy at the same time; 0 for no limit.
    """

    def __init__(
        self,
        progress: Progress[Item],
        queues: Mapping[str, Queue[Item]],
        queues_of: Mapping[Item, Sequence[str]],
        seconds: Callable[[Item], float],
        rank: Callable[[Item], float],
        shared: Mapping[Item, Sequence[str]] | None = None,
        units: Mapping[str, int] | None = None,
        limit: int = 0,
    ) -> None:
        self._progress, self._queues, self._queues_of = progress, queues, queues_of
        self._seconds, self._rank, self._shared = seconds, rank, shared or {}
        self._units = units or {}
        self._number = {name: i for i, name in enumerate(queues)}
        self._limit = limit or len(queues)
        self._held_back: set[str] = set()
        self._busy: dict[str, Item] = {}
        self._running: list[tuple[float, float, Item]] = []
        self._sharing: dict[Item, float] = {}
        self._users: dict[str, int] = {}
        self._run = Run[Item]()

    def run(self) -> Run[Item]:
        """Run all items that can run."""
        touched = [name for item in self._progress.free() for name in self._put(item)]
        found = self._run
        while True:
            self._start(touched)
            if not self._running and not self._sharing:
                return found
            touched = [name for item in self._next() for name in self._finish(item)]

    def _put(self, item: Item) -> Sequence[str]:
        names = self._queues_of[item]
        for name in names:
            self._queues[name].put(item)
        return names

    def _start(self, touched: Iterable[str]) -> None:
        """Let idle queues take items; start the items that all of their queues have taken."""
        asking, self._held_back = self._held_back.union(touched), set()
        for name in sorted(asking, key=self._number.__getitem__):
            if len(self._busy) >= self._limit:
                self._held_back.add(name)
                continue
            item = None if name in self._busy else self._queues[name].take()
            if item is None:
                continue
            self._busy[name] = item
            if all(self._busy.get(other) == item for other in self._queues_of[item]):
                self._begin(item)

    def _begin(self, item: Item) -> None:
        run = self._run
        run.started.append(item)
        run.start[item] = run.now
        seconds = self._seconds(item)
        if not self._shared.get(item):
            heapq.heappush(self._running, (run.now + seconds, self._rank(item), item))
            return
        self._sharing[item] = seconds
        for resource in self._shared[item]:
            self._users[resource] = self._users.get(resource, 0) + 1

    def _slowness(self, item: Item) -> float:
        return max(
            max(1.0, self._users[resource] / self._units.get(resource, 1))
            for resource in self._shared[item]
        )

    def _next(self) -> list[Item]:
        """Advance the clock to the next end, and return the items that end there."""
        run = self._run
        ends = {item: run.now + left * self._slowness(item) for item, left in self._sharing.items()}
        at = min([*ends.values(), *(self._running[0][:1] if self._running else ())])
        for item in ends:
            self._sharing[item] -= (at - run.now) / self._slowness(item)
        run.now = at
        done = [item for item, end in ends.items() if end <= at]
        for item in done:
            del self._sharing[item]
        for item in done:
            for resource in self._shared[item]:
                self._users[resource] -= 1
        while self._running and self._running[0][0] <= at:
            done.append(heapq.heappop(self._running)[2])
        return done

    def _finish(self, item: Item) -> list[str]:
        self._run.end[item] = self._run.now
        touched = list(self._queues_of[item])
        for name in touched:
            del self._busy[name]
            self._queues[name].done(item)
        for other in self._progress.finish(item):
            touched += self._put(other)
        return touched
