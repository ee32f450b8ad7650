"""Measurement of the time of each task, in steps that run on separate variables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from flow_core.compiler.request import Compiled
from flow_core.frontend.job.function import AnyJob
from flow_core.observe.feeds import draw_feeds, draw_variable, whole_batches
from flow_core.observe.isolated_run import isolated
from flow_core.plan import Plan
from flow_core.runtime.timed import TaskTime, TimedExecutable

WARM_UP = 1
"""How many steps run before the measured ones, unless the first one takes longer than `SECONDS`."""

STEPS = 5
"""The largest number of measured steps."""

SECONDS = 2.0
"""The time after which no further step starts; at least one step is measured."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time span of one task in a step in which each task has its median duration."""

    task: int  # the task's position in `Plan.tasks`
    start: float  # seconds since the step began
    stop: float  # likewise

    @property
    def seconds(self) -> float:
        """The median duration of the task over all measured steps."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured steps of a job."""

    spans: tuple[Span, ...] = ()  # the tasks, by start time
    steps: int = 0  # how many steps were measured
    seconds: float = 0.0  # the median duration of a step


NOT_MEASURED = Measured()


def measure(
    job: AnyJob,
    seed: int = 0,
    progress: Callable[[str], object] = lambda _: None,
    typical: Callable[[Iterable[float]], float] = median,
    compiled: Compiled | None = None,
    most: int = STEPS,
    kind: type[TimedExecutable] = TimedExecutable,
) -> Measured:
    """Run a few steps on random inputs, and return the time of each task.

    The session's variables are not changed.

    Args:
        job: the job; it is compiled if needed.
        seed: the seed of the random inputs.
        progress: a function that is called with a text before each step.
        typical: returns the duration of a task, given those in all steps.
        compiled: the compiled job, if another plan than the job's own is measured.
        most: the largest number of measured steps.
        kind: the executable, which records times.
    """
    compiled = compiled or job.compile()
    session, rng = job.active_session(), np.random.default_rng(seed)
    graph = compiled.optimized_logical
    names = [op.name for op in graph.of_type("variable")]
    values = {name: draw_variable(session.declared[name], rng) for name in names}
    executable, _ = isolated(session, compiled.plan, values, kind)
    feeds = whole_batches(draw_feeds(graph, compiled.inputs, rng), compiled.plan.micro_batches)
    steps: list[list[TaskTime]] = []
    end = time.perf_counter() + SECONDS
    for step in range(WARM_UP + most):
        progress(f"running step {step + 1} of at most {WARM_UP + most} on random inputs")
        executable.run(feeds)
        steps.append(executable.take_times())
        if time.perf_counter() > end:
            break
        if step < WARM_UP:
            steps.clear()
            end = time.perf_counter() + SECONDS
    return _measured(compiled.plan, steps, typical)


def _measured(
    plan: Plan,
    steps: Sequence[Sequence[TaskTime]],
    typical: Callable[[Iterable[float]], float],
) -> Measured:
    """Combine the times of several steps."""
    seconds: dict[int, list[float]] = {}
    for times in steps:
        for found in times:
            seconds.setdefault(found.task, []).append(found.seconds)
    durations = {task: typical(found) for task, found in seconds.items()}
    spans = sorted(arranged(plan, durations), key=lambda span: span.start)
    return Measured(tuple(spans), len(steps), typical(map(_duration, steps)))


def arranged(plan: Plan, seconds: Mapping[int, float]) -> Iterator[Span]:
    """Yield a span for each task of which the duration is given.

    A task starts after the last task of its stream, the tasks that it waits for and, if one thread
    runs all streams, the last task of any stream.
    """
    ends: dict[int, float] = {}
    streams: dict[int, float] = {}
    last = 0.0
    for position, task in enumerate(plan.tasks):
        if position not in seconds:
            continue
        before = [ends[i] for i in task.waits if i in ends]
        start = max([streams.get(task.stream, 0.0), *before, last if plan.workers <= 1 else 0.0])
        last = ends[position] = streams[task.stream] = start + seconds[position]
        yield Span(position, start, last)


def _duration(times: Sequence[TaskTime]) -> float:
    return max((t.stop for t in times), default=0.0) - min((t.start for t in times), default=0.0)
