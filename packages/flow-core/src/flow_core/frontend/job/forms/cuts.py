"""Places at which a network is cut into the stages of a pipeline.

The ops that depend on both fed values and variables are in a row, in the order of the program.  A
stage has consecutive ops of the row; all others, such as variables, masks and labels, belong to the
stage of their first reader.  A trained variable is read in one stage only.

The cuts minimize the time of the slowest stage: that of its ops, and of receiving what crosses the
border before it.  Of equally fast cuts, those that the fewest bytes cross are chosen, by dynamic
programming over the borders (Narayanan et al. 2019, "PipeDream", section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from flow_core.ir.graph import Op, TensorType

MOST = 128
"""The largest number of borders that are compared."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where a network is cut."""

    stage: Mapping[str, int]  # the stage of each op; nothing if there are too few borders
    row: Sequence[str]  # the ops in a row, from whose borders the cuts were chosen


def cut(
    ops: Mapping[str, Op],  # the graph of the forward pass
    types: Mapping[str, Sequence[TensorType]],
    count: int,
    seconds: Callable[[Op], float],  # the time of an op
    per_byte: float,  # the seconds per byte that crosses a border
) -> Cuts:
    """Cut a network into stages."""
    row = _Row.of(ops)
    crossing = row.crossing(types)
    until = [0.0, *accumulate(seconds(ops[name]) for name in row.at)]
    allowed = [b for b, refused in enumerate(row.refused()) if not refused]
    borders = [0, *_thinned(allowed, until, crossing), len(row.at)]

    def price(a: int, b: int) -> float:
        return until[b] - until[a] + crossing[a] * per_byte

    cuts = _cheapest(borders, count, price, crossing)
    spans = enumerate(pairwise((0, *cuts, len(row.at)))) if cuts else ()
    stage = [number for number, (a, b) in spans for _ in range(a, b)]
    return Cuts({name: stage[row.first[name]] for name in ops} if cuts else {}, [*row.at])


@dataclass(frozen=True, slots=True)
class _Row:
    """The ops in a row."""

    ops: Mapping[str, Op]
    at: Mapping[str, int]  # the position of each op of the row
    first: Mapping[str, int]  # the position of an op, or of its first reader outside the row
    last: Mapping[str, int]  # the position after which the result of an op is not read

    @classmethod
    def of(cls, ops: Mapping[str, Op]) -> _Row:
        fed, varied, at = set[str](), set[str](), dict[str, int]()
        for name, op in ops.items():
            before = {value.op for value in op.inputs}
            if not before.isdisjoint(fed) or (not before and op.type not in _FIXED):
                fed.add(name)
            if not before.isdisjoint(varied) or op.type == "variable":
                varied.add(name)
            if name in fed and name in varied:
                at[name] = len(at)
        first, last = dict(at), dict[str, int]()
        for name, op in reversed([*ops.items()]):
            found = first.setdefault(name, max(0, len(at) - 1))  # nothing reads it
            last.setdefault(name, found)
            for value in op.inputs:
                last[value.op] = max(last.get(value.op, found), found)
                if value.op not in at:
                    first[value.op] = min(first.get(value.op, found), found)
        return cls(ops, at, first, last)

    def refused(self) -> list[bool]:
        """Return, for each border, whether ops on both sides read the same trained variable."""
        reach = dict(self.last)
        for name, op in reversed([*self.ops.items()]):
            for value in op.inputs if name not in self.at else ():
                reach[value.op] = max(reach[value.op], reach[name])
        trained = (name for name, op in self.ops.items() if _is_trained(op))
        spans = ((self.first[name], reach[name], 1) for name in trained)
        return [n > 0 for n in self._over_borders(spans, outside=1)]

    def crossing(self, types: Mapping[str, Sequence[TensorType]]) -> list[int]:
        """Return the bytes that cross each border."""
        return self._over_borders(
            (self.first[name], self.last[name], sum(t.nbytes for t in types[name]))
            for name in self.ops
        )

    def _over_borders(self, spans: Iterator[tuple[int, int, int]], outside: int = 0) -> list[int]:
        """Return the sum of the spans that cross each border; border i is before position i."""
        changes = [0] * (len(self.at) + 2)
        for first, last, amount in spans:
            changes[first + 1] += amount
            changes[last + 1] -= amount
        found = [*accumulate(changes)][: len(self.at) + 1]
        found[0], found[-1] = outside, outside
        return found


_FIXED = ("variable", "constant")
"""Ops without inputs whose results are not fed."""


def _is_trained(op: Op) -> bool:
    return op.type == "variable" and bool(op.attrs["trainable"])


def _thinned(borders: Sequence[int], until: Sequence[float], crossing: Sequence[int]) -> list[int]:
    """Return at most `MOST` borders: of those at about the same time, the one with fewest bytes."""
    if len(borders) <= MOST:
        return [*borders]
    best: dict[int, int] = {}
    for border in borders:
        part = int(MOST * until[border] / until[-1]) if until[-1] else 0
        if part not in best or crossing[border] < crossing[best[part]]:
            best[part] = border
    return sorted(best.values())


def _cheapest(
    borders: Sequence[int],
    count: int,
    price: Callable[[int, int], float],
    crossing: Sequence[int],
) -> tuple[int, ...]:
    """Return the borders between stages whose slowest one is fastest; none if they are too few."""
    best: dict[int, tuple[float, int, tuple[int, ...]]]
    best = {0: (0.0, 0, ())}  # of the ops before a border: slowest stage, bytes, and the cuts
    for stage in range(count):
        ends = borders[-1:] if stage == count - 1 else borders[1:-1]
        best = {
            b: min(
                (max(slowest, price(a, b)), moved + crossing[a], (*cuts, a))
                for a, (slowest, moved, cuts) in before.items()
            )
            for b in ends
            if (before := {a: found for a, found in best.items() if a < b})
        }
    _, _, cuts = best.get(borders[-1], (0.0, 0, ()))
    return cuts[1:]
