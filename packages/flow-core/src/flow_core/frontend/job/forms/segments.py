"""Segments of a network whose activations are computed again.

What a step keeps are the values that cross the borders of segments, and what one segment computes
again.  Borders are where few bytes cross, such as between the layers of a transformer, and segments
are so long that the sum of both is small (Chen et al. 2016, "Training Deep Nets with Sublinear
Memory Cost", section 4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from flow_core.ir.graph import Op, TensorType


def segments(
    ops: Mapping[str, Op], types: Mapping[str, Sequence[TensorType]], forward: Collection[str]
) -> list[list[str]]:
    """Return the names of the ops of each segment, in order.

    Args:
        ops, types: the graph.
    """
    names = [name for name in ops if name in forward and ops[name].inputs]
    sizes = [sum(t.nbytes for t in types[name]) for name in names]
    crossing = _crossing(ops, names, sizes)
    until = [0, *accumulate(sizes)]

    def kept(borders: Sequence[int]) -> int:
        longest = max(until[b] - until[a] for a, b in pairwise(borders))
        return longest + sum(crossing[b] for b in borders)

    found = [[0, *_steps(until, crossing, until[-1] >> n)] for n in range(until[-1].bit_length())]
    best = min(found, key=kept, default=[0])
    return [names[a:b] for a, b in pairwise(best)]


def _crossing(ops: Mapping[str, Op], names: Sequence[str], sizes: Sequence[int]) -> list[int]:
    """Return the bytes that cross each border: those of values made before it and read after it."""
    at = {name: i for i, name in enumerate(names)}
    last = [*range(len(names))]
    for i, name in enumerate(names):
        for value in ops[name].inputs:
            if value.op in at:
                last[at[value.op]] = i
    changes = [0] * (len(names) + 2)
    for i, size in enumerate(sizes):
        changes[i + 1] += size
        changes[last[i] + 1] -= size
    return [*accumulate(changes)][: len(names) + 1]


def _steps(until: Sequence[int], crossing: Sequence[int], most: int) -> Iterator[int]:
    """Yield ends of segments whose values have at most so many bytes, if that is possible."""
    start, count = 0, len(until) - 1
    while start < count:
        end = start + 1
        while end < count and until[end + 1] - until[start] <= most:
            end += 1
        if end < count:
            half = range(start + (end - start) // 2 + 1, end + 1)
            end = min(half, key=lambda b: (crossing[b], -b), default=end)
        yield end
        start = end
