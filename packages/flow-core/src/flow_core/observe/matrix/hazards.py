"""Proof that the waits of a plan keep all accesses to its memory in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flow_core.base.alignment import aligned
from flow_core.base.hazards import Access, find_waits
from flow_core.plan import Buffer, Plan, Task
from flow_core.plugins.specs import OpSpec


def missing_waits(plan: Plan, specs: Mapping[str, OpSpec]) -> Iterator[tuple[int, int]]:
    """Yield (task, earlier task of another stream) whose order no wait of the plan ensures.

    Both access the same bytes, and at least one of them writes; on several threads, either may be
    the first.
    """
    accesses = [list(_accesses(plan, task, specs)) for task in plan.tasks]
    needed = find_waits([task.stream for task in plan.tasks], accesses)
    before: list[int] = []  # for each task, the tasks that end before it starts, as bits
    last: dict[int, int] = {}
    for position, task in enumerate(plan.tasks):
        known = 0
        direct = [*task.waits, *([last[task.stream]] if task.stream in last else [])]
        for other in direct:
            if other < position:
                known |= before[other] | 1 << other
        before.append(known)
        last[task.stream] = position
        yield from ((position, other) for other in needed[position] if not known >> other & 1)


def _accesses(plan: Plan, task: Task, specs: Mapping[str, OpSpec]) -> Iterator[Access]:
    mutates = specs[task.type].mutates
    for i, index in enumerate(task.inputs):
        yield _access(plan.buffers[index], i in mutates)
    own = () if task.workspace is None else (task.workspace,)
    for index in (*task.outputs, *own):
        yield _access(plan.buffers[index], True)


def _access(buffer: Buffer, writes: bool) -> Access:
    space: Any = (buffer.memory, buffer.name) if buffer.kind == "variable" else buffer.memory
    low = 0 if buffer.kind == "variable" else buffer.offset
    return Access(space, low, low + aligned(buffer.type.nbytes), writes)
