"""Measurement of the time of each task, in steps that run on separate variables."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from flow_core.frontend.job.function import AnyJob
from flow_core.observe.feeds import draw_feeds, draw_variable, whole_batches
from flow_core.observe.isolated_run import isolated
from flow_core.runtime.timed import TaskTime, TimedExecutable

WARM_UP = 1
"""How many steps run before the measured ones."""

STEPS = 5
"""The largest number of measured steps."""

SECONDS = 2.0
"""The time after which no further step starts; at least one step is measured."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time span of one task in the step of median duration.

    Attributes:
        task: the task's position in `Plan.tasks`.
        start, stop: seconds since the first task began.
        typical: the median duration of the task over all measured steps, in seconds.
    """

    task: int
    start: float
    stop: float
    typical: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured steps of a job.

    Attributes:
        spans: the tasks of the step of median duration, by start time.
        steps: how many steps were measured.
        seconds: the median duration of a step.
    """

    spans: tuple[Span, ...] = ()
    steps: int = 0
    seconds: float = 0.0


NOT_MEASURED = Measured()


def measure(
    job: AnyJob, seed: int = 0, progress: Callable[[str], object] = lambda _: None
) -> Measured:
    """Run a few steps on random inputs, and return the time of each task.

    The session's variables are not changed.

    Args:
        job: the job; it is compiled if needed.
        seed: the seed of the random inputs.
        progress: a function that is called with a text before each step.
    """
    compiled = job.compile()
    session, rng = job.active_session(), np.random.default_rng(seed)
    graph = compiled.optimized_logical
    names = [op.name for op in graph.of_type("variable")]
    values = {name: draw_variable(session.declared[name], rng) for name in names}
    executable, _ = isolated(session, compiled.plan, values, TimedExecutable)
    feeds = whole_batches(draw_feeds(graph, compiled.inputs, rng), compiled.plan.micro_batches)
    steps: list[list[TaskTime]] = []
    end = np.inf
    for step in range(WARM_UP + STEPS):
        progress(f"running step {step + 1} of at most {WARM_UP + STEPS} on random inputs")
        executable.run(feeds)
        times = executable.take_times()
        if step == WARM_UP - 1:
            end = time.perf_counter() + SECONDS
        elif step >= WARM_UP:
            steps.append(times)
            if time.perf_counter() > end:
                break
    return _measured(steps)


def _measured(steps: Sequence[Sequence[TaskTime]]) -> Measured:
    """Combine the times of several steps."""
    seconds: dict[int, list[float]] = {}
    for times in steps:
        for found in times:
            seconds.setdefault(found.task, []).append(found.seconds)
    ranked = sorted(steps, key=_duration)
    middle = ranked[(len(ranked) - 1) // 2]
    first = min((t.start for t in middle), default=0.0)
    spans = [Span(t.task, t.start - first, t.stop - first, median(seconds[t.task])) for t in middle]
    spans.sort(key=lambda span: span.start)
    return Measured(tuple(spans), len(steps), median(map(_duration, steps)))


def _duration(times: Sequence[TaskTime]) -> float:
    return max((t.stop for t in times), default=0.0) - min((t.start for t in times), default=0.0)
