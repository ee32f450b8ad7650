"""An executable whose steps are recorded, so that they can be replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.thread_pools import sized_pools
from flow_core.runtime.executable import Executable

LARGE = 1 << 14
"""The size in bytes from which fed arrays are not copied once more, to the arena."""


@dataclass(slots=True, eq=False)
class Slot:
    """Memory for the fed arrays of a step, which later steps of an executable use again.

    Attributes:
        arrays: the fed arrays.
        free: the executable's list of free slots.
        launches: the launch of a step that reads this memory, the launches of its tasks, and the
            copies of fed arrays that remain; None before the first one.
    """

    arrays: list[Array]
    free: list[Slot]
    launches: tuple[Any, Any, Any] | None = None


class StepRecorder(Protocol):
    """What records the steps of a session's jobs."""

    def bound(self) -> None:
        """Note that a plan was bound, which may have created variables."""

    def begin(
        self, job: str, step: int, feeds: Sequence[Array], free: list[Slot]
    ) -> tuple[Sequence[Array], Slot | None]:
        """Record the start of a step; return copies of the fed arrays, which the step may use.

        Also return the slot that has them, None if an array needed no copy.
        """

    def finish(self, results: Sequence[Any]) -> None:
        """Record the results of the step."""


class RecordedExecutable(Executable):
    """A loaded plan whose steps are recorded.

    A step reads large fed arrays in the slot that keeps them, without a copy to the arena: the
    tasks that read them are bound to each slot.

    Args:
        recorder: what records them.
    """

    def __init__(self, *args: Any, recorder: StepRecorder, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recorder = recorder
        self._slots: list[Slot] = []
        self._usual = self._launch, self._bound, self._copies
        self._moved = self._find_moved()
        recorder.bound()

    def run(self, feeds: Sequence[Array]) -> tuple[Array, ...]:
        """Run one step from copies of the fed arrays, which are kept."""
        kept, slot = self._recorder.begin(self.plan.job, self._counter[()], feeds, self._slots)
        if slot is not None and self._moved:
            if slot.launches is None:
                slot.launches = self._launches_from(slot)
            self._launch, self._bound, self._copies = slot.launches
        try:
            results = super().run(kept)
        finally:
            self._launch, self._bound, self._copies = self._usual
        self._recorder.finish(results)
        return results

    def _find_moved(self) -> dict[int, tuple[int, int]]:
        """Return the buffers of fed arrays and their views: the parameter, and the offset in it.

        None are moved to slots if devices or micro-batches have parts of a fed array, if a task
        overwrites one or a result is one, or if a task reads one and has an effect: such a task may
        need one binding.
        """
        plan, buffers = self.plan, self.plan.buffers
        fed = {i: buffers[i].type.nbytes for i in plan.feeds}
        found = [k for k, buffer in enumerate(buffers) if buffer.kind == "feed"]
        bound_once = [t.inputs for t in plan.tasks if self._kernels.ops[t.type].effect]
        outputs = [task.outputs for task in plan.tasks]
        fixed = {*plan.fetches, *chain.from_iterable([*outputs, *bound_once])}
        on_host = len(plan.arenas) == 1 and all(isinstance(x, np.ndarray) for x in self.feeds)
        whole = all(window is ... for _, window in self.windows)
        if not (on_host and whole and plan.workers <= 1) or fixed & {*found}:
            return {}
        if not all(fed.values()) or sum(fed.values()) < LARGE:
            return {}
        moved: dict[int, tuple[int, int]] = {}
        for (i, nbytes), (parameter, _) in zip(fed.items(), self.windows, strict=True):
            offsets = ((k, buffers[k].offset - buffers[i].offset) for k in found)
            moved |= {k: (parameter, offset) for k, offset in offsets if 0 <= offset < nbytes}
        return moved

    def _launches_from(self, slot: Slot) -> tuple[Any, Any, Any]:
        """Bind the tasks that read fed arrays to the memory of a slot."""
        plan, usual = self.plan, self._arrays
        memory = [array.reshape(-1).view(np.uint8) for array in slot.arrays]
        self._arrays = [*usual]
        for k, (parameter, offset) in self._moved.items():
            type_ = plan.buffers[k].type
            part = memory[parameter][offset : offset + type_.nbytes]
            self._arrays[k] = part.view(type_.dtype.numpy).reshape(type_.shape)
        try:
            with sized_pools(plan.cores):
                bound = [
                    self._bind_all([task])[0] if self._moved.keys() & {*task.inputs} else launches
                    for task, launches in zip(plan.tasks, self._bound, strict=True)
                ]
        finally:
            self._arrays = usual
        return self._launcher(bound), bound, ()
