"""The cost of hints: the cost of the plan without each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flow_core.compiler.select.conflicts import Hint, hints, without
from flow_core.compiler.select.optimal import optimal
from flow_core.compiler.select.price import Cost
from flow_core.compiler.select.problem import Problem, Selection


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The plan without one hint.

    Attributes:
        hint: the hint that is left out.
        cost: the cost of the plan without it.
        saved: picoseconds that this saves; at most 0 where the hint costs nothing.
        selection: the plan's signatures.
    """

    hint: Hint
    cost: Cost
    saved: int
    selection: Selection


def relaxations(
    problem: Problem,
    cost: Cost,
    selector: Callable[[Problem], Selection] = optimal,
    most: int = 16,
) -> Iterator[Relaxed]:
    """Yield the cost of the plan without each hint of the program.

    Each one takes another selection, so call this on demand.

    Args:
        problem: the problem with all hints.
        cost: the cost of its selection, from its report.
        selector: the optimal one, or another that makes reports.
        most: the number of hints to try, in graph order.
    """
    own_hints = [hint for hint in hints(problem) if not hint.earlier]
    for hint in own_hints[:most]:
        selection = selector(without(problem, (hint,)))
        if selection.report is not None:
            found = selection.report.cost
            yield Relaxed(hint, found, cost.total - found.total, selection)
