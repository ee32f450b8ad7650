"""Segments of activations that are computed again: where they end, and what they save."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flow_core.base.dtypes import float32
from flow_core.frontend.job.forms.segments import segments
from flow_core.ir.graph import NO_ATTRS, Op, Value, tensor_type
from flow_core.sharding.topology import Placement

PLACE = Placement("cpu", ((0, 0),))


def graph(edges: dict[str, tuple[str, ...]], sizes: dict[str, int]) -> tuple[Any, Any, Any]:
    """Ops with these inputs, whose values have so many elements."""
    ops = {
        name: Op(name, "identity", tuple(Value(v, 0) for v in inputs), NO_ATTRS, PLACE)
        for name, inputs in edges.items()
    }
    types = {name: (tensor_type((sizes.get(name, 1),), float32),) for name in edges}
    return ops, types, frozenset(edges)


def layers(count: int) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    """Layers of a residual network: wide values within, and one narrow value between them."""
    edges: dict[str, tuple[str, ...]] = {"x": ()}
    sizes, last = {"x": 4}, "x"
    for i in range(count):
        edges |= {f"a{i}": (last,), f"b{i}": (f"a{i}",), f"s{i}": (f"b{i}", last)}
        sizes |= {f"a{i}": 64, f"b{i}": 64, f"s{i}": 4}
        last = f"s{i}"
    return edges, sizes


@pytest.mark.parametrize("count", [1, 2, 9, 16])
def test_segments_of_a_residual_network_end_after_layers(count: int) -> None:
    found = segments(*graph(*layers(count)))
    assert [name for part in found for name in part] == [n for n in layers(count)[0] if n != "x"]
    assert all(part[-1].startswith("s") for part in found)
    if count > 4:
        assert 1 < len(found) <= count


@pytest.mark.parametrize("seed", range(20))
def test_all_ops_are_in_one_segment_each(seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges: dict[str, tuple[str, ...]] = {"v0": ()}
    for i in range(1, 40):
        edges[f"v{i}"] = tuple(f"v{j}" for j in {int(rng.integers(0, i)) for _ in range(2)})
    sizes = {name: int(rng.integers(1, 1000)) for name in edges}
    found = segments(*graph(edges, sizes))
    assert [name for part in found for name in part] == [*edges][1:]
    assert all(found)


def test_a_network_without_ops_has_no_segments() -> None:
    assert segments(*graph({"x": ()}, {})) == []
