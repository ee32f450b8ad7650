"""The least total cost over the whole graph.

The network of costs is eliminated exactly where that is narrow enough; what is left of a wider one
goes to an integer program when its solver is installed.  Whatever happens, the answer is never
dearer than `greedy`'s: where nothing better is found within the bound, greedy's is taken.

`auto`, the default, also takes greedy's where the optimum saves less than a step can tell.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from flow_core.compiler.select import ilp
from flow_core.compiler.select.build import Builder
from flow_core.compiler.select.costs import NEVER, Cost, Costs
from flow_core.compiler.select.greedy import walk
from flow_core.compiler.select.network import Infeasible, Network, Step, TooWide
from flow_core.compiler.select.problem import Problem, Selection, SelectionError, Space
from flow_core.compiler.select.report import Report

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


EFFORT = 1500
"""Transitions to plan, beyond which dimensions of the devices are looked at one by one."""

MOST_TURNS = 3
"""How often each dimension is looked at, at most."""

BY_DIMENSION = "elimination, one dimension after the other"

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
    walked = time.perf_counter()
    offers = [] if known is None else [Offer("greedy", known, costs.evaluate(known))]
    ready = time.perf_counter()  # what an answer costs takes no longer to add up than greedy's
    deadline = started + problem.seconds - (ready - walked)
    try:
        best, answer = _best(problem, space, costs, known, deadline)
    except Infeasible:
        if refused is None:
            raise
        raise refused from None
    except TimeoutError:
        best, answer = None, Answer(None, None, "time ran out")
    if best is None and refused is not None:
        raise refused
    if best is not None:
        offers.append(Offer("optimal", best, costs.evaluate(best)))
    return _better(offers, answer, started, worth, problem.memory)


def _best(
    problem: Problem, space: Space, costs: Costs, known: Selection | None, deadline: float
) -> tuple[Selection | None, Answer]:
    """The optimum, or what looking at one dimension of the devices after the other finds."""
    dims = max((len(op.placement.hierarchy) for op in problem.graph.ops.values()), default=1)
    builder = Builder(problem, space, costs, known)
    if known is not None and dims > 1 and builder.effort() > EFFORT:
        return _descend(problem, space, costs, known, dims, deadline)
    answer = search(builder.build(deadline), deadline)
    return (None if answer.states is None else builder.selection(answer.states)), answer


def _descend(
    problem: Problem, space: Space, costs: Costs, known: Selection, dims: int, deadline: float
) -> tuple[Selection, Answer]:
    """A selection that cannot be bettered in any one dimension of the devices."""
    best, least, quiet = known, costs.evaluate(known).total, 0
    try:
        for turn in range(MOST_TURNS * dims):
            builder = Builder(problem, space, costs, best, free=turn % dims)
            answer = search(builder.build(deadline), deadline)
            found = best if answer.states is None else builder.selection(answer.states)
            cost = costs.evaluate(found).total
            if cost < least:
                best, least, quiet = found, cost, 1
            else:
                quiet += 1
            if quiet == dims:
                break
    except TimeoutError:
        return best, Answer(None, None, f"{BY_DIMENSION}, until time ran out")
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


def search(net: Network, deadline: float, limit: int = LIMIT) -> Answer:
    """The best states of a network, as far as they are found before a deadline.

    Raises:
        Infeasible: nothing is possible.
    """
    if net.constant >= NEVER:
        raise Infeasible
    nodes, net.deadline = range(len(net.sizes)), deadline
    try:
        steps = list(net.eliminate(nodes, limit, neighbours=2))
        left = sorted(set(nodes) - {step.node for step in steps})
        pairs = net.copy()
        try:
            more = list(net.eliminate(left, limit))
        except TooWide:
            return _program(pairs, left, steps, deadline)
    except TimeoutError:
        return Answer(None, None, "time ran out")
    return Answer(net.decode([*steps, *more], [0] * len(nodes)), net.constant, "elimination")


def _program(net: Network, left: Sequence[int], steps: Sequence[Step], deadline: float) -> Answer:
    if not ilp.available():
        return Answer(None, None, "too wide to eliminate, and flow-core[optimal] not installed")
    found = ilp.solve(net, left, deadline)
    if found.states is None:
        return Answer(None, found.bound, "time ran out in the integer program")
    return Answer(net.decode(steps, found.states), found.bound, "integer program")
