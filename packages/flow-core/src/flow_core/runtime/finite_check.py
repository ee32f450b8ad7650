"""Detection of the first task that computes a number that is not finite.

After each task, its outputs and the variables that it accesses are checked.  The inputs that a task
may overwrite are copied before it runs, so that the error can state the ranges of all inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import NonFiniteError
from flow_core.device import Launch
from flow_core.plan import Buffer, Plan, Task
from flow_core.runtime.executable import Executable
from flow_core.runtime.failures import line_of

HINT = (
    "look at the ranges of the inputs: bound arguments of log, division, sqrt and exp; lower the "
    "learning rate or clip the gradients if weights or gradients grow from step to step"
)


class CheckedExecutable(Executable):
    """A loaded plan whose steps end at the first task that computes NaN or an infinity.

    In a single process, a failing step is run again from the same feeds and variables, to find out
    whether it fails in the same way.
    """

    sync_always: ClassVar[bool] = True
    only_nan: ClassVar[bool] = False

    def __init__(self, plan: Plan, *args: Any, **kwargs: Any) -> None:
        self._started = False
        super().__init__(plan, *args, **kwargs)

    # ------------------------------------------------------------------------ checks of tasks

    def observed(self, position: int, launches: Sequence[Launch]) -> Sequence[Launch]:
        """Return a task's launches between a copy of some inputs and a check of its results."""
        task = self.plan.tasks[position]
        if not launches:
            return launches
        buffers = self.plan.buffers
        states = [i for i in task.inputs if buffers[i].kind == "variable"]
        results = [i for i in dict.fromkeys((*task.outputs, *states)) if self._is_checked(i)]
        written = [buffers[i] for i in (*task.outputs, *states)]
        kept = [
            i
            for i in dict.fromkeys(task.inputs)
            if self._is_checked(i) and any(overlap(buffers[i], other) for other in written)
        ]

        copies: dict[int, Array] = {}

        def keep() -> None:
            copies.update((i, self._host(i).copy()) for i in kept)

        def check() -> None:
            for i in results:
                array = self._host(i)
                if self._is_bad(array):
                    raise self._error(task, i, array, copies)

        return (keep, *launches, check)

    def _is_checked(self, buffer: int) -> bool:
        found = self.plan.buffers[buffer]
        return found.device in self._local and found.type.dtype.is_floating

    def _is_bad(self, array: Array) -> bool:
        if self.only_nan:
            return bool(np.isnan(array).any())
        return not np.isfinite(array).all()

    def _host(self, buffer: int) -> Array:
        device = self.plan.buffers[buffer].memory
        return np.asarray(self._driver(device).copy_out(self._arrays[buffer]))

    def _error(
        self, task: Task, buffer: int, array: Array, copies: Mapping[int, Array]
    ) -> NonFiniteError:
        found = self.plan.buffers[buffer]
        outputs = {i: f"output {k}" for k, i in enumerate(task.outputs)}
        which = outputs.get(buffer, f"variable {found.name}")
        inputs = [
            f"    {self.plan.buffers[i].name} {self.plan.buffers[i].type}: "
            f"{described(copies[i] if i in copies else self._host(i))}"
            for i in dict.fromkeys(task.inputs)
            if self._is_checked(i)
        ]
        error = NonFiniteError(
            f"checking {task.type} {task.op!r} in step {int(self.step)} of job {self.plan.job!r} "
            f"on {found.device}, by {task.kernel or 'an exchange'}",
            at=line_of(task),
            found="\n".join([f"{which}: {described(array)}; inputs:", *inputs]),
            allowed="numbers other than NaN" if self.only_nan else "finite numbers",
            hint=HINT,
        )
        error.op, error.step, error.device = task.op, int(self.step), str(found.device)
        return error

    # --------------------------------------------------------------------------------- steps

    def run(self, feeds: Sequence[Array]) -> tuple[Array, ...]:
        """Run one step; if it fails, run it again from the same feeds and variables."""
        self._check_feeds(feeds)
        if not self._started:
            self._check_variables()
            self._started = True
        before = {} if self._world else self._variables()
        try:
            return super().run(feeds)
        except NonFiniteError as error:
            if self._world is None:
                raise error.with_context(
                    found=f"{error.found}\n    {self._replay(error, feeds, before)}"
                ) from None
            raise

    def _replay(
        self, error: NonFiniteError, feeds: Sequence[Array], before: Mapping[int, Array]
    ) -> str:
        """Run a step again from the same feeds and variables, and describe the result."""
        for i, array in before.items():
            self._driver(self.plan.buffers[i].memory).copy_in(self._arrays[i], array)
        try:
            super().run(feeds)
        except NonFiniteError as again:
            if (again.op, again.found) == (error.op, error.found):
                return "replay of the step: the same numbers at the same op"
            return f"replay of the step: {again.attempted} instead; the step is not deterministic"
        return "replay of the step: all numbers are finite; the step is not deterministic"

    def _variables(self) -> dict[int, Array]:
        """Return copies of the variables, by buffer."""
        found = {i: self.plan.buffers[i] for i in self.plan.variables.values()}
        local = [
            i for i, b in found.items() if b.device in self._local and not b.type.dtype.is_object
        ]
        return {i: self._host(i).copy() for i in local}

    def _check_variables(self) -> None:
        for name, i in self.plan.variables.items():
            if self._is_checked(i) and self._is_bad(array := self._host(i)):
                raise self._start_error(f"variable {name!r}", array)

    def _check_feeds(self, feeds: Sequence[Array]) -> None:
        for name, array in self._fed(feeds):
            if array.dtype.kind not in "OSUbiu" and self._is_bad(array):
                raise self._start_error(f"fed array {name!r}", array)

    def _fed(self, feeds: Sequence[Array]) -> Iterator[tuple[str, Array]]:
        local = [i for i, array in enumerate(self.feeds) if array is not None]
        for position, (index, window) in zip(local, self.windows, strict=True):
            name = self.plan.buffers[self.plan.feeds[position]].op
            yield name.removeprefix("Input_"), feeds[index][window]

    def _start_error(self, what: str, array: Array) -> NonFiniteError:
        error = NonFiniteError(
            f"starting step {int(self.step)} of job {self.plan.job!r}",
            found=f"{what}: {described(array)}",
            allowed="numbers other than NaN" if self.only_nan else "finite numbers",
            hint="correct the data or the loaded weights before the first step",
        )
        error.step = int(self.step)
        return error


class NaNCheckedExecutable(CheckedExecutable):
    """A loaded plan whose steps end at the first task that computes NaN."""

    only_nan: ClassVar[bool] = True


def overlap(a: Buffer, b: Buffer) -> bool:
    """Return whether two buffers share memory."""
    if a.kind == "variable" or b.kind == "variable":
        return (a.op, a.memory) == (b.op, b.memory)
    apart = a.offset + a.type.nbytes <= b.offset or b.offset + b.type.nbytes <= a.offset
    return a.memory == b.memory and not apart


def described(array: Array) -> str:
    """Describe the range of an array's numbers, and those that are not finite.

    >>> described(np.array([1.0, 2.5]))
    'from 1 to 2.5'
    >>> described(np.array([[1.0, np.nan], [np.inf, 0.0]]))
    '1 NaN and 1 infinite of 4 numbers, the first at [0, 1], the others from 0 to 1'
    """
    with np.errstate(all="ignore"):
        wide = np.asarray(array).astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    finite = np.isfinite(wide)
    good = np.abs(wide[finite]) if array.dtype.kind == "c" else wide[finite]
    limits = f"from {good.min():.6g} to {good.max():.6g}" if good.size else ""
    if finite.all():
        return limits or "no numbers"
    first = [int(i) for i in np.argwhere(~finite)[0]]
    nans = int(np.isnan(wide).sum())
    kinds = ((nans, "NaN"), (int((~finite).sum()) - nans, "infinite"))
    counts = " and ".join(f"{n:,} {kind}" for n, kind in kinds if n)
    rest = f", the others {limits}" if limits else ""
    return f"{counts} of {wide.size:,} numbers, the first at {first}{rest}"
