"""The memory of a simulated step over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from flow_core.costs.clock import Span, Step
from flow_core.sharding.topology import Device


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a device."""

    device: Device
    arena: int  # the bytes that the plan allocates once for all steps
    variables: int  # the bytes of the variables
    # (seconds, bytes of the arena that hold values then), at each change.
    live: tuple[tuple[float, int], ...]

    @property
    def total(self) -> int:
        """The bytes that a step needs."""
        return self.arena + self.variables

    @property
    def peak(self) -> tuple[float, int]:
        """The time at which most bytes hold values, and their number."""
        return max(self.live, key=lambda point: point[1], default=(0.0, 0))


def memory_of(step: Step) -> list[Memory]:
    """Return the memory of each device, the largest first."""
    plan = step.costs.plan
    variables: dict[Device, int] = {}
    for i in plan.variables.values():
        buffer = plan.buffers[i]
        if buffer.home in (None, buffer.device):
            variables[buffer.device] = variables.get(buffer.device, 0) + buffer.type.nbytes
    blocks = _blocks(step)
    found = [
        Memory(a.device, a.nbytes, variables.get(a.device, 0), _curve(blocks.get(a.device, ())))
        for a in plan.arenas
    ]
    return sorted(found, key=lambda m: -m.total)


Block = tuple[float, float, int, int]
"""The start and the end of the use of a part of an arena, and its first and last offset."""


def _blocks(step: Step) -> dict[Device, list[Block]]:
    """Return the uses of each arena."""
    plan, used = step.costs.plan, dict[int, list[float]]()
    for task, (start, end) in zip(plan.tasks, step.spans, strict=True):
        own = () if task.workspace is None else (task.workspace,)
        for i in (*task.inputs, *task.outputs, *own):
            span = used.setdefault(i, [start, end])
            span[0], span[1] = min(span[0], start), max(span[1], end)
    for i in plan.feeds:
        used.setdefault(i, [0.0, 0.0])[0] = 0.0
    for i in plan.fetches:
        used.setdefault(i, [0.0, 0.0])[1] = step.seconds
    found: dict[Device, list[Block]] = {}
    for i, (start, end) in used.items():
        buffer = plan.buffers[i]
        if buffer.kind != "variable" and buffer.type.nbytes:
            block = start, end, buffer.offset, buffer.offset + buffer.type.nbytes
            found.setdefault(buffer.memory, []).append(block)
    return found


def _curve(blocks: Sequence[Block]) -> tuple[tuple[float, int], ...]:
    """Return the bytes in use at each change; several uses of a byte at the same time count once.

    >>> _curve([(0.0, 2.0, 0, 8), (1.0, 3.0, 4, 12)])
    ((0.0, 8), (1.0, 12), (2.0, 8), (3.0, 0))
    """
    bounds = sorted({bound for block in blocks for bound in block[2:]})
    number = {bound: i for i, bound in enumerate(bounds)}
    spans: list[list[Span]] = [[] for _ in bounds]
    for start, end, low, high in sorted(blocks):
        for i in range(number[low], number[high]):
            if spans[i] and start <= spans[i][-1][1]:
                spans[i][-1] = spans[i][-1][0], max(spans[i][-1][1], end)
            else:
                spans[i].append((start, end))
    changes: dict[float, int] = {}
    for (low, high), used in zip(pairwise(bounds), spans, strict=False):
        for start, end in used:
            changes[start] = changes.get(start, 0) + high - low
            changes[end] = changes.get(end, 0) - (high - low)
    times = sorted(changes)
    return tuple(zip(times, accumulate(changes[at] for at in times), strict=True))
