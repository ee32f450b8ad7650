"""The measurement of the kernels of a plan, for its simulation."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from flow_core.comm.exchange import BOXING
from flow_core.compiler.request import Compiled
from flow_core.costs.task_costs import TaskCosts
from flow_core.frontend.job.function import AnyJob
from flow_core.observe.measure import measure
from flow_core.runtime.timed import CpuTimedExecutable, TimedExecutable

STEPS = 40
"""The largest number of steps in which kernels are measured."""


def measured_kernels(
    job: AnyJob,
    compiled: Compiled,
    costs: TaskCosts,
    show: Callable[[str], object] = lambda _: None,
) -> dict[str, float]:
    """Run a few steps of a plan on random inputs; return the seconds of its kernels by key.

    The session's variables are not changed.  The shortest time of each task counts, which other
    programs on the machine delay least, of kernels with one thread the CPU time; kernels with
    equal keys cost the median of their tasks.
    """
    hosted = all(costs.is_hosted(arena.device) for arena in costs.plan.arenas)
    alone = hosted and costs.threads == 1 and costs.plan.workers <= 1
    kind = CpuTimedExecutable if alone else TimedExecutable
    steps = measure(job, 0, show, min, compiled, STEPS, kind)
    found: dict[str, list[float]] = {}
    for span in steps.spans:
        task = costs.plan.tasks[span.task]
        if task.type != BOXING:
            found.setdefault(costs.key(task), []).append(span.seconds)
    return {key: median(seconds) for key, seconds in found.items()}
