"""How the graph of a saved job depends on the size of its batch.

The job's program is traced for three batch sizes.  A number among the attributes of an op that
differs between them is ``slope * size + offset``, or for a fraction such as 1 / size,
``slope / size + offset``; two sizes determine the numbers, and the third checks them.  If this does
not hold, or if the program defines other ops or none, the job has the batch size with which it was
saved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import zip_longest
from math import isclose
from typing import Any

from flow_core.base.errors import FlowError
from flow_core.ir.graph import Attrs, Graph, Op
from flow_core.plugins.exporters import ExportedJob

Rule = tuple[tuple[int, ...], str, str, str]
"""The positions of a number in nested tuples, the kind of its rule, slope and offset."""

_INTEGER = re.compile(r"-?\d{1,20}(/[1-9]\d{0,19})?")

FACTORS = (2, 3, 5)
"""The traced batch sizes, as multiples of that of the job."""


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The numbers of a graph that depend on the batch size.

    Attributes:
        numbers: for each op and attribute, the rules of the numbers that differ; their kinds are
            "integer", "linear" and "inverse".
        fixed: why the batch size cannot be changed; "" if it can be.
        least: the smallest batch size for which the numbers hold.
        reason: why they do not hold for smaller sizes; "" if there are none.
    """

    numbers: Mapping[str, Mapping[str, tuple[Rule, ...]]] = field(default_factory=dict)
    fixed: str = ""
    least: int = 1
    reason: str = ""

    def check(self, size: int) -> None:
        """Check that the graph is defined for a batch size.

        Raises:
            ValueError: it is not.
        """
        if self.fixed:
            raise ValueError(self.fixed)
        if size < self.least:
            raise ValueError(f"at least {self.least} rows: {self.reason}")

    def attrs(self, op: Op, size: int) -> Attrs:
        """Return the attributes of an op for a batch size.

        Raises:
            ValueError: a number would not be an integer, or a rule does not fit the op.
        """
        new = dict(op.attrs)
        for name, rules in self.numbers.get(op.name, {}).items():
            for place, *rule in rules:
                if name not in new:
                    raise ValueError(f"{op.type} {op.name!r} has no attribute {name!r}")
                new[name] = _replaced(new[name], place, _number(rule, size, op))
        return Attrs(new)


def _replaced(value: Any, place: Sequence[int], number: Any) -> Any:
    if not place:
        return number
    first, *rest = place
    if not isinstance(value, tuple) or first not in range(len(value)):
        raise ValueError(f"{value!r:.60} has no element {first}")
    return tuple(_replaced(v, rest, number) if i == first else v for i, v in enumerate(value))


def _number(rule: Sequence[str], size: int, op: Op) -> int | float:
    kind, slope, offset = rule
    if kind == "integer":
        if not (_INTEGER.fullmatch(slope) and _INTEGER.fullmatch(offset)):
            raise ValueError(f"{op.type} {op.name!r} with the rule {slope!r:.30}, {offset!r:.30}")
        exact = Fraction(slope) * size + Fraction(offset)
        if exact.denominator != 1:
            raise ValueError(f"{op.type} {op.name!r} with the number {exact}")
        return int(exact)
    return float(slope) * (1 / size if kind == "inverse" else size) + float(offset)


def batch_sizes(job: ExportedJob) -> BatchSizes:
    """Trace a job for several batch sizes, and return how its numbers depend on them."""
    shapes = {name: job.graph.type_of(value).shape for name, value in job.inputs.items()}
    rows = max((shape[0] for shape in shapes.values() if shape), default=0)
    if not rows or job.retrace is None:
        return BatchSizes(fixed="it has no batch")
    sizes, retrace = [rows * factor for factor in FACTORS], job.retrace

    def traced(size: int) -> Graph:
        try:
            return retrace({k: (size, *s[1:]) for k, s in shapes.items() if s}).graph
        except FlowError as error:
            at = f" at {error.at}" if error.at else ""
            raise _Unknown(f"{error.attempted}{at}: {error.found}") from error

    try:
        found = BatchSizes(_numbers(job.graph, [traced(size) for size in sizes], sizes))
    except _Unknown as error:
        return BatchSizes(fixed=str(error))
    return _with_least(found, job.graph, traced, rows)


def _with_least(
    found: BatchSizes, graph: Graph, traced: Callable[[int], Graph], rows: int
) -> BatchSizes:
    """Find by bisection the smallest batch size for which the numbers are those of the program."""
    low, high, reason = 0, rows, ""  # low: does not hold
    size = 1
    while low + 1 < high:
        try:
            _check_holds(found, graph, traced(size), size)
            high = size
        except (_Unknown, ValueError) as error:
            low, reason = size, str(error)
        size = (low + high) // 2
    return replace(found, least=high, reason=reason)


def _check_holds(found: BatchSizes, graph: Graph, other: Graph, size: int) -> None:
    """Check that the graph for a batch size is the one that the numbers describe."""
    for op, again in zip_longest(graph.ops.values(), other.ops.values()):
        if op is None or again is None or not _alike(op, again):
            raise _Unknown(f"{_odd(graph, [other], op, [again])} differs for {size} rows")
        if op.type != "input" and found.attrs(op, size) != again.attrs:
            raise _Unknown(f"{where(graph, op)} has other numbers for {size} rows")


class _Unknown(Exception):
    """The graph depends on the batch size in an unknown way."""


def _numbers(
    graph: Graph, graphs: Sequence[Graph], sizes: Sequence[int]
) -> dict[str, dict[str, tuple[Rule, ...]]]:
    """Return the attributes that depend on the batch size, by op."""
    found: dict[str, dict[str, tuple[Rule, ...]]] = {}
    for op, *others in zip_longest(graph.ops.values(), *(g.ops.values() for g in graphs)):
        if op is None or any(o is None or not _alike(op, o) for o in others):
            raise _Unknown(f"{_odd(graph, graphs, op, others)} differs for other batch sizes")
        if op.type == "input":
            continue
        for name in op.attrs:
            values = [o.attrs[name] for o in others]
            what = f"{name} of {where(graph, op)}"
            entries = tuple(_entries(what, op.attrs[name], values, sizes, ()))
            if entries:
                found.setdefault(op.name, {})[name] = entries
    if any(g.results != graph.results for g in graphs):
        raise _Unknown("it returns the results of other ops for other batch sizes")
    return found


def _odd(graph: Graph, graphs: Sequence[Graph], op: Op | None, others: Sequence[Op | None]) -> str:
    """Describe an op of one graph that has no counterpart in another."""
    pairs = zip((graph, *graphs), (op, *others), strict=True)
    return next(where(owner, found) for owner, found in pairs if found is not None)


def _alike(op: Op, other: Op) -> bool:
    same = (op.name, op.type, op.inputs, op.attrs.keys())
    return same == (other.name, other.type, other.inputs, other.attrs.keys())


def where(graph: Graph, op: Op) -> str:
    """Return the type and name of an op, and its line if it is known."""
    line = graph.lines.get(op.name)
    return f"{op.type} {op.name!r}" + (f" at {line}" if line else "")


def _entries(
    what: str, own: Any, values: Sequence[Any], sizes: Sequence[int], place: tuple[int, ...]
) -> Iterator[Rule]:
    """Yield the place and the rule of each number that differs from that of the saved graph."""
    if all(v == own or (v != v and own != own) for v in values):
        return
    if all(isinstance(v, tuple) and len(v) == len(values[0]) for v in (own, *values)):
        for i, (part, *parts) in enumerate(zip(own, *values, strict=True)):
            yield from _entries(what, part, parts, sizes, (*place, i))
        return
    rule = _rule(values, sizes)
    if rule is None:
        raise _Unknown(f"{what} is {', '.join(map(str, values))} for batches of {sizes}")
    yield (place, *rule)


def _rule(values: Sequence[Any], sizes: Sequence[int]) -> tuple[str, str, str] | None:
    """Return the kind, slope and offset of a number, None if it has another form."""
    if all(type(v) is int for v in values):
        slope = Fraction(values[1] - values[0], sizes[1] - sizes[0])
        offset = values[0] - slope * sizes[0]
        fits = values[2] == slope * sizes[2] + offset
        return ("integer", str(slope), str(offset)) if fits else None
    if not all(type(v) in (int, float) for v in values):
        return None
    for kind, points in (("linear", sizes), ("inverse", [1 / n for n in sizes])):
        rise = (values[1] - values[0]) / (points[1] - points[0])
        start = values[0] - rise * points[0]
        if isclose(values[2], rise * points[2] + start, rel_tol=1e-12):
            if abs(start) <= 1e-12 * abs(values[0]):
                start = 0.0
            return kind, repr(float(rise)), repr(float(start))
    return None
