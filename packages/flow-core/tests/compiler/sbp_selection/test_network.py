"""Elimination and integer programming against brute force."""

from __future__ import annotations

import copy
import itertools
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.compiler.select import ilp
from flow_core.compiler.select.network import Infeasible, Network, TooWide
from flow_core.compiler.select.optimal import search
from flow_core.compiler.select.ordering import (
    CROWD,
    RULES,
    Relations,
    best_order,
    narrow_order,
    order,
)
from flow_core.compiler.select.price import NEVER
from flow_core.compiler.select.search_budget import ENTRY, BudgetExceeded, SearchBudget

COSTS = st.one_of(st.integers(0, 50), st.just(NEVER))


@st.composite
def networks(draw: st.DrawFn) -> Network:
    net = Network()
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    for n in sizes:
        net.node(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)))
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    for a, b in draw(st.lists(st.sampled_from(pairs), max_size=9)) if pairs else ():
        cells = draw(st.lists(COSTS, min_size=sizes[a] * sizes[b], max_size=sizes[a] * sizes[b]))
        net.pair(a, b, np.array(cells, np.int64).reshape(sizes[a], sizes[b]))
    return net


def least(net: Network) -> int:
    return min(net.cost(states) for states in itertools.product(*map(range, net.sizes)))


@pytest.mark.slow
@given(networks())
def test_elimination_finds_the_minimum_cost(net: Network) -> None:
    wanted, fresh = least(net), copy.deepcopy(net)
    if wanted >= NEVER:
        with pytest.raises(Infeasible):
            net.solve()
        return
    states, cost = net.solve()
    assert cost == wanted
    assert fresh.cost(states) == wanted


@given(networks())
@settings(max_examples=40)
def test_integer_program_finds_the_minimum_cost(net: Network) -> None:
    pytest.importorskip("highspy")
    wanted = least(net)
    nodes = range(len(net.sizes))
    if wanted >= NEVER:
        with pytest.raises(Infeasible):
            ilp.solve(net, nodes)
        return
    found = ilp.solve(net, nodes)
    assert found.states is not None
    assert net.cost(found.states) == wanted
    assert found.bound <= wanted + 1


def clique(nodes: int, states: int = 3) -> Network:
    """Return a network in which all pairs of nodes are related: maximum width."""
    rng = np.random.default_rng(0)
    net = Network()
    for _ in range(nodes):
        net.node(rng.integers(0, 9, states))
    for a, b in itertools.combinations(range(nodes), 2):
        net.pair(a, b, rng.integers(0, 9, (states, states)))
    return net


def test_excessive_width_is_reported() -> None:
    with pytest.raises(TooWide):
        clique(6).solve(limit=3**5)
    states, cost = clique(6).solve(limit=3**6)
    assert clique(6).cost(states) == cost == least(clique(6))


def test_wide_network_uses_the_integer_program() -> None:
    pytest.importorskip("highspy")
    answer = search(clique(6), budget=SearchBudget.of(10.0), limit=3**5)
    assert answer.method == "integer program"
    assert answer.states is not None
    assert clique(6).cost(answer.states) == least(clique(6))


def test_wide_network_has_no_solution_without_the_solver(monkeypatch: Any) -> None:
    monkeypatch.setattr(ilp, "available", lambda: False)
    answer = search(clique(6), budget=SearchBudget.of(10.0), limit=3**5)
    assert answer.states is None
    assert "flow-core[optimal]" in answer.method


def test_elimination_over_budget_is_not_started() -> None:
    net, budget = clique(6), SearchBudget(3**6 * ENTRY)
    answer = search(net, budget)
    assert (answer.states, answer.bound) == (None, None)
    assert answer.method.startswith("elimination would add up 1.1e+03 numbers, ")
    assert budget.left <= 3**6 * ENTRY
    with pytest.raises(BudgetExceeded):
        budget.spend(3**6 + 1, ENTRY)


def test_work_is_deducted_from_the_budget() -> None:
    budget = SearchBudget.of(1.0)
    assert search(clique(6), budget).method == "elimination"
    assert budget.left == 10**9 - sum(3**n for n in range(1, 7)) * ENTRY


@pytest.mark.parametrize("solver", [True, False])
def test_budgets_with_which_a_search_has_the_same_result(monkeypatch: Any, solver: bool) -> None:
    monkeypatch.setattr(ilp, "available", lambda: solver)
    whole = sum(3**n for n in range(1, 7)) * ENTRY
    for left in (0, whole - 1, whole, 2 * whole):
        budget = SearchBudget(left)
        answer = search(clique(6), budget)
        assert budget.least <= left < budget.most
        for other in (budget.least, left if budget.most == inf else int(budget.most) - 1):
            assert search(clique(6), SearchBudget(other)) == answer


def test_equal_parts_of_a_chain_are_solved_once() -> None:
    net = Network()
    table = np.array([[0, 3, 9], [4, 0, 2], [5, 7, 0]], np.int64)
    nodes = [net.node([1, 2, 1]) for _ in range(300)]
    for a, b in itertools.pairwise(nodes):
        net.pair(a, b, table)
    fresh = copy.deepcopy(net)
    states, cost = net.solve()
    assert fresh.cost(states) == cost
    assert len(net.memory.answers) < 60


# ------------------------------------------------------------------- elimination orders


@pytest.mark.representative(
    r"\[fewest states related\]",
    "the rules give other orders, which a test below compares with their definitions",
)
@pytest.mark.parametrize("rule", RULES)
@given(net=networks())
@settings(max_examples=50)
def test_every_order_finds_the_minimum_cost_with_the_predicted_work(
    rule: str, net: Network
) -> None:
    wanted, fresh = least(net), copy.deepcopy(net)
    if wanted >= NEVER:
        return
    found = order(net.sizes, net.neighbors, rule)
    widths, states = [], [0] * len(net.sizes)
    steps = []
    for node in found.nodes:
        widths.append(net.sizes[node] * int(np.prod([net.sizes[n] for n in net.neighbors[node]])))
        steps += net.eliminate([node])
    assert sorted(found.nodes) == list(range(len(net.sizes)))
    assert (found.widest, found.total) == (max(widths), sum(widths))
    assert net.constant == wanted == fresh.cost(net.decode(steps, states))


@given(networks())
@settings(max_examples=40)
def test_network_reduced_to_pairs_has_the_same_minimum_cost(net: Network) -> None:
    """Nodes with at most two neighbors are eliminated; an integer program solves the rest."""
    pytest.importorskip("highspy")
    wanted, fresh = least(net), copy.deepcopy(net)
    if wanted >= NEVER:
        return
    answer = search(net, SearchBudget.of(10.0), limit=1)
    assert answer.method in ("integer program", "elimination")
    assert answer.states is not None
    assert fresh.cost(answer.states) == wanted
    assert all(len(scope) <= 2 for tables in net.tables for scope in tables)


def test_network_too_large_for_the_integer_program_has_no_solution(monkeypatch: Any) -> None:
    monkeypatch.setattr(ilp, "available", lambda: True)
    answer = search(clique(6), SearchBudget.of(1.0), limit=3**5)
    assert (answer.states, answer.bound) == (None, None)
    assert answer.method == (
        "elimination would add up 1.1e+03 numbers, an integer program would have 153 columns: "
        "more work than sbp_selector_seconds"
    )


def test_nodes_with_a_changed_priority_are_eliminated_in_order() -> None:
    """Relating two neighbors of a node also raises its priority; the node is not lost."""
    rng = np.random.default_rng(3)
    near: list[set[int]] = [set() for _ in range(60)]
    for a, b in rng.integers(0, 60, (110, 2)).tolist():
        if a != b:
            near[a].add(b)
            near[b].add(a)
    for rule in RULES:
        found = order([3] * 60, near, rule)
        assert sorted(found.nodes) == list(range(60))
        assert found.nodes == by_definition([3] * 60, near, rule)


def by_definition(sizes: list[int], near: list[set[int]], rule: str) -> tuple[int, ...]:
    """Compute the order of a rule by evaluating the rule on all remaining nodes each time."""
    number, weight = RULES[rule]
    weights = [weight(n) for n in sizes]
    left, found = set(range(len(sizes))), []
    while left:
        now = Relations(sizes, near, weights)
        node = min(left, key=lambda n, now=now: (number(now, n), len(now.neighbors[n]), n))
        now.eliminate(node)
        near = now.neighbors
        left.discard(node)
        found.append(node)
    return tuple(found)


def test_related_weights_are_kept_up_to_date() -> None:
    """Also of nodes that get more neighbors than are counted, and fewer again."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 9, 90).tolist()
    near: list[set[int]] = [set() for _ in sizes]
    for a, b in rng.integers(0, 90, (700, 2)).tolist():
        if a != b:
            near[a].add(b)
            near[b].add(a)
    relations, crowded = Relations(sizes, near, sizes), False
    for node in rng.permutation(90).tolist():
        now = {n: relations.related(n) for n in range(90) if len(relations.neighbors[n]) <= CROWD}
        fresh = Relations(sizes, relations.neighbors, sizes)
        assert now == {n: fresh.related(n) for n in now}
        crowded |= len(now) < 90
        relations.eliminate(node)
    assert crowded


def test_hubs_are_eliminated_last() -> None:
    """Eliminating a neighbor of all nodes, such as a learning rate, would relate them all."""
    count = CROWD + 2
    near = [set(range(1, count)), *({0} for _ in range(1, count))]
    assert order([2] * count, near, "smallest table").nodes.index(0) >= count - CROWD - 1


def test_best_of_several_orders_is_selected() -> None:
    net = clique(7)
    found = best_order(net.sizes, net.neighbors, 3**7)
    assert found.total == min(order(net.sizes, net.neighbors, rule).total for rule in RULES)
    assert narrow_order(net.sizes, net.neighbors).nodes == ()
