"""The cost of hints: how much the plan would cost without each of them."""

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
        cost: the cost of the plan without the hint.
        saved: the picoseconds that leaving out the hint saves; at most 0 if it costs nothing.
        selection: the signatures of the plan without the hint.
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
    """Yield, for each hint of the program, the plan without this hint.

    Each plan takes another selection, so this is computed on demand only.

    Args:
        problem: the problem with all hints.
        cost: the cost of the selection with all hints, from its report.
        selector: the optimal selector, or another one that makes reports.
        most: the number of hints to try, in graph order.
    """
    own_hints = [hint for hint in hints(problem) if not hint.earlier]
    for hint in own_hints[:most]:
        selection = selector(without(problem, (hint,)))
        if selection.report is not None:
            found = selection.report.cost
            yield Relaxed(hint, found, cost.total - found.total, selection)
