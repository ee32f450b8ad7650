"""Detection of the first task that computes a number that is not finite.

After each task, its outputs and the variables that it accesses are checked.  The inputs that a task
may overwrite are copied before it runs, so that the error can state the ranges of all inputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import NonFiniteError, SourceLine
from flow_core.device import Launch, World
from flow_core.plan import Buffer, Plan, Task
from flow_core.runtime.failures import line_of
from flow_core.runtime.replayable import ReplayableExecutable
from flow_core.sharding.sbp import Region

HINT = (
    "look at the ranges of the inputs: bound arguments of log, division, sqrt and exp; lower the "
    "learning rate or clip the gradients if weights or gradients grow from step to step"
)

START_HINT = "correct the data or the loaded weights before the first step"


@dataclass(frozen=True, slots=True)
class _Finding:
    """The first number of a step that is not finite, as the processes tell each other."""

    position: int  # the position of the task in the plan; -1 for fed arrays and variables
    attempted: str
    found: str
    file: str = ""
    line: int = 0
    op: str = ""
    device: str = ""
    rank: int = 0  # the process
    index: Sequence[int] = ()  # the place of the number in the whole tensor

    def error(self, step: int, allowed: str, replay: str) -> NonFiniteError:
        """Return the error, with what the replay of the step gave."""
        at = SourceLine(self.file, self.line) if self.file else None
        hint = HINT if self.op else START_HINT
        found = f"{self.found}\n    {replay}" if replay else self.found
        error = NonFiniteError(self.attempted, at=at, found=found, allowed=allowed, hint=hint)
        error.op, error.step, error.device = self.op, step, self.device
        return error


class CheckedExecutable(ReplayableExecutable):
    """A loaded plan whose steps fail if a task computes NaN or an infinity.

    The error names the first such task in the order of the plan.  A failing step is completed, so
    that no other process waits for this one, and run again from the same feeds and variables, to
    find out whether it fails in the same way.  All processes raise the same error, and leave the
    variables as they were before the step.

    Args:
        file: the file to which the first process writes the error as JSON; empty for none.
    """

    only_nan: ClassVar[bool] = False

    def __init__(self, plan: Plan, *args: Any, file: str = "", **kwargs: Any) -> None:
        self._started, self._file = False, file
        self._finding: _Finding | None = None
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

        # The error shows what the task read, which the task may have overwritten by then.
        copies: dict[int, Array] = {}

        def keep() -> None:
            copies.update((i, self.host(i).copy()) for i in kept)

        def check() -> None:
            # Streams run tasks in several orders; the first task of the plan is the cause.
            if self._finding is not None and self._finding.position <= position:
                return
            for i in results:
                array = self.host(i)
                if self._is_bad(array):
                    self._finding = self._of_task(position, i, array, copies)
                    return

        return (keep, *launches, check)

    def _is_checked(self, buffer: int) -> bool:
        is_floating = self.plan.buffers[buffer].type.dtype.is_floating
        return self.is_local_number(buffer) and is_floating

    def _is_bad(self, array: Array) -> bool:
        if self.only_nan:
            return bool(np.isnan(array).any())
        return not np.isfinite(array).all()

    def _of_task(
        self, position: int, buffer: int, array: Array, copies: Mapping[int, Array]
    ) -> _Finding:
        task, found = self.plan.tasks[position], self.plan.buffers[buffer]
        outputs = {i: f"output {k}" for k, i in enumerate(task.outputs)}
        which = outputs.get(buffer, f"variable {found.name}")
        inputs = [
            f"    {self.plan.buffers[i].name} {self.plan.buffers[i].type}: "
            f"{described(copies[i] if i in copies else self.host(i))}"
            for i in dict.fromkeys(task.inputs)
            if self._is_checked(i)
        ]
        line, region = line_of(task), self._region(buffer, task)
        return _Finding(
            position,
            f"checking {task.type} {task.op!r} in step {int(self.step)} of job {self.plan.job!r} "
            f"on {found.device}{self._of_rank()}, by {task.kernel or 'an exchange'}",
            "\n".join([f"{which}: {described(array, region)}; inputs:", *inputs]),
            "" if line is None else line.file,
            0 if line is None else line.line,
            task.op,
            str(found.device),
            0 if self._world is None else self._world.rank,
            first_bad(array, region),
        )

    def _of_rank(self) -> str:
        return "" if self._world is None else f" of rank {self._world.rank}"

    def _region(self, buffer: int, task: Task | None = None) -> Region | None:
        """Return the region of the logical value in a buffer; None for the whole value.

        Args:
            task: the task, if the value may be a result of it.
        """
        if task is not None and buffer in task.outputs:
            return self.plan.regions.get(f"{task.op}:{task.outputs.index(buffer)}")
        return self.plan.shards.get(self.plan.buffers[buffer].op, ("", None))[1]

    # --------------------------------------------------------------------------------- steps

    def run(self, feeds: Sequence[Array]) -> tuple[Array, ...]:
        """Run one step; if it fails, run it again from the same feeds and variables."""
        self._finding = self._at_start(feeds)
        self._started = True
        step, before = int(self.step), self.variables()
        results, first = self._checked_run(feeds)
        if first is None:
            return results
        replay = ""
        if first.op:
            self._retry(before, step)
            self._finished, observers = (), self._finished
            replay = _outcome(first, self._checked_run(feeds)[1])
            self._finished = observers
        self._retry(before, step)
        self._write(first, step, replay)
        raise self._error(first, step, replay)

    def _write(self, found: _Finding, step: int, replay: str) -> None:
        if self._file and (self._world is None or self._world.rank == 0):
            data = {"job": self.plan.job, "step": step, **asdict(found), "replay": replay}
            Path(self._file).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")

    def _checked_run(self, feeds: Sequence[Array]) -> tuple[tuple[Array, ...], _Finding | None]:
        """Run one step; return its results, and the first finding of all processes."""
        if self._world is None and self._finding is not None:  # before the first task
            return (), self._finding
        try:
            results = super().run(feeds)
        except Exception as error:  # perhaps a kernel that refuses the number
            if self._finding is None:
                raise
            if self._world is None:
                return (), self._finding
            raise self._error(self._finding, int(self.step), "") from error
        return results, self._finding if self._world is None else self._first_of(self._world)

    def _notify(self, step: int, seconds: float) -> None:
        if self._finding is None:
            super()._notify(step, seconds)

    def _error(self, found: _Finding, step: int, replay: str) -> NonFiniteError:
        return found.error(
            step, "numbers other than NaN" if self.only_nan else "finite numbers", replay
        )

    def _first_of(self, world: World) -> _Finding | None:
        """Return the first finding of all processes in the order of the plan."""
        mine = b"" if self._finding is None else json.dumps(asdict(self._finding)).encode()
        roots, what = range(world.size), f"the checks of job {self.plan.job!r}"
        sizes = [np.array([len(mine) * (rank == world.rank)], np.int64) for rank in roots]
        world.share(sizes, roots, what)
        texts = [np.empty(int(size[0]), np.uint8) for size in sizes]
        texts[world.rank][...] = np.frombuffer(mine, np.uint8)
        told = [rank for rank in roots if texts[rank].size]
        world.share([texts[rank] for rank in told], told, what)
        found = [_Finding(**json.loads(texts[rank].tobytes())) for rank in told]
        return min(found, key=lambda f: f.position, default=None)

    def _retry(self, before: Mapping[int, Array], step: int) -> None:
        """Set everything to what it was before a step."""
        self.restore(before, step)
        self._finding = None

    def _at_start(self, feeds: Sequence[Array]) -> _Finding | None:
        """Check the fed arrays and, before the first step, the variables."""
        for name, array, region in self._fed(feeds):
            if array.dtype.kind not in "OSUbiu" and self._is_bad(array):
                return self._of_start(f"fed array {name!r}: {described(array, region)}")
        for name, i in () if self._started else self.plan.variables.items():
            if self._is_checked(i) and self._is_bad(array := self.host(i)):
                return self._of_start(f"variable {name!r}: {described(array, self._region(i))}")
        return None

    def _fed(self, feeds: Sequence[Array]) -> Iterator[tuple[str, Array, Region | None]]:
        """Yield the names, arrays and regions of the fed parts."""
        local = [i for i, array in enumerate(self.feeds) if array is not None]
        for position, (index, window) in zip(local, self.windows, strict=True):
            name = self.plan.buffers[self.plan.feeds[position]].op
            region = None if window is ... else tuple((w.start, w.stop) for w in window)
            yield name.removeprefix("Input_"), feeds[index][window], region

    def _of_start(self, found: str) -> _Finding:
        attempted = f"starting step {int(self.step)} of job {self.plan.job!r}{self._of_rank()}"
        return _Finding(-1, attempted, found)


def _outcome(first: _Finding, again: _Finding | None) -> str:
    """Describe the replay of a step."""
    if again is None:
        return "replay of the step: all numbers are finite; the step is not deterministic"
    if (again.op, again.found) == (first.op, first.found):
        return "replay of the step: the same numbers at the same op"
    return f"replay of the step: {again.attempted} instead; the step is not deterministic"


class NaNCheckedExecutable(CheckedExecutable):
    """A loaded plan whose steps end at the first task that computes NaN."""

    only_nan: ClassVar[bool] = True


def overlap(a: Buffer, b: Buffer) -> bool:
    """Return whether two buffers share memory."""
    if a.kind == "variable" or b.kind == "variable":
        return (a.op, a.memory) == (b.op, b.memory)
    apart = a.offset + a.type.nbytes <= b.offset or b.offset + b.type.nbytes <= a.offset
    return a.memory == b.memory and not apart


def described(array: Array, region: Region | None = None) -> str:
    """Describe the range of an array's numbers, and those that are not finite.

    Args:
        region: the region of a larger array that it is; None if it is no part.

    >>> described(np.array([1.0, 2.5]))
    'from 1 to 2.5'
    >>> described(np.array([[1.0, np.nan], [np.inf, 0.0]]))
    '1 NaN and 1 infinite of 4 numbers, the first at [0, 1], the others from 0 to 1'
    >>> described(np.array([0.0, np.nan]), ((6, 8),))
    '1 NaN of 2 numbers of the part [6:8], the first at [7], the others from 0 to 0'
    """
    with np.errstate(all="ignore"):
        wide = np.asarray(array).astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    finite = np.isfinite(wide)
    good = np.abs(wide[finite]) if array.dtype.kind == "c" else wide[finite]
    limits = f"from {good.min():.6g} to {good.max():.6g}" if good.size else ""
    if finite.all():
        return limits or "no numbers"
    first = first_bad(array, region)
    nans = int(np.isnan(wide).sum())
    kinds = ((nans, "NaN"), (int((~finite).sum()) - nans, "infinite"))
    counts = " and ".join(f"{n:,} {kind}" for n, kind in kinds if n)
    part = "" if region is None else f" of the part [{', '.join(f'{a}:{b}' for a, b in region)}]"
    rest = f", the others {limits}" if limits else ""
    return f"{counts} of {wide.size:,} numbers{part}, the first at {first}{rest}"


def first_bad(array: Array, region: Region | None) -> list[int]:
    """Return the place of the first number that is not finite, in the whole tensor."""
    starts = [0] * array.ndim if region is None else [low for low, _ in region]
    where = np.argwhere(~np.isfinite(array))[0]
    return [int(i) + start for i, start in zip(where, starts, strict=True)]
