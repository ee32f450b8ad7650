"""The streams of a plan as rows: what runs side by side, and what goes from one to another."""

from __future__ import annotations

from collections.abc import Iterator

from flow_core.plan import Plan

STREAM_COLUMNS = ("stream", "tasks", "that wait", "for streams")
FLOW_COLUMNS = ("from", "value", "to", "slots")


def stream_rows(plan: Plan) -> Iterator[tuple[str, int, int, str]]:
    """Per stream: its name, its tasks, how many of them wait for others, and for whose.

    No rows where a plan has one stream.
    """
    for number, name in enumerate(plan.streams):
        tasks = [task for task in plan.tasks if task.stream == number]
        waits = [other for task in tasks for other in task.waits]
        whose = dict.fromkeys(plan.streams[plan.tasks[other].stream] for other in waits)
        yield name, len(tasks), sum(bool(task.waits) for task in tasks), ", ".join(whose)


def flow_rows(plan: Plan) -> Iterator[tuple[str, str, str, int]]:
    """Per register between streams: who fills it, with what, who reads it, and its slots."""
    for register in plan.flows:
        value = register.name.removeprefix(f"{register.producer}: ")
        yield register.producer, value, ", ".join(register.consumers), register.slots


def threads(plan: Plan) -> str:
    """How many threads run the streams, and how many a kernel has, in words.

    >>> threads(Plan("job", (), (), (), (), (), (), {}, (), (), workers=2))
    'on 2 threads'
    """
    if plan.workers <= 1:
        return "in turn, on one thread"
    kernels = f", kernels of {plan.cores.kernels}" if plan.cores.kernels else ""
    return f"on {plan.workers} threads{kernels}"
