"""Measurement of the start and end of each task of a step that runs on isolated variables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flow_core.frontend.job.function import AnyJob
from flow_core.observe.feeds import draw_feeds, draw_variable, whole_batches
from flow_core.observe.isolated_run import simulate

STEPS = 5
"""How many steps to run; the page shows the fastest one."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time span of one task of the measured step.

    Attributes:
        task: the task's position in `Plan.tasks`.
        start, stop: seconds since the first task began.
    """

    task: int
    start: float
    stop: float


def measure(job: AnyJob, seed: int = 0) -> tuple[Span, ...]:
    """Run a few steps on random inputs, and return the spans of the fastest step by start time.

    The session's variables are not changed.
    """
    compiled = job.compile()
    session, rng = job.active_session(), np.random.default_rng(seed)
    names = [op.name for op in compiled.optimized_logical.of_type("variable")]
    values = {name: draw_variable(session.declared[name], rng) for name in names}
    executable = simulate(session, compiled.plan, values, ()).executable
    steps = []
    for _ in range(STEPS):
        feeds = draw_feeds(compiled.optimized_logical, compiled.inputs, rng)
        times = executable.timeline(whole_batches(feeds, compiled.plan.micro_batches))
        spans = [Span(i, time.start, time.stop) for i, time in enumerate(times)]
        steps.append(tuple(sorted(spans, key=lambda span: span.start)))
    return min(steps, key=lambda spans: max((s.stop for s in spans), default=0.0))
