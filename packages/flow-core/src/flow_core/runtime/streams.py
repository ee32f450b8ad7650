"""Stream execution: threads take the next ready segment of any stream.

A segment is a sequence of tasks of one stream without a wait inside.  A segment is ready when its
predecessor in its stream and the segments that it waits for have finished.  No thread blocks inside
a segment, except in an exchange with other processes, so any number of threads can complete a step,
and a single thread runs the tasks in the order of the plan.

A thread that waits for other processes needs no core.  Therefore, the number of threads that
compute is limited, and exchanges with other processes, which run one at a time, have one more.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence, Set
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
    """Tasks of one stream that run without waiting."""

    tasks: list[int]  # positions of the tasks in the plan
    needs: int = 0  # the number of segments that must finish first
    # Indices of the segments that wait for this one.
    followers: list[int] = field(default_factory=list)
    launch: Launch = lambda: None  # the function that runs the tasks


def own_tasks(
    tasks: Sequence[Task], part: Callable[[Task], tuple[bool, bool]]
) -> tuple[list[int], list[Task]]:
    """Return the positions of the tasks in which a process takes part, and the tasks themselves.

    In the returned tasks, waits for tasks of other processes are dropped, since the data of such
    tasks arrive through exchanges.  Each exchange with other processes also waits for the previous
    one in the plan; as every process keeps that order, exchanges cannot deadlock.

    Args:
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
    """Runs the segments of a step on several threads, including the caller's."""

    def __init__(
        self,
        parts: Sequence[Segment],
        workers: int,  # the maximum number of threads that compute at the same time
        cores: Cores = NOT_DIVIDED,
        # The indices of segments that wait for other processes, for which there is one thread more.
        waiting: Set[int] = frozenset(),
    ) -> None:
        self._parts = tuple(parts)
        self._needs = [part.needs for part in parts]
        self._workers = workers
        self._cores = cores
        self._waiting = waiting
        self._changes = Changes()
        self._left: list[int] = []
        self._ready: list[int] = []  # segments that compute
        self._exchanges: list[int] = []  # ready segments that wait for other processes
        self._computing = 0
        self._remaining = 0
        self._error: BaseException | None = None

    def __call__(self) -> None:
        """Run one step; raise the error of a task."""
        self._left = list(self._needs)
        ready = [i for i, needs in enumerate(self._needs) if needs == 0]
        self._ready = [i for i in ready if i not in self._waiting]
        self._exchanges = [i for i in ready if i in self._waiting]
        self._computing = 0
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
            for _ in range(self._workers - 1 + bool(self._waiting)):
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
                queue = self._first()
                if queue:
                    self._computing += queue is self._ready
                    return heapq.heappop(queue)
                gate = self._changes.gate()
            gate.get()

    def _first(self) -> list[int]:
        """Return the queue with the next segment that may start; it is empty if there is none."""
        ready = self._ready if self._computing < self._workers else []
        return min((q for q in (ready, self._exchanges) if q), default=[])

    def _finish(self, index: int) -> None:
        with self._changes.lock:
            self._remaining -= 1
            self._computing -= index not in self._waiting
            for other in self._parts[index].followers:
                self._left[other] -= 1
                if self._left[other] == 0:
                    queue = self._exchanges if other in self._waiting else self._ready
                    heapq.heappush(queue, other)
            may_start = min(len(self._ready), self._workers - self._computing)
            if self._remaining == 0 or may_start + len(self._exchanges) > 1:
                self._changes.notify()

    def _fail(self, error: BaseException) -> None:
        with self._changes.lock:
            self._error = self._error or error
            self._changes.notify()


LONG = 2e-4
"""The seconds per segment from which on threads take turns faster than one thread waits."""

TRIALS = 4
"""The number of steps of which the fastest one counts; the first ones also touch new memory."""


class OverlapIfLong:
    """A step in which computation overlaps with waiting for other processes, if steps are long.

    The first steps run in the order of the plan, and are measured.

    Args:
        in_order: runs a step in one thread.
        runner: runs a step on several threads.
        count: the number of segments.
    """

    def __init__(self, in_order: Launch, runner: Launch, count: int) -> None:
        self._launch, self._runner, self._shortest = in_order, runner, LONG * count
        self._left, self._seconds = TRIALS, float("inf")

    def __call__(self) -> None:
        if not self._left:
            self._launch()
            return
        started = time.perf_counter()
        self._launch()
        self._seconds = min(self._seconds, time.perf_counter() - started)
        self._left -= 1
        if not self._left and self._seconds >= self._shortest:
            self._launch = self._runner


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    """Return the pool of helper threads, which is kept for later steps."""
    return ThreadPoolExecutor(MOST_HELPERS, "flow-stream")


MOST_HELPERS = 32
