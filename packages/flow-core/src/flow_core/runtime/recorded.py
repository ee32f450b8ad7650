"""An executable whose steps are recorded, so that they can be replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from flow_core.base.arrays import Array
from flow_core.runtime.executable import Executable


class StepRecorder(Protocol):
    """What records the steps of a session's jobs."""

    def bound(self) -> None:
        """Note that a plan was bound, which may have created variables."""

    def begin(self, job: str, step: int, feeds: Sequence[Array]) -> Sequence[Array]:
        """Record the start of a step; return copies of the fed arrays, which the step may use."""

    def finish(self, results: Sequence[Any]) -> None:
        """Record the results of the step."""


class RecordedExecutable(Executable):
    """A loaded plan whose steps are recorded.

    Args:
        recorder: what records them.
    """

    def __init__(self, *args: Any, recorder: StepRecorder, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recorder = recorder
        recorder.bound()

    def run(self, feeds: Sequence[Array]) -> tuple[Array, ...]:
        """Run one step from copies of the fed arrays, which are kept."""
        results = super().run(self._recorder.begin(self.plan.job, int(self.step), feeds))
        self._recorder.finish(results)
        return results
