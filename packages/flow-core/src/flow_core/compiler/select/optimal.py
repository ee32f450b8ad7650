"""The selection with the least total cost over the whole graph.

If the network of costs has small width, it is solved exactly, by elimination.  If it is wider, the
nodes that elimination leaves are solved by an integer program, provided that the program is small
and its solver is installed.  The work of each method is counted in advance to decide between them;
see `search_budget`.

Invariant: the result never costs more than the selection of `greedy`, which is the fallback.  The
default selector, `auto`, also takes greedy's selection if the optimum saves too little to be
noticeable.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flow_core.compiler.select import ilp
from flow_core.compiler.select.build import Builder
from flow_core.compiler.select.costs import Costs
from flow_core.compiler.select.greedy import walk
from flow_core.compiler.select.network import Infeasible, Network
from flow_core.compiler.select.ordering import best_order, narrow_order
from flow_core.compiler.select.price import NEVER, Cost
from flow_core.compiler.select.problem import Problem, Selection, SelectionError, Space
from flow_core.compiler.select.report import Report
from flow_core.compiler.select.search_budget import COLUMN, ENTRY, BudgetExceeded, SearchBudget

LIMIT = 1 << 22
"""The number of entries of the largest table that elimination may make."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The best states found, a lower bound on the optimum, and the method of the search."""

    states: list[int] | None
    bound: int | None
    method: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A selection, its selector, and its cost."""

    name: str
    selection: Selection
    cost: Cost


MOST_PLANNED = 1500
"""The number of transitions to plan above which one hierarchy dimension is searched at a time."""

MOST_ROUNDS = 3
"""The largest number of searches of each dimension."""

BY_DIMENSION = "elimination, one dimension after the other"

SPENT = "more work than sbp_selector_seconds"
"""The reason that a report gives if there was no search, or if the search ended early."""

WORTH = 100_000_000
"""The saving, in picoseconds per step, above which `auto` departs from greedy's selection."""


def optimal(problem: Problem) -> Selection:
    """Choose the signatures of least total cost, or those of `greedy` if the search finds none.

    Raises `SelectionError` if no selection meets the requests.
    """
    return _select(problem, 0)


def auto(problem: Problem) -> Selection:
    """Choose the optimum, or greedy's selection if that costs at most `WORTH` more.

    Small programs therefore keep OneFlow's distribution, which is data-parallel unless hints say
    otherwise: a predicted saving of microseconds does not justify an unexpected distribution.
    Raises `SelectionError` if no selection meets the requests.
    """
    return _select(problem, WORTH if problem.memory == 1 else 0)


def _select(problem: Problem, worth: int) -> Selection:
    started = time.perf_counter()
    budget = SearchBudget.of(problem.seconds)
    cache = problem.cache
    known = [] if cache is None else cache.searches.get(replace(problem, seconds=0.0), list)
    found = next((one for one in known if one.least <= budget.left < one.most), None)
    if found is None:
        found = _searched(problem, budget)
        known.append(found)
    return _better(found.offers, found.answer, started, worth, problem.memory)


@dataclass(frozen=True, slots=True)
class _Searched:
    """The result of a search, and of all budgets from ``least`` to below ``most``."""

    offers: Sequence[Offer]
    answer: Answer
    least: int
    most: float


def _searched(problem: Problem, budget: SearchBudget) -> _Searched:
    space, costs = Space(problem), Costs(problem)
    try:
        known, refused = walk(problem, space, costs), None
    except SelectionError as error:
        known, refused = None, error
    offers = [] if known is None else [Offer("greedy", known, costs.evaluate(known))]
    try:
        best, answer = _best(problem, space, costs, known, budget)
    except Infeasible:
        if refused is None:
            raise
        raise refused from None
    except BudgetExceeded:
        best, answer = None, Answer(None, None, SPENT)
    if best is None and refused is not None:
        raise refused
    if best is not None:
        offers.append(Offer("optimal", best, costs.evaluate(best)))
    return _Searched(offers, answer, budget.least, budget.most)


def _best(
    problem: Problem, space: Space, costs: Costs, known: Selection | None, budget: SearchBudget
) -> tuple[Selection | None, Answer]:
    """Search all hierarchy dimensions at once, or one after another if that takes less work."""
    dims = max((len(op.placement.hierarchy) for op in problem.graph.ops.values()), default=1)
    builder = Builder(problem, space, costs, known)
    if known is not None and dims > 1 and builder.transitions() > MOST_PLANNED:
        return _descend(problem, space, costs, known, dims, budget)
    answer = search(builder.build(budget), budget)
    return (None if answer.states is None else builder.selection(answer.states)), answer


def _descend(
    problem: Problem, space: Space, costs: Costs, known: Selection, dims: int, budget: SearchBudget
) -> tuple[Selection, Answer]:
    """Improve a selection in one hierarchy dimension at a time until no dimension improves it."""
    best, least, quiet = known, costs.evaluate(known).total, 0
    try:
        for number in range(MOST_ROUNDS * dims):
            builder = Builder(problem, space, costs, best, free=number % dims)
            answer = search(builder.build(budget), budget)
            found = best if answer.states is None else builder.selection(answer.states)
            cost = costs.evaluate(found).total
            if cost < least:
                best, least, quiet = found, cost, 1
            else:
                quiet += 1
            if quiet == dims:
                break
    except BudgetExceeded:
        return best, Answer(None, None, f"{BY_DIMENSION}, until {SPENT}")
    return best, Answer(None, None, BY_DIMENSION)


def _better(
    offers: Sequence[Offer], answer: Answer, started: float, worth: int, memory: float
) -> Selection:
    """Return the last offer with a report, or the first, greedy's, if the last saves too little."""
    first, last = offers[0], offers[-1]
    greedy = first.cost if first.name == "greedy" else None
    if greedy is not None and greedy.total - last.cost.total <= worth:
        last = first
    seconds = time.perf_counter() - started
    bound = None if answer.bound is None else min(answer.bound, last.cost.total)
    priced = f", memory at {memory:g} times its price" if memory != 1 else ""
    method = f"{answer.method}{priced}"
    report = Report(last.name, method, last.cost, greedy, bound, seconds)
    return replace(last.selection, report=report)


def search(net: Network, budget: SearchBudget, limit: int = LIMIT) -> Answer:
    """Search for the best states of a network within a budget.

    Args:
        budget: the budget, from which the search deducts its work.
        limit: the number of entries of the largest table that may be added up.

    Raises:
        Infeasible: every choice is impossible.
    """
    if net.constant >= NEVER:
        raise Infeasible
    order = best_order(net.sizes, net.neighbors, limit)
    if order.widest > limit or not budget.allows(order.total, ENTRY):
        return _program(net, budget, f"elimination would add up {order.total:.1e} numbers")
    budget.spend(order.total, ENTRY)
    steps = list(net.eliminate(order.nodes))
    return Answer(net.decode(steps, [0] * len(net.sizes)), net.constant, "elimination")


def _program(net: Network, budget: SearchBudget, why: str) -> Answer:
    """Eliminate nodes with at most two neighbors, and solve the rest as an integer program."""
    if not ilp.available():
        return Answer(None, None, f"{why}, too many; flow-core[optimal] is not installed")
    order = narrow_order(net.sizes, net.neighbors)
    budget.spend(order.total, ENTRY)
    steps = list(net.eliminate(order.nodes))
    left = sorted(set(range(len(net.sizes))) - {step.node for step in steps})
    if not left:
        return Answer(net.decode(steps, [0] * len(net.sizes)), net.constant, "elimination")
    columns = ilp.columns(net, left)
    if not budget.allows(columns, COLUMN):
        return Answer(
            None, None, f"{why}, an integer program would have {columns:,} columns: {SPENT}"
        )
    budget.spend(columns, COLUMN)
    found = ilp.solve(net, left)
    if found.states is None:
        return Answer(None, found.bound, f"no integer program's answer after {ilp.BRANCHES} nodes")
    return Answer(net.decode(steps, found.states), found.bound, "integer program")
