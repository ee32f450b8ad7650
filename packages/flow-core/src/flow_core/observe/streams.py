"""The streams of a plan as table rows: their tasks, and the registers between them."""

from __future__ import annotations

from collections.abc import Iterator

from flow_core.plan import Plan

STREAM_COLUMNS = ("stream", "tasks", "that wait", "for streams")
FLOW_COLUMNS = ("from", "value", "to", "slots")


def stream_rows(plan: Plan) -> Iterator[tuple[str, int, int, str]]:
    """Yield per stream: name, number of tasks, number of waiting tasks, awaited streams.

    Yields nothing for a plan with one stream.
    """
    for number, name in enumerate(plan.streams):
        tasks = [task for task in plan.tasks if task.stream == number]
        waits = [other for task in tasks for other in task.waits]
        whose = dict.fromkeys(plan.streams[plan.tasks[other].stream] for other in waits)
        yield name, len(tasks), sum(bool(task.waits) for task in tasks), ", ".join(whose)


def flow_rows(plan: Plan) -> Iterator[tuple[str, str, str, int]]:
    """Yield per register between streams: producer, contents, consumers, and slots."""
    for register in plan.flows:
        value = register.name.removeprefix(f"{register.producer}: ")
        yield register.producer, value, ", ".join(register.consumers), register.slots


def threads(plan: Plan) -> str:
    """Describe the number of threads that run the streams, and of threads per kernel.

    >>> threads(Plan("job", (), (), (), (), (), (), {}, (), (), workers=2))
    'on 2 threads'
    """
    if plan.workers <= 1:
        return "in turn, on one thread"
    kernels = f", kernels of {plan.cores.kernels}" if plan.cores.kernels else ""
    return f"on {plan.workers} threads{kernels}"
