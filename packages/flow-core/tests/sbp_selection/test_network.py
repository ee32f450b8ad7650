"""Elimination and integer programming find the least cost, by brute force."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.compiler.select import ilp, network
from flow_core.compiler.select.costs import NEVER
from flow_core.compiler.select.network import Infeasible, Network, TooWide
from flow_core.compiler.select.optimal import search

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


@given(networks())
def test_elimination_finds_the_least_cost(net: Network) -> None:
    wanted, fresh = least(net), net.copy()
    if wanted >= NEVER:
        with pytest.raises(Infeasible):
            net.solve()
        return
    states, cost = net.solve()
    assert cost == wanted
    assert fresh.cost(states) == wanted


@given(networks())
@settings(deadline=None, max_examples=40)
def test_the_integer_program_finds_it_too(net: Network) -> None:
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
    """Every node is related to every other: as wide as can be."""
    rng = np.random.default_rng(0)
    net = Network()
    for _ in range(nodes):
        net.node(rng.integers(0, 9, states))
    for a, b in itertools.combinations(range(nodes), 2):
        net.pair(a, b, rng.integers(0, 9, (states, states)))
    return net


def test_what_is_too_wide_is_said_so() -> None:
    with pytest.raises(TooWide):
        clique(6).solve(limit=3**5)
    states, cost = clique(6).solve(limit=3**6)
    assert clique(6).cost(states) == cost == least(clique(6))


def test_a_wide_network_goes_to_the_integer_program() -> None:
    pytest.importorskip("highspy")
    answer = search(clique(6), deadline=float("inf"), limit=3**5)
    assert answer.method == "integer program"
    assert answer.states is not None
    assert clique(6).cost(answer.states) == least(clique(6))


def test_without_the_solver_a_wide_network_has_no_answer(monkeypatch: Any) -> None:
    monkeypatch.setattr(ilp, "available", lambda: False)
    answer = search(clique(6), deadline=float("inf"), limit=3**5)
    assert answer.states is None
    assert "flow-core[optimal]" in answer.method


def test_time_runs_out() -> None:
    answer = search(clique(6), deadline=0.0)
    assert (answer.states, answer.bound, answer.method) == (None, None, "time ran out")


def test_time_runs_out_within_one_elimination(monkeypatch: Any) -> None:
    """Every piece of a large table is preceded by a look at the clock, here one that counts."""
    looks = itertools.count()
    monkeypatch.setattr(network, "time", SimpleNamespace(perf_counter=lambda: next(looks)))
    net, wide = clique(3, 400), np.broadcast_to(np.zeros((), np.int64), (400,) * 3)
    for tables in net.tables:
        tables[0, 1, 2] = wide
    answer = search(net, deadline=20, limit=1 << 27)
    assert answer.method == "time ran out"
    assert next(looks) == 22
    assert net.near == [{1, 2}, {0, 2}, {0, 1}]


def test_equal_parts_of_a_chain_are_solved_once() -> None:
    net = Network()
    table = np.array([[0, 3, 9], [4, 0, 2], [5, 7, 0]], np.int64)
    nodes = [net.node([1, 2, 1]) for _ in range(300)]
    for a, b in itertools.pairwise(nodes):
        net.pair(a, b, table)
    fresh = net.copy()
    states, cost = net.solve()
    assert fresh.cost(states) == cost
    assert len(net.memory.answers) < 30
