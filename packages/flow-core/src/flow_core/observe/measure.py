"""When each task of a step ran: one measured step, on variables of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from flow_core.device import Launch
from flow_core.frontend.function import JobFunction
from flow_core.observe.feeds import draw_feeds, draw_variable
from flow_core.observe.rehearsal import Variables
from flow_core.plan import Plan, Task
from flow_core.runtime.executable import Executable

STEPS = 5


@dataclass(frozen=True, slots=True)
class Span:
    """One task of the measured step.

    Attributes:
        task: position in `Plan.tasks`.
        start, stop: seconds since the first task began.
        thread: number of the thread that ran it, in the order of their first tasks.
    """

    task: int
    start: float
    stop: float
    thread: int


class _Timed(Executable):
    """An executable that notes when its tasks begin and end."""

    def __init__(self, plan: Plan, *rest: Any) -> None:
        self.notes: list[tuple[int, float, int]] = []
        self._number = {id(task): i for i, task in enumerate(plan.tasks)}
        super().__init__(plan, *rest)

    def bind_task(self, task: Task) -> Sequence[Launch]:
        """The task's launches between two notes."""
        launches = super().bind_task(task)
        if id(task) not in self._number:
            return launches
        note: Callable[[], None] = partial(self._note, self._number[id(task)])
        return [note, *launches, note]

    def _note(self, task: int) -> None:
        self.notes.append((task, time.perf_counter(), threading.get_ident()))


def measure(job: JobFunction, seed: int = 0) -> tuple[Span, ...]:
    """Runs a few steps on random inputs, and gives the tasks of the fastest by their start.

    The session's variables are left alone.  The notes themselves take a fraction of a
    microsecond per task.
    """
    compiled, traced = job.compile(), job.prepare()
    session, rng = traced.build.session, np.random.default_rng(seed)
    names = [op.name for op in compiled.spread.of_type("variable")]
    values = {name: draw_variable(session.declared[name], rng) for name in names}
    variables = Variables(session, values)
    timed = _Timed(compiled.plan, session.registry, session.driver, variables.part)
    steps = []
    for _ in range(STEPS):
        timed.notes.clear()
        timed.run(draw_feeds(compiled.spread, traced.inputs, rng))
        steps.append(tuple(_spans(timed.notes)))
    return min(steps, key=lambda spans: max((s.stop for s in spans), default=0.0))


def _spans(notes: Sequence[tuple[int, float, int]]) -> list[Span]:
    """Pairs of notes of one task as spans."""
    begun: dict[int, float] = {}
    threads: dict[int, int] = {}
    zero = min((when for _, when, __ in notes), default=0.0)
    found = []
    for task, when, thread in notes:
        number = threads.setdefault(thread, len(threads))
        if task in begun:
            found.append(Span(task, begun.pop(task) - zero, when - zero, number))
        else:
            begun[task] = when
    return sorted(found, key=lambda span: span.start)
