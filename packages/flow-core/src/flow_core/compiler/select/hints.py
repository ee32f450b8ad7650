"""The cost of hints: how much the plan would cost without each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from flow_core.compiler.select.candidates import NdSignature
from flow_core.compiler.select.conflicts import Hint, hints, overwritten, without
from flow_core.compiler.select.optimal import optimal
from flow_core.compiler.select.price import Cost
from flow_core.compiler.select.problem import Problem, Selection
from flow_core.sharding.sbp import NdSbp, Split


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The plan without one hint."""

    hint: Hint  # that is left out
    # How many other ops have their hints from the same line, such as the bias of a layer; these are
    # left out, too, as are those of the states that an optimizer has for them.
    more: int
    cost: Cost  # of the plan without the hint
    saved: int  # the picoseconds that leaving out the hint saves; at most 0 if it costs nothing
    nbytes: int  # how many more bytes of variables a device has without the hint
    selection: Selection  # of the plan without the hint


def relaxations(
    problem: Problem, cost: Cost, most: int = 16, written: Collection[str] | None = None
) -> Iterator[Relaxed]:
    """Yield, for each line with hints in the program, the plan without them.

    Each plan takes another selection, so this is computed on demand only.

    Args:
        cost: the cost of the selection with all hints, from its report.
        most: the number of lines to try, in graph order.
        written: the ops whose hints the program has; passes add others.  None stands for all ops.
    """
    states = _states(problem)
    requests = [hint for hint in hints(problem) if not hint.earlier]
    lines: dict[str, list[Hint]] = {}
    for hint in requests:
        if hint.op not in states and (written is None or hint.op in written):
            lines.setdefault(str(hint.line or hint.op), []).append(hint)
    for own in list(lines.values())[:most]:
        names = {hint.op for hint in own}
        dropped = [h for h in requests if h.op in names or states.get(h.op) in names]
        selection = optimal(without(problem, dropped))
        if selection.report is not None:
            found = selection.report.cost
            nbytes = sum(_growth(problem, h, selection) for h in dropped)
            saved = cost.total - found.total
            yield Relaxed(own[0], len(own) - 1, found, saved, nbytes, selection)


def _states(problem: Problem) -> dict[str, str]:
    """Return the weight of each state of an optimizer."""
    found: dict[str, str] = {}
    for op in problem.graph.ops.values():
        weight, *states = [value.op for value in overwritten(problem, op)] or [""]
        found.update(dict.fromkeys(states, weight))
    return found


def _growth(problem: Problem, hint: Hint, selection: Selection) -> int:
    """Return how many more bytes of a hinted variable a device has in a selection."""
    op = problem.graph.ops[hint.op]
    wanted = hint.sbp[0]
    if op.type != "variable" or wanted is None:
        return 0
    (type_,), sizes = problem.graph.types[op.name], op.placement.hierarchy
    shares = (prod(n for s, n in zip(nd, sizes, strict=True) if isinstance(s, Split))
              for nd in (selection.signatures[op.name].outputs[0], wanted))  # fmt: skip
    free, hinted = (type_.nbytes // share for share in shares)
    return free - hinted


def divided_weights(problem: Problem, signatures: Mapping[str, NdSignature]) -> dict[str, NdSbp]:
    """Return the variables of which an op, other than an update, reads parts, with their SBP."""
    graph, found = problem.graph, dict[str, NdSbp]()
    for op in graph.ops.values():
        own = overwritten(problem, op)
        for value, nd in zip(op.inputs, signatures[op.name].inputs, strict=True):
            kind = graph.ops[value.op]
            if kind.type != "variable" or not kind.attrs.get("trainable") or value in own:
                continue
            if any(isinstance(s, Split) for s in nd):
                found.setdefault(value.op, nd)
    return found
