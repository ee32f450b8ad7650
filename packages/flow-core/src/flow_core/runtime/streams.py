"""Streams as actors: threads take the next segment that may start, whichever stream it is of.

A segment is a run of tasks of one stream without a wait inside.  It may start when the segment
before it in its stream and the ones that it waits for are over; nobody blocks while holding a
thread, so any number of threads will do, and one runs everything in the order of the plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache

from flow_core.base.changes import Changes
from flow_core.base.thread_budget import NOT_DIVIDED, Cores
from flow_core.base.thread_pools import grant, granting
from flow_core.device import Launch
from flow_core.plan import Task


@dataclass(slots=True)
class Segment:
    """Tasks of one stream that run without a pause.

    Attributes:
        tasks: their positions in the plan.
        needs: how many segments must be over first.
        followers: segments that wait for this one, by index.
        launch: runs the tasks.
    """

    tasks: list[int]
    needs: int = 0
    followers: list[int] = field(default_factory=list)
    launch: Launch = lambda: None


def own_tasks(
    tasks: Sequence[Task], part: Callable[[Task], tuple[bool, bool]]
) -> tuple[list[int], list[Task]]:
    """The tasks that a process has a part in: their positions, and the tasks as it sees them.

    They wait for each other only; what another process does comes through an exchange.  Those in
    which it meets others wait for each other, too, in the order of the plan: as every process
    keeps to it, no two wait for one another in different exchanges.

    Args:
        tasks: all tasks.
        part: of a task, whether the process has a part in it, and whether it meets others there.
    """
    kept: dict[int, int] = {}
    found: list[Task] = []
    last: int | None = None
    for position, task in enumerate(tasks):
        mine, meets = part(task)
        if not mine:
            continue
        waits = {kept[other] for other in task.waits if other in kept}
        if meets and last is not None:
            waits.add(last)
        kept[position] = len(found)
        last = kept[position] if meets else last
        found.append(replace(task, waits=tuple(sorted(waits))))
    return list(kept), found


def segments(tasks: Sequence[Task]) -> list[Segment]:
    """The segments of a step, in the order of their first tasks.

    A segment ends before a task that waits, and after one that others wait for.
    """
    awaited = {position for task in tasks for position in task.waits}
    found: list[Segment] = []
    of_task: list[int] = []
    open_: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, task in enumerate(tasks):
        current = open_.get(task.stream)
        if current is None or task.waits:
            current = len(found)
            found.append(Segment([]))
            before = {of_task[p] for p in task.waits} | {last.get(task.stream, current)}
            for other in before - {current}:
                found[other].followers.append(current)
                found[current].needs += 1
            open_[task.stream] = last[task.stream] = current
        found[current].tasks.append(position)
        of_task.append(current)
        if position in awaited:
            del open_[task.stream]
    return found


class StreamRunner:
    """Runs the segments of a step on some threads, the caller's among them.

    Args:
        parts: the segments, with their launches.
        workers: how many threads at most.
        cores: how many threads the kernels have that each of them runs.
    """

    def __init__(self, parts: Sequence[Segment], workers: int, cores: Cores = NOT_DIVIDED) -> None:
        self._parts = tuple(parts)
        self._needs = [part.needs for part in parts]
        self._workers = workers
        self._cores = cores
        self._changes = Changes()
        self._left: list[int] = []
        self._ready: list[int] = []
        self._remaining = 0
        self._error: BaseException | None = None

    def __call__(self) -> None:
        """One step; raises what a task raised."""
        self._left = list(self._needs)
        self._ready = [i for i, needs in enumerate(self._needs) if needs == 0]
        self._remaining = len(self._parts)
        self._error = None
        with granting(self._cores):
            self._step()

    def _step(self) -> None:
        helpers = [_pool().submit(self._help) for _ in range(self._workers - 1)]
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - an interrupt: the helpers end first
            self._fail(error)
        for helper in helpers:
            helper.result()
        if self._error is not None:
            raise self._error

    def _help(self) -> None:
        """Works in another thread than the caller's."""
        if self._cores.kernels:
            grant(self._cores.kernels)
        self._work()

    def _work(self) -> None:
        """Runs segments until none is left."""
        while (index := self._next()) is not None:
            try:
                self._parts[index].launch()
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                self._fail(error)
            else:
                self._finish(index)

    def _next(self) -> int | None:
        while True:
            with self._changes.lock:
                if self._remaining == 0 or self._error is not None:
                    return None
                if self._ready:
                    return heapq.heappop(self._ready)
                gate = self._changes.gate()
            gate.get()

    def _finish(self, index: int) -> None:
        with self._changes.lock:
            self._remaining -= 1
            for other in self._parts[index].followers:
                self._left[other] -= 1
                if self._left[other] == 0:
                    heapq.heappush(self._ready, other)
            if self._remaining == 0 or len(self._ready) > 1:
                self._changes.tell()

    def _fail(self, error: BaseException) -> None:
        with self._changes.lock:
            self._error = self._error or error
            self._changes.tell()


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    """The threads that help the caller's, kept for the next step."""
    return ThreadPoolExecutor(MOST_HELPERS, "flow-stream")


MOST_HELPERS = 32
