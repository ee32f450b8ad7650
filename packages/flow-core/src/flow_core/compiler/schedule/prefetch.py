"""Prefetching of weights: when exchanges that gather weights start.

Such an exchange depends on variables only and could start with the step, but its result would then
occupy memory until it is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence, Set

from flow_core.comm.exchange import BOXING
from flow_core.compiler.schedule.streams import COMPUTE, stream_name
from flow_core.ir.graph import Graph, Op
from flow_core.plugins.specs import OpSpec

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
"""The collectives that do not gather."""


def late_gathers(
    graph: Graph, specs: Mapping[str, OpSpec], order: Sequence[Op], free: Set[str], ahead: int
) -> dict[str, set[str]]:
    """Return additional predecessors of the exchanges that gather weights.

    On each stream, the gather of a weight waits until the first op that reads the weight ``ahead``
    places before it is about to start: for the ops before that op, and for other exchanges of their
    results, which free memory that the gather may use.

    Args:
        order: the ops of the graph, in an order without these constraints.  The result is not
            circular, because all ops whose end a gather waits for precede its readers there, and
            none is an update, which waits for gathers of its weight.
        free: ops that take no time, such as views.
        ahead: the number of weights that are gathered ahead.
    """
    fixed = _fixed(graph, specs)
    queues: dict[str, dict[int, list[str]]] = {}
    for name, at in _first_reads(order, fixed).items():
        queue = queues.setdefault(stream_name(graph.ops[name]), {})
        queue.setdefault(at, []).append(name)
    others = _other_exchanges(graph, order, fixed)
    computing: dict[str, list[int]] = {}
    for i, op in enumerate(order):
        if op.type != BOXING and op.name not in free and not specs[op.type].mutates:
            computing.setdefault(stream_name(op), []).append(i)
    found: dict[str, set[str]] = {}
    for queue in queues.values():
        starts, done = sorted(queue), 0
        for earlier, start in zip(starts, starts[ahead:], strict=False):
            until = bisect_left(others, (earlier, ""))
            waits = {name for _, name in others[done:until]}
            done = until
            for name in queue[start]:
                found[name] = waits | _before(graph.ops[name], order, computing, earlier)
    return found


def _before(
    gather: Op, order: Sequence[Op], computing: Mapping[str, Sequence[int]], at: int
) -> set[str]:
    """Return the last op before a position on the compute stream of each receiving device."""
    place, found = gather.placement, set[str]()
    for rank in range(place.size):
        positions = computing.get(f"{place.only(rank)} {COMPUTE}", ())
        last = bisect_left(positions, at) - 1
        if last >= 0:
            found.add(order[positions[last]].name)
    return found


def _first_reads(order: Sequence[Op], fixed: Mapping[str, Set[str]]) -> dict[str, int]:
    """Return the position of the first op that computes with the result of each gather."""
    found: dict[str, int] = {}
    for i, op in enumerate(order):
        makers = {v.op for v in op.inputs if v.op in fixed} if op.name not in fixed else ()
        for name in (gather for maker in makers for gather in fixed[maker]):
            found.setdefault(name, i)
    return found


def _other_exchanges(
    graph: Graph, order: Sequence[Op], fixed: Collection[str]
) -> list[tuple[int, str]]:
    """Return the other exchanges, with the position of the last op whose result each one reads."""
    position = {op.name: i for i, op in enumerate(order)}
    return sorted(
        (max((position[v.op] for v in op.inputs), default=-1), op.name)
        for op in graph.of_type(BOXING)
        if op.name not in fixed
    )


def _fixed(graph: Graph, specs: Mapping[str, OpSpec]) -> dict[str, set[str]]:
    """Return the ops that depend on variables alone, with the gathers on which each depends."""
    found: dict[str, set[str]] = {op.name: set() for op in graph.of_type("variable")}
    for op in graph.ops.values():
        spec = specs[op.type]
        makers = {v.op for v in op.inputs}
        if not makers or spec.effect or spec.random or spec.mutates or not makers <= found.keys():
            continue
        found[op.name] = set().union(*(found[name] for name in makers))
        if op.type == BOXING and op.attrs["collective"] not in REDUCTIONS:
            found[op.name].add(op.name)
    return found
