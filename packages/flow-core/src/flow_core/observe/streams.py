"""Table rows for the streams of a plan, their tasks, and the registers between streams."""

from __future__ import annotations

from collections.abc import Iterator

from flow_core.plan import Plan

STREAM_COLUMNS = ("stream", "tasks", "that wait", "for streams")
FLOW_COLUMNS = ("from", "value", "to", "slots")


def stream_rows(plan: Plan) -> Iterator[tuple[str, int, int, str]]:
    """Yield, for each stream, its name, its number of tasks, how many wait, and awaited streams.

    Yield nothing for a plan with only one stream.
    """
    for number, name in enumerate(plan.streams):
        tasks = [task for task in plan.tasks if task.stream == number]
        waits = [other for task in tasks for other in task.waits]
        whose = dict.fromkeys(plan.streams[plan.tasks[other].stream] for other in waits)
        yield name, len(tasks), sum(bool(task.waits) for task in tasks), ", ".join(whose)


def flow_rows(plan: Plan) -> Iterator[tuple[str, str, str, int]]:
    """Yield, for each register between streams, its producer, contents, consumers and slots."""
    for register in plan.flows:
        value = register.name.removeprefix(f"{register.producer}: ")
        yield register.producer, value, ", ".join(register.consumers), register.slots


def threads(plan: Plan) -> str:
    """Describe how many threads run the streams, and how many threads a kernel uses.

    >>> threads(Plan("job", (), (), (), (), (), (), {}, (), (), workers=2))
    'on 2 threads'
    """
    if plan.workers <= 1:
        return "in turn, on one thread"
    kernels = f", kernels of {plan.cores.kernels}" if plan.cores.kernels else ""
    return f"on {plan.workers} threads{kernels}"
