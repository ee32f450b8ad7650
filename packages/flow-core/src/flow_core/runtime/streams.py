"""Stream execution: threads take the next ready segment of any stream.

A segment is a sequence of tasks of one stream without a wait inside.  A segment is ready when its
predecessor in its stream and the segments that it waits for have finished.  No thread blocks inside
a segment, so any number of threads can complete a step, and a single thread runs the tasks in the
order of the plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache

from flow_core.base.changes import Changes
from flow_core.base.thread_budget import NOT_DIVIDED, Cores
from flow_core.base.thread_pools import set_kernel_threads, sized_pools
from flow_core.device import Launch
from flow_core.plan import Task


@dataclass(slots=True)
class Segment:
    """Tasks of one stream that run without waiting.

    Attributes:
        tasks: positions of the tasks in the plan.
        needs: the number of segments that must finish first.
        followers: indices of the segments that wait for this one.
        launch: the function that runs the tasks.
    """

    tasks: list[int]
    needs: int = 0
    followers: list[int] = field(default_factory=list)
    launch: Launch = lambda: None


def own_tasks(
    tasks: Sequence[Task], part: Callable[[Task], tuple[bool, bool]]
) -> tuple[list[int], list[Task]]:
    """Return the positions of the tasks in which a process takes part, and the tasks themselves.

    In the returned tasks, waits for tasks of other processes are dropped, since the data of such
    tasks arrive through exchanges.  Each exchange with other processes also waits for the previous
    one in the plan; as every process keeps that order, exchanges cannot deadlock.

    Args:
        tasks: all tasks.
        part: a function that returns whether the process takes part in a task, and whether other
            processes do, too.
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
    """Return the segments of a step, in the order of their first tasks.

    A segment ends before a task that waits, and after a task for which other tasks wait.
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
    """Runs the segments of a step on several threads, including the caller's.

    Args:
        parts: the segments, with their launches.
        workers: the maximum number of threads.
        cores: the plan's division of cores.
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
        """Run one step; raise the error of a task."""
        self._left = list(self._needs)
        self._ready = [i for i, needs in enumerate(self._needs) if needs == 0]
        self._remaining = len(self._parts)
        self._error = None
        with sized_pools(self._cores):
            self._step()

    def _step(self) -> None:
        helpers = self._start_helpers()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - an interrupt: the helpers end first
            self._fail(error)
        for helper in helpers:
            helper.result()
        if self._error is not None:
            raise self._error

    def _start_helpers(self) -> list[Future[None]]:
        """Start the helper threads; the caller runs all segments if the interpreter exits, since
        pools start no work then.
        """
        helpers: list[Future[None]] = []
        with suppress(RuntimeError):
            for _ in range(self._workers - 1):
                helpers.append(_pool().submit(self._help))
        return helpers

    def _help(self) -> None:
        """Run segments in a helper thread."""
        if self._cores.kernels:
            set_kernel_threads(self._cores.kernels)
        self._work()

    def _work(self) -> None:
        """Run segments until none is left."""
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
                self._changes.notify()

    def _fail(self, error: BaseException) -> None:
        with self._changes.lock:
            self._error = self._error or error
            self._changes.notify()


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    """Return the pool of helper threads, which is kept for later steps."""
    return ThreadPoolExecutor(MOST_HELPERS, "flow-stream")


MOST_HELPERS = 32
