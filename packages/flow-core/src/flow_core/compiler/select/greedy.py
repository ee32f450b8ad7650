"""The greedy selector, which, like OneFlow, selects op by op, given the layouts of the op's inputs.

Each op takes the signature with the cheapest boxing of its inputs.  Ties go to the signature with
fewer inputs to move, then to that with fewer partial results, then to the one listed first.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.select.candidates import NdSignature, all_broadcast
from flow_core.compiler.select.conflicts import explain
from flow_core.compiler.select.costs import Costs
from flow_core.compiler.select.problem import Problem, Selection, Space, replicated
from flow_core.compiler.select.report import Report
from flow_core.ir.graph import Op
from flow_core.sharding.sbp import Partial


def greedy(problem: Problem) -> Selection:
    """Choose signatures for all ops in graph order.

    Raises:
        SelectionError: no signature of an op meets the requests, given those of the ops before it.
    """
    started = time.perf_counter()
    costs = Costs(problem)
    selection = walk(problem, Space(problem), costs)
    cost, seconds = costs.evaluate(selection), time.perf_counter() - started
    selection.report = Report("greedy", "op by op", cost, cost, None, seconds)
    return selection


def walk(problem: Problem, space: Space, costs: Costs) -> Selection:
    """Choose as `greedy` does, with signatures and costs that the caller also uses elsewhere."""
    selection = Selection()
    known: dict[Hashable, NdSignature] = {}  # the choices of equal ops, such as those of layers
    for op in problem.graph.ops.values():
        arrived = [problem.arrival(v, op.placement) or selection.layouts[v] for v in op.inputs]
        key = (
            space.allowed(op), op.type, op.placement, problem.graph.input_types(op),
            *arrived, *(selection.layouts[v] for v in op.inputs), problem.stays(op),
        )  # fmt: skip
        chosen = known.get(key) or _choose(problem, op, space, costs, selection, arrived)
        if chosen is None:
            raise explain(problem, space, op, selection)
        known[key] = chosen
        selection.take(problem, op, chosen)
    return selection


def _choose(
    problem: Problem,
    op: Op,
    space: Space,
    costs: Costs,
    selection: Selection,
    layouts: Sequence[TensorLayout],
) -> NdSignature | None:
    """Return the signature of an op, given the layouts in which its inputs are available."""
    fitting = [c for c in space.allowed(op) if _fits(problem, op, c, selection)]
    if len(fitting) < 2 or op.type == "input":
        return fitting[0] if fitting else None
    if op.type == "variable" and problem.stays(op):
        return next(c for c in fitting if all_broadcast(c))
    types = problem.graph.input_types(op)

    def cost(c: NdSignature) -> tuple[int, int, int]:
        wanted = [TensorLayout(op.placement, sbp) for sbp in c.inputs]
        moves = [
            costs.move(t, layout, target)
            for t, layout, target in zip(types, layouts, wanted, strict=True)
        ]
        time = sum(m.total if m.reshard_steps is None else m.cost.communication for m in moves)
        moved = sum(a != b for a, b in zip(layouts, wanted, strict=True))
        return time, moved, sum(isinstance(s, Partial) for nd in c.outputs for s in nd)

    if all(map(replicated, layouts)):
        fitting.sort(key=lambda c: not all_broadcast(c))
    return min(fitting, key=cost)


def _fits(problem: Problem, op: Op, candidate: NdSignature, selection: Selection) -> bool:
    """Return whether the variables that an op overwrites keep their layouts with a signature."""
    return all(
        selection.layouts[op.inputs[i]] == TensorLayout(op.placement, candidate.inputs[i])
        for i in problem.specs[op.type].mutates
        if i < len(op.inputs)
    )
