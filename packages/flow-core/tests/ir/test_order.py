"""Topological order: each node is the ready node of least rank."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flow_core.ir.order import topological_order

NAMES = [f"n{i}" for i in range(8)]
GRAPHS = st.dictionaries(st.sampled_from(NAMES), st.sets(st.sampled_from(NAMES)))


@given(GRAPHS, st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_each_node_has_the_least_rank_of_the_ready_nodes(
    graph: dict[str, set[str]], ranks: list[int]
) -> None:
    before = {name: graph.get(name, set()) for name in NAMES}
    rank = dict(zip(NAMES, ranks, strict=True))
    order, blocked = topological_order(before, rank)
    assert sorted(order + blocked) == NAMES
    for i, name in enumerate(order):
        done = set(order[:i])
        free = [n for n in NAMES if n not in done and before[n] <= done]
        assert name == min(free, key=lambda n: (rank[n], n))
    assert not any(before[name] <= {*order} for name in blocked)
