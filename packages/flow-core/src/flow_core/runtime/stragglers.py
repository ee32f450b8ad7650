"""Processes that compute more slowly than others: the times of tasks, compared between ranks.

In every `EVERY`-th step, each process reads a clock before and after each of its tasks; exchanges,
which wait for the others, are not counted.  After `WINDOW` steps, the processes tell each other the
median times of their tasks.  Kernels with equal types and attributes that several ranks run are
compared: a rank is slow if its tasks take `SLOW` times as long as those of the median rank.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, median_low
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import UnsupportedError
from flow_core.base.shutdown import call_at_shutdown, cancel_at_shutdown
from flow_core.comm.exchange import BOXING
from flow_core.device import Launch
from flow_core.plan import Plan, Task
from flow_core.runtime.executable import Executable

EVERY, WINDOW = 4, 48
"""One of how many steps is measured, and the number of steps after which ranks are compared."""

SLOW = 1.05
"""How many times as long as those of the median rank the tasks of a slow rank take."""

SHOWN = 8
"""The largest number of ops of a rank in a report."""

REFRESH = 5.0
"""The seconds after which the file is written again if the same ranks are slow: replacing a file
takes as long as timing a thousand tasks."""

_log = logging.getLogger("flow_core")


@dataclass(frozen=True, slots=True)
class OpTime:
    """The time of an op on a rank."""

    op: str
    type: str
    line: str
    seconds: float  # the median of its measured times in the window
    planned: float  # the seconds that the plan predicts
    others: float  # the seconds of equal kernels on the median rank


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The times of a rank."""

    rank: int
    seconds: float  # the measured seconds of its tasks in a step, without exchanges
    planned: float  # the seconds that the plan predicts for them
    # How many times as long as on the median rank the kernels take that other ranks run, too; None
    # if no other rank runs any of them.
    ratio: float | None
    ops: tuple[OpTime, ...]  # the ops that lose most time to the median rank

    @property
    def is_slow(self) -> bool:
        return self.ratio is not None and self.ratio >= SLOW


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ranks of a job in a window of steps."""

    job: str
    first: int  # step of the window, counted from 0
    last: int  # step of the window
    ranks: tuple[RankTimes, ...]

    @property
    def slow(self) -> list[RankTimes]:
        """The stragglers, the slowest first."""
        return sorted((r for r in self.ranks if r.is_slow), key=lambda r: -(r.ratio or 0.0))

    @classmethod
    def of(cls, data: Any) -> Comparison:
        """Return a comparison, given as in the text of `to_json`."""
        ranks = tuple(
            RankTimes(**{**row, "ops": tuple(OpTime(**op) for op in row["ops"])})
            for row in data["ranks"]
        )
        return cls(data["job"], data["first"], data["last"], ranks)


def to_json(jobs: Iterable[Comparison]) -> str:
    """Return the comparisons of some jobs as JSON text."""
    rows = [asdict(job) | {"slow": [rank.rank for rank in job.slow]} for job in jobs]
    return json.dumps({"jobs": rows}, indent=2)


@dataclass
class _File:
    """The file to which rank 0 writes the last comparison of each job."""

    path: Path
    jobs: dict[str, Comparison] = field(default_factory=dict)
    written: float = float("-inf")

    def add(self, found: Comparison, at_once: bool) -> None:
        """Replace the comparison of a job; write the file now, later, or when the program ends."""
        is_new = found.job not in self.jobs
        self.jobs[found.job] = found
        cancel_at_shutdown(self.write)
        if at_once or is_new or time.monotonic() - self.written > REFRESH:
            self.write()
        else:
            call_at_shutdown(self.write)

    def write(self) -> None:
        """Write the file."""
        self.path.write_text(to_json(self.jobs.values()) + "\n", encoding="utf-8")
        self.written = time.monotonic()


_files: dict[str, _File] = {}
"""The files of this process, by path."""


def kernels_of(plan: Plan) -> list[tuple[Any, ...]]:
    """Return for each task what it has in common with those of the same kernel and equal sizes."""
    return [_kernel(plan, task) for task in plan.tasks]


def compare(
    plan: Plan,
    kinds: Sequence[tuple[Any, ...]],  # what `kernels_of` returns for the plan
    owner: Callable[[Task], int],
    seconds: Mapping[int, float],
    first: int,  # the steps of the window
    last: int,
) -> Comparison:
    """Compare the ranks of a plan."""
    kernels: dict[Any, dict[int, list[int]]] = {}
    for position in seconds:
        ranks = kernels.setdefault(kinds[position], {})
        ranks.setdefault(owner(plan.tasks[position]), []).append(position)
    usual: dict[int, float] = {}
    for ranks in kernels.values():
        means = [sum(seconds[i] for i in own) / len(own) for own in ranks.values()]
        if len(means) > 1:
            usual.update((i, median_low(means)) for own in ranks.values() for i in own)
    own: dict[int, list[int]] = {}
    for position in seconds:
        own.setdefault(owner(plan.tasks[position]), []).append(position)
    ranks_found = tuple(_rank(plan, r, own[r], seconds, usual) for r in sorted(own))
    return Comparison(plan.job, first, last, ranks_found)


def _kernel(plan: Plan, task: Task) -> tuple[Any, ...]:
    """Return what two tasks have in common that the same kernel computes on equal sizes."""
    types = tuple(str(plan.buffers[i].type) for i in (*task.inputs, *task.outputs))
    return task.type, task.kernel, types, repr(sorted(task.attrs.items()))


def _rank(
    plan: Plan,
    rank: int,
    positions: Sequence[int],
    seconds: Mapping[int, float],
    usual: Mapping[int, float],
) -> RankTimes:
    shared = [i for i in positions if i in usual]
    expected = sum(usual[i] for i in shared)
    ratio = sum(seconds[i] for i in shared) / expected if expected else None
    slowest = sorted(shared, key=lambda i: usual[i] - seconds[i])[:SHOWN]
    tasks = plan.tasks
    ops = tuple(
        OpTime(tasks[i].op, tasks[i].type, tasks[i].line, seconds[i], tasks[i].seconds, usual[i])
        for i in slowest
    )
    planned = sum(tasks[i].seconds for i in positions)
    return RankTimes(rank, sum(seconds[i] for i in positions), planned, ratio, ops)


class ComparedExecutable(Executable):
    """A loaded plan whose tasks are timed in some steps, and compared with other processes.

    Args:
        file: the file to which rank 0 writes the last comparison of each job as JSON.

    Attributes:
        comparison: the comparison of the last window; None before the end of the first one.
    """

    def __init__(self, *args: Any, file: str, **kwargs: Any) -> None:
        self.comparison: Comparison | None = None
        self._file, self._count = file, 0
        self._times: dict[int, list[float]] = {}
        self._named: list[int] = []
        super().__init__(*args, **kwargs)

    def task_seconds(self, position: int, seconds: float) -> float:
        """Return the seconds of a task that took some seconds."""
        return seconds

    def _compiled(self) -> Launch:
        self._plain = super()._compiled()
        self._kinds = kernels_of(self.plan)
        if self._order.asynchronous:
            raise UnsupportedError(
                f"timing the tasks of job {self.plan.job!r}",
                found="a device that computes asynchronously",
                allowed="devices that compute on the host",
                hint="unset FLOW_STRAGGLERS; flow-dist run --trace shows the times of all ranks",
            )
        rows = [self._timed_launches(i, row) for i, row in enumerate(self._bound)]
        self._timed = self._launcher(rows)
        return self._plain

    def _timed_launches(self, position: int, launches: Sequence[Launch]) -> Sequence[Launch]:
        if not launches or self.plan.tasks[position].type == BOXING:
            return launches
        began, clock, times = 0.0, time.perf_counter, self._times.setdefault(position, [])

        def start() -> None:
            nonlocal began
            began = clock()

        def stop() -> None:
            times.append(self.task_seconds(position, clock() - began))

        return (start, *launches, stop)

    def run(self, feeds: Sequence[Array]) -> tuple[Array, ...]:
        """Run one step; time its tasks in some steps, and compare the ranks after a window."""
        self._count += 1
        self._launch = self._plain if self._count % EVERY else self._timed
        results = super().run(feeds)
        if self._count % WINDOW == 0:
            self._compare()
        return results

    def _compare(self) -> None:
        medians = {i: median(found) for i, found in self._times.items() if found}
        for found in self._times.values():
            found.clear()
        world = self._world
        rank = 0 if world is None else world.rank
        self.comparison = compare(
            self.plan,
            self._kinds,
            lambda task: 0 if world is None else world.owner(task.device),
            self._shared_medians(medians),
            self._count - WINDOW,
            self._count - 1,
        )
        if rank == 0:
            file = _files.setdefault(self._file, _File(Path(self._file)))
            named = [rank.rank for rank in self.comparison.slow]
            file.add(self.comparison, at_once=named != self._named)
            self._warn(self.comparison, named)

    def _shared_medians(self, medians: Mapping[int, float]) -> dict[int, float]:
        """Return the median times of the tasks of all processes."""
        world = self._world
        if world is None:
            return dict(medians)
        rows = [np.zeros(len(self.plan.tasks)) for _ in range(world.size)]
        for position, seconds in medians.items():
            rows[world.rank][position] = seconds
        world.share(rows, range(world.size), f"the times of job {self.plan.job!r}")
        total = np.sum(rows, axis=0)
        return {int(i): float(total[i]) for i in np.flatnonzero(total)}

    def _warn(self, found: Comparison, named: list[int]) -> None:
        """Log the stragglers if they are others than before."""
        for rank in found.slow if named != self._named else ():
            most = next((op for op in rank.ops if op.line), rank.ops[0])
            _log.warning(
                "rank %d is a straggler: in steps %d to %d of job %r, its tasks took %.2f times as "
                "long as those of the median rank, such as %s %r (at %s): %.3g s, %.3g s there",
                rank.rank, found.first, found.last, found.job, rank.ratio or 0.0, most.type,
                most.op, most.line, most.seconds, most.others,
            )  # fmt: skip
        self._named = named
