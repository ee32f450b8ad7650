"""An executable that records when each task ran."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flow_core.device import Launch
from flow_core.runtime.executable import Executable


@dataclass(frozen=True, slots=True)
class TaskTime:
    """The time at which a task ran, in seconds of `time.perf_counter`."""

    step: int
    task: int  # position of the task in the plan
    start: float  # of the first launch
    stop: float  # of the last one

    @property
    def seconds(self) -> float:
        return self.stop - self.start


class TimedExecutable(Executable):
    """A loaded plan that records the time of each task of this process in each step.

    On asynchronous devices, each task ends with a wait for its work.
    """

    sync_always: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.times: list[TaskTime] = []  # the recorded times, in the order in which the tasks ended
        super().__init__(*args, **kwargs)

    def clock(self) -> float:
        return time.perf_counter()

    def observed(self, position: int, launches: Sequence[Launch]) -> Sequence[Launch]:
        """Return a task's launches, preceded and followed by a launch that reads the clock."""
        if not launches:
            return launches
        began, clock = 0.0, self.clock

        def start() -> None:
            nonlocal began
            began = clock()

        def stop() -> None:
            self.times.append(TaskTime(int(self.step), position, began, clock()))

        return (start, *launches, stop)

    def take_times(self) -> list[TaskTime]:
        """Return the recorded times, and start a new list."""
        found = self.times[:]
        self.times.clear()
        return found


class CpuTimedExecutable(TimedExecutable):
    """A loaded plan that records the CPU time of each task in the thread that launches it.

    Other programs do not prolong it.  It is the time of kernels with one thread on the host.
    """

    def clock(self) -> float:
        """Return the CPU seconds of the calling thread."""
        return time.thread_time()
