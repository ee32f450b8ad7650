"""An executable that keeps the results of each task of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flow_core.base.arrays import Array
from flow_core.device import Launch
from flow_core.runtime.replayable import ReplayableExecutable


class CapturingExecutable(ReplayableExecutable):
    """A loaded plan that keeps copies of the results of its tasks.

    Args:
        last: the position of the last task whose results are kept; None for all tasks.

    Attributes:
        values: the results in the last step, by name of the op and number of the output, such as
            ``"relu:0"``, in the order of the plan.
    """

    def __init__(self, *args: Any, last: int | None = None, **kwargs: Any) -> None:
        self.values: dict[str, Array] = {}
        self._last = last
        super().__init__(*args, **kwargs)

    def observed(self, position: int, launches: Sequence[Launch]) -> Sequence[Launch]:
        """Return a task's launches, followed by a copy of its results."""
        task = self.plan.tasks[position]
        if not launches or (self._last is not None and position > self._last):
            return launches
        own = [(k, i) for k, i in enumerate(task.outputs) if self.is_local_number(i)]

        def keep() -> None:
            self.values.update((f"{task.op}:{k}", self.host(i).copy()) for k, i in own)

        return (*launches, keep)
