"""What hints cost: the plan's cost if one of them were dropped."""

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
        hint: what is left out.
        cost: of the plan without it.
        saved: picoseconds by which it is cheaper; at most 0 where the hint costs nothing.
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
    """What the plan would cost without each hint of the program, hint by hint.

    Each answer takes a selection anew: ask when someone wants to know, and take the first few.

    Args:
        problem: the problem as it is.
        cost: of its selection, as its report says.
        selector: the optimal one, or another that makes reports.
        most: hints that are looked at, in graph order.
    """
    asked = [hint for hint in hints(problem) if not hint.earlier]
    for hint in asked[:most]:
        selection = selector(without(problem, (hint,)))
        if selection.report is not None:
            found = selection.report.cost
            yield Relaxed(hint, found, cost.total - found.total, selection)
