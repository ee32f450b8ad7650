"""A plan whose tasks run in order, and whose values are read after each task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from flow_core.base.arrays import Array
from flow_core.device import Launch
from flow_core.frontend.session.session import Session
from flow_core.ir.graph import Value
from flow_core.observe.isolated_run import IsolatedRun, isolated, same_bits
from flow_core.plan import Plan, Task
from flow_core.runtime.executable import Executable
from flow_core.sharding.topology import Device


@dataclass(frozen=True, slots=True)
class Overwritten:
    """An input that is no longer what a task has computed."""

    task: int  # the position of the task that reads it
    buffer: int  # the position of the buffer


class CapturedExecutable(Executable):
    """A loaded plan that keeps the outputs of all tasks of a step."""

    sync_always: ClassVar[bool] = True

    def __init__(self, plan: Plan, *args: Any, **kwargs: Any) -> None:
        self.values: dict[Value, Any] = {}  # the outputs of tasks
        # What tasks have left in buffers, which several of them may overwrite in turn.
        self.captured: dict[int, Any] = {}
        # Inputs that have changed after they were computed.
        self.overwritten: list[Overwritten] = []
        super().__init__(plan, *args, **kwargs)

    def observed(self, position: int, launches: Sequence[Launch]) -> Sequence[Launch]:
        """Return the launches of a task between a check of its inputs and a copy of its outputs."""
        task = self.plan.tasks[position]

        def check() -> None:
            for i in dict.fromkeys(task.inputs):
                known = self.captured.get(i)
                if known is not None and not same_bits(known, self._host(i)):
                    self.overwritten.append(Overwritten(position, i))
                    del self.captured[i]

        views = list(self._views_in_place(task))  # by which later tasks may read the results

        def keep() -> None:
            for k, i in enumerate(task.outputs):
                self.values[Value(task.op, k)] = self.captured[i] = self._host(i).copy()
            for i in views:
                if i in self.captured:
                    self.captured[i] = self._host(i).copy()

        return (check, *launches, keep)

    def _views_in_place(self, task: Task) -> Iterator[int]:
        """Yield the buffers that share bytes with an input that a task overwrites by a result."""
        read = set(map(self._place, task.inputs))
        for place in read.intersection(map(self._place, task.outputs)):
            memory, low, high = place
            for i in range(len(self.plan.buffers)) if low >= 0 else ():
                other, start, stop = self._place(i)
                if other == memory and low < stop and 0 <= start < high:
                    yield i

    def _place(self, buffer: int) -> tuple[Device, int, int]:
        """Return the memory of a buffer, and the bounds of its bytes there."""
        found = self.plan.buffers[buffer]
        return found.memory, found.offset, found.offset + found.type.nbytes

    def _host(self, buffer: int) -> Any:
        device = self.plan.buffers[buffer].memory
        return np.asarray(self._driver(device).copy_out(self._arrays[buffer]))


@dataclass(slots=True)
class CapturedRun(IsolatedRun):
    """A plan with its own variables, which shows the values of all tasks."""

    executable: CapturedExecutable
    results: tuple[Any, ...] = ()  # what the last step has returned

    @classmethod
    def of(cls, session: Session, plan: Plan, values: Mapping[str, Array]) -> CapturedRun:
        """Bind a plan, of which this process simulates all devices, to its own variables."""
        alone = replace(plan, workers=1)  # in the order of the plan
        executable, variables = isolated(session, alone, values, CapturedExecutable)
        return cls(executable, variables, ())

    def run(self, feeds: Sequence[Any], step: int = 0) -> dict[Value, Any]:
        """Run one step, and return the outputs of its tasks."""
        run = self.executable
        run.values, run.captured, run.overwritten = {}, {}, []
        run.step[...] = step
        self.results = run.run(feeds)
        return run.values
