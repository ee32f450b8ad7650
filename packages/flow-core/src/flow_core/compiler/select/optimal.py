"""The least total cost over the whole graph.

The network of costs is eliminated exactly where that is narrow enough; what is left of a wider one
goes to an integer program when its solver is installed and it is small.  Which of these is done is
decided by counting, before it begins: see `effort`.  Whatever happens, the answer is never dearer
than `greedy`'s: where nothing better is found within the bound, greedy's is taken.

`auto`, the default, also takes greedy's where the optimum saves less than a step can tell.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from flow_core.compiler.select import ilp
from flow_core.compiler.select.build import Builder
from flow_core.compiler.select.costs import Costs
from flow_core.compiler.select.greedy import walk
from flow_core.compiler.select.network import Infeasible, Network
from flow_core.compiler.select.ordering import best_order, narrow_order
from flow_core.compiler.select.price import NEVER, Cost
from flow_core.compiler.select.problem import Problem, Selection, SelectionError, Space
from flow_core.compiler.select.report import Report
from flow_core.compiler.select.search_budget import COLUMN, ENTRY, Effort, Spent

LIMIT = 1 << 22
"""Entries of the largest table that elimination may make."""


@dataclass(frozen=True, slots=True)
class Answer:
    """States of a network's nodes, what is known of the optimum, and how it was found."""

    states: list[int] | None
    bound: int | None
    method: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A selection, who found it, and what it costs."""

    name: str
    selection: Selection
    cost: Cost


MOST_PLANNED = 1500
"""Transitions to plan, beyond which dimensions of the devices are looked at one by one."""

MOST_TURNS = 3
"""How often each dimension is looked at, at most."""

BY_DIMENSION = "elimination, one dimension after the other"

SPENT = "more work than sbp_selector_seconds"
"""Why there was no search, or no end to it."""

WORTH = 100_000_000
"""Picoseconds per step that `auto` wants to save before it leaves the convention."""


def optimal(problem: Problem) -> Selection:
    """Signatures for all ops of the least total cost, or greedy's where none is found.

    Raises:
        SelectionError: nothing meets the requests.
    """
    return _select(problem, 0)


def auto(problem: Problem) -> Selection:
    """The optimum, or greedy's answer where that is less than `WORTH` dearer.

    Small programs stay as OneFlow lays them out, data-parallel unless hints say otherwise: the
    model's few microseconds are no reason to do things in unexpected ways.

    Raises:
        SelectionError: nothing meets the requests.
    """
    return _select(problem, WORTH if problem.memory == 1 else 0)


def _select(problem: Problem, worth: int) -> Selection:
    started = time.perf_counter()
    space, costs = Space(problem), Costs(problem)
    try:
        known, refused = walk(problem, space, costs), None
    except SelectionError as error:
        known, refused = None, error
    offers = [] if known is None else [Offer("greedy", known, costs.evaluate(known))]
    try:
        best, answer = _best(problem, space, costs, known, Effort.of(problem.seconds))
    except Infeasible:
        if refused is None:
            raise
        raise refused from None
    except Spent:
        best, answer = None, Answer(None, None, SPENT)
    if best is None and refused is not None:
        raise refused
    if best is not None:
        offers.append(Offer("optimal", best, costs.evaluate(best)))
    return _better(offers, answer, started, worth, problem.memory)


def _best(
    problem: Problem, space: Space, costs: Costs, known: Selection | None, effort: Effort
) -> tuple[Selection | None, Answer]:
    """The optimum, or what looking at one dimension of the devices after the other finds."""
    dims = max((len(op.placement.hierarchy) for op in problem.graph.ops.values()), default=1)
    builder = Builder(problem, space, costs, known)
    if known is not None and dims > 1 and builder.transitions() > MOST_PLANNED:
        return _descend(problem, space, costs, known, dims, effort)
    answer = search(builder.build(effort), effort)
    return (None if answer.states is None else builder.selection(answer.states)), answer


def _descend(
    problem: Problem, space: Space, costs: Costs, known: Selection, dims: int, effort: Effort
) -> tuple[Selection, Answer]:
    """A selection that cannot be bettered in any one dimension of the devices."""
    best, least, quiet = known, costs.evaluate(known).total, 0
    try:
        for turn in range(MOST_TURNS * dims):
            builder = Builder(problem, space, costs, best, free=turn % dims)
            answer = search(builder.build(effort), effort)
            found = best if answer.states is None else builder.selection(answer.states)
            cost = costs.evaluate(found).total
            if cost < least:
                best, least, quiet = found, cost, 1
            else:
                quiet += 1
            if quiet == dims:
                break
    except Spent:
        return best, Answer(None, None, f"{BY_DIMENSION}, until {SPENT}")
    return best, Answer(None, None, BY_DIMENSION)


def _better(
    offers: Sequence[Offer], answer: Answer, started: float, worth: int, memory: float
) -> Selection:
    """The last offer with its report; greedy's, the first, when that saves nothing worth it."""
    first, last = offers[0], offers[-1]
    greedy = first.cost if first.name == "greedy" else None
    if greedy is not None and greedy.total - last.cost.total <= worth:
        last = first
    seconds = time.perf_counter() - started
    bound = None if answer.bound is None else min(answer.bound, last.cost.total)
    priced = f", memory at {memory:g} times its price" if memory != 1 else ""
    method = f"{answer.method}{priced}"
    last.selection.report = Report(last.name, method, last.cost, greedy, bound, seconds)
    return last.selection


def search(net: Network, effort: Effort, limit: int = LIMIT) -> Answer:
    """The best states of a network, as far as they are found with a given effort.

    Args:
        net: is taken apart.
        effort: what it takes is taken off.
        limit: entries of the largest table that may be added up.

    Raises:
        Infeasible: nothing is possible.
    """
    if net.constant >= NEVER:
        raise Infeasible
    order = best_order(net.sizes, net.near, limit)
    if order.widest > limit or not effort.allows(order.total, ENTRY):
        return _program(net, effort, f"elimination would add up {order.total:.1e} numbers")
    effort.spend(order.total, ENTRY)
    steps = list(net.eliminate(order.nodes))
    return Answer(net.decode(steps, [0] * len(net.sizes)), net.constant, "elimination")


def _program(net: Network, effort: Effort, why: str) -> Answer:
    """An integer program's answer, when what relates two others at most has been eliminated."""
    if not ilp.available():
        return Answer(None, None, f"{why}, too many; flow-core[optimal] is not installed")
    order = narrow_order(net.sizes, net.near)
    effort.spend(order.total, ENTRY)
    steps = list(net.eliminate(order.nodes))
    left = sorted(set(range(len(net.sizes))) - {step.node for step in steps})
    if not left:
        return Answer(net.decode(steps, [0] * len(net.sizes)), net.constant, "elimination")
    columns = ilp.columns(net, left)
    if not effort.allows(columns, COLUMN):
        return Answer(None, None, f"{why}, an integer program have {columns:,} columns: {SPENT}")
    effort.spend(columns, COLUMN)
    found = ilp.solve(net, left)
    if found.states is None:
        return Answer(None, found.bound, f"no integer program's answer after {ilp.BRANCHES} nodes")
    return Answer(net.decode(steps, found.states), found.bound, "integer program")
