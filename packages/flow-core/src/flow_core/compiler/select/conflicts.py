"""Conflicts between requested distributions, and the errors that explain them.

Two things make a problem infeasible: a request that no signature of its op meets, and the demand
that an op which overwrites a variable must read the variable in the variable's own layout.  Boxing
satisfies all other requests, so only ops that overwrite the same variables are checked together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from flow_core.base.errors import SourceLine
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.select.candidates import NdSignature, too_short
from flow_core.compiler.select.network import Infeasible, Network, Table
from flow_core.compiler.select.price import NEVER
from flow_core.compiler.select.problem import (
    Problem,
    Selection,
    SelectionError,
    Space,
    States,
    meets,
)
from flow_core.ir.graph import Graph, Op, Value
from flow_core.sharding.sbp import NdSbp, format_nd_sbp

MOST_LISTED = 40
"""The largest number of signatures that an error lists."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A request that constrains the selector."""

    op: str  # whose outputs the request constrains
    sbp: tuple[NdSbp | None, ...]  # of each output; None if any distribution will do
    line: SourceLine | None  # of the op
    earlier: bool = False  # whether the layout of another job requests it, not the program

    def __str__(self) -> str:
        text = ", ".join("any" if nd is None else format_nd_sbp(nd) for nd in self.sbp)
        why = " by an earlier job" if self.earlier else ""
        at = "" if self.line is None else f" at {self.line}"
        return f"{self.op!r} is {text}{why}{at}"


def hints(problem: Problem, ops: Iterable[Op] | None = None) -> tuple[Hint, ...]:
    """Return the requests for the outputs of the given ops; None stands for all ops."""
    lines = problem.graph.lines
    found = []
    for op in problem.graph.ops.values() if ops is None else ops:
        held = problem.held(op)
        if any(nd is not None for nd in op.sbp):
            found.append(Hint(op.name, op.sbp, lines.get(op.name)))
        elif held is not None:
            found.append(Hint(op.name, (held,), lines.get(op.name), earlier=True))
    return tuple(found)


def without(problem: Problem, dropped: Iterable[Hint]) -> Problem:
    """Return the problem without the given requests."""
    names = {hint.op for hint in dropped}
    old = problem.graph
    ops = {n: replace(op, sbp=()) if n in names else op for n, op in old.ops.items()}
    graph = Graph(ops, old.types, old.results, old.effects, old.lines, old.origins)
    fixed = {n: layout for n, layout in problem.fixed.items() if n not in names}
    return replace(problem, graph=graph, fixed=fixed)


# ----------------------------------------------------------------------- contradictions


def contradiction(problem: Problem, op: Op) -> tuple[Hint, ...]:
    """Return a minimal set of requests around an op that contradict each other.

    If any one request of the set is dropped, the others can be met.  The set is empty if all
    requests can be met.
    """
    group = _connected(problem, op)
    if _feasible(problem, group):
        return ()
    kept = list(hints(problem, group))
    for hint in reversed(list(kept)):  # drop later requests, which are often derived, first
        rest = [h for h in kept if h != hint]
        others = [h for h in hints(problem, group) if h not in rest]
        if not _feasible(without(problem, others), group):
            kept = rest
    return tuple(kept)


def _connected(problem: Problem, op: Op) -> list[Op]:
    """Return the ops and variables that are connected to an op by overwriting variables."""
    graph = problem.graph
    readers = graph.consumers()
    group: dict[str, Op] = {}
    queue = [op]
    while queue:
        one = queue.pop()
        if one.name in group:
            continue
        group[one.name] = one
        queue += [graph.ops[v.op] for v in overwritten(problem, one)]
        for index in range(len(graph.types[one.name])):
            value = Value(one.name, index)
            queue += [r for r in readers.get(value, ()) if value in overwritten(problem, r)]
    return [graph.ops[name] for name in graph.ops if name in group]


def overwritten(problem: Problem, op: Op) -> list[Value]:
    """Return the variables that an op overwrites; the states of an optimizer follow the weight."""
    return [op.inputs[i] for i in problem.specs[op.type].mutates if i < len(op.inputs)]


def _feasible(problem: Problem, group: Iterable[Op]) -> bool:
    """Return whether the requests for the given ops can be met together."""
    space, net = Space(problem), Network()
    ops = [problem.graph.ops[op.name] for op in group]
    states = {op.name: space.allowed(op) for op in ops}
    if not all(states.values()):
        return False
    nodes = {name: net.node([0] * len(s)) for name, s in states.items()}
    for op in ops:
        for value in overwritten(problem, op):
            if value.op in nodes:
                table = _in_place(problem, op, value, states)
                net.pair(nodes[value.op], nodes[op.name], table)
    try:
        net.solve()
    except Infeasible:
        return False
    return True


def _in_place(problem: Problem, op: Op, value: Value, states: Mapping[str, States]) -> Table:
    """Return a table that forbids reading an overwritten variable except in its own layout."""
    home = problem.home(problem.graph.ops[value.op])
    index = op.inputs.index(value)
    have = [TensorLayout(home, s.outputs[value.index]) for s in states[value.op]]
    want = [TensorLayout(op.placement, s.inputs[index]) for s in states[op.name]]
    return np.array([[0 if a == b else NEVER for b in want] for a in have], np.int64)


# ------------------------------------------------------------------------------- errors


def explain(problem: Problem, space: Space, op: Op, selection: Selection) -> SelectionError:
    """Return the error for an op without a signature, given the selection for the ops before it."""
    conflict = contradiction(problem, op)
    reasons = [f"{c}: {why}" for c, why in _refusals(problem, space, op, selection)]
    more = len(reasons) - MOST_LISTED
    listed = reasons[:MOST_LISTED] + ([f"and {more} more"] if more > 0 else [])
    return SelectionError(
        f"choosing an SBP signature for {op.type} {op.name!r} on {op.placement}",
        op=op.name,
        conflict=conflict,
        at=problem.graph.lines.get(op.name),
        found=_found(problem, op, selection),
        allowed="one of these signatures, none of which fits:\n           "
        + "\n           ".join(listed),
        hint=_next(conflict),
    )


def _next(conflict: tuple[Hint, ...]) -> str:
    if not conflict:
        return (
            "the requests do not contradict one another, but greedy chooses op by op: "
            'use function_config.sbp_selector("optimal")'
        )
    if len(conflict) == 1:
        return f"this request alone cannot be met, drop or change it: {conflict[0]}"
    listed = "".join(f"\n           {hint}" for hint in conflict)
    return f"drop or change one of these requests, which contradict one another:{listed}"


def _found(problem: Problem, op: Op, selection: Selection) -> str:
    inputs = "\n           ".join(
        f"input {i}: {v} {problem.graph.type_of(v)} is {selection.layouts[v]}"
        + _asked(problem, problem.graph.ops[v.op])
        for i, v in enumerate(op.inputs)
    )
    return (inputs or "no inputs") + _asked(problem, op)


def _asked(problem: Problem, op: Op) -> str:
    """Name the requests for the layout of an op's outputs."""
    return "".join(f" (request: {hint})" for hint in hints(problem, (op,)))


def _refusals(
    problem: Problem, space: Space, op: Op, selection: Selection
) -> Iterator[tuple[NdSignature, str]]:
    """Yield every signature of an op, and the reason why it cannot be chosen."""
    held = problem.held(op)
    wanted = op.sbp if held is None else (held,)
    for candidate in space.all(op):
        reasons = [*_unmet(candidate, wanted), *_misplaced(problem, op, candidate, selection)]
        yield candidate, "; ".join(reasons)
    spec = problem.specs[op.type]
    for candidate, why in too_short(problem.graph, op, spec, problem.home(op).hierarchy):
        if meets(candidate, wanted):
            yield candidate, why


def _unmet(candidate: NdSignature, wanted: tuple[NdSbp | None, ...]) -> Iterator[str]:
    for i, (request, nd) in enumerate(zip(wanted, candidate.outputs, strict=False)):
        if request is not None and request != nd:
            yield f"output {i} is {format_nd_sbp(nd)}, requested is {format_nd_sbp(request)}"


def _misplaced(
    problem: Problem, op: Op, candidate: NdSignature, selection: Selection
) -> Iterator[str]:
    for i in problem.specs[op.type].mutates:
        if i < len(op.inputs):
            have = selection.layouts[op.inputs[i]]
            want = TensorLayout(op.placement, candidate.inputs[i])
            if have != want:
                yield f"input {i} is overwritten in its layout, {have}, not {want}"
