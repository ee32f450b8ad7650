"""An op computes the same bits in every layout."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from flow_core.base.dtypes import as_dtype
from flow_core.compiler.distribute.physical_graph import Physical, to_physical
from flow_core.compiler.select import Problem
from flow_core.ir.graph import Graph, GraphBuilder, Value
from flow_core.ops.build import Emitter
from flow_core.plugins.host import default_registry
from flow_core.sharding.sbp import B, NdSbp, S, local_region
from flow_core.sharding.topology import Placement
from flow_core.testing.interpret import evaluate

SPECS = default_registry().ops
GRIDS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("0:0-1", (2,)), ("0:0-2", (3,)), ("0:0-3", (4,)), ("0:0-3", (2, 2)), ("0:0-5", (2, 3)),
)  # fmt: skip


def graph_of(op: str, arrays: Any, attrs: Any, place: Placement, sbp: Any) -> tuple[Graph, Any]:
    """Build one op whose output 0 has a requested layout; return the graph and its feeds."""
    builder = GraphBuilder()
    emitter = Emitter(builder, SPECS)
    feeds, values = {}, []
    for i, x in enumerate(arrays):
        given = {"shape": x.shape, "dtype": as_dtype(x.dtype).name, "batch_axis": None}
        values += emitter.emit("input", [], given, placement=place, name=f"x{i}")
        feeds[f"x{i}"] = x
    requests = () if sbp is None else (sbp,)
    builder.results = emitter.emit(op, values, attrs, placement=place, name="op", sbp=requests)
    return builder.build(), feeds


def assembled(graph: Graph, physical: Physical, feeds: Any) -> Any:
    """Return the logical tensor of the devices' split or broadcast parts."""
    found = evaluate(physical.graph, SPECS, feeds)
    layout, (type_,) = physical.layouts[Value("op", 0)], graph.types["op"]
    whole = np.zeros(type_.shape, found[Value("op@0", 0)].dtype)
    for rank in range(layout.placement.size):
        box = tuple(slice(*bounds) for bounds in layout.region(type_.shape, rank))
        whole[box] = found[Value(f"op@{rank}", 0)]
    return whole


def cases() -> Iterator[tuple[str, Any, Any]]:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (7, 5, 9))
    ids = rng.integers(-1, 9, (5, 4)).astype(np.int32)
    yield "random_mask_like", (x,), {"rate": 0.4}
    yield "bernoulli", (x,), {}
    yield "coin_flip", (), {"batch_size": 23, "probability": 0.5}
    for kind in (
        ("random_normal", 1.0, 2.0), ("random_uniform", 0.0, 1.0), ("random_uniform_int", 0, 9),
    ):  # fmt: skip
        dtype = "int32" if kind[0].endswith("int") else "float32"
        yield "random_values", (), {"distribution": kind, "shape": (7, 5, 9), "dtype": dtype}
    yield "range", (), {"start": 3, "limit": 40, "delta": 3, "dtype": "int64"}
    yield "constant", (), {"value": 2.5, "shape": (7, 5), "dtype": "float32"}
    yield "one_hot", (ids % 8,), {"depth": 8, "dtype": "float32"}
    yield "gather", (x, ids), {"axis": 0}
    yield "unsorted_segment_sum", (x, ids[:, 0]), {"axis": 1, "num_segments": 6}
    yield "dim_gather", (x[0], ids % 6), {"dim": 1}
    yield "scatter_nd", (ids[:, :2] % 6, x[:5, 0]), {"shape": (7, 6, 9)}
    yield "reshape", (x,), {"shape": (35, 9)}


@pytest.mark.representative(
    "-0:0-5-", "each op on a grid of 2 by 3, of which the smaller grids are rows or columns"
)
@pytest.mark.parametrize(("devices", "hierarchy"), GRIDS)
@pytest.mark.parametrize("case", tuple(cases()), ids=lambda case: case[0])
def test_every_layout_computes_the_same_bits(case: Any, devices: str, hierarchy: Any) -> None:
    op, arrays, attrs = case
    place = Placement.parse("cpu", devices, hierarchy)
    asked = graph_of(op, arrays, attrs, Placement.parse("cpu", "0:0"), None)
    want = evaluate(asked[0], SPECS, asked[1])[Value("op", 0)]
    checked = 0
    for sbp in layouts(want.shape, hierarchy):
        if op == "reshape" and S(0) in sbp:
            continue
        graph, feeds = graph_of(op, arrays, attrs, place, sbp)
        physical = to_physical(Problem(graph, SPECS))
        assert physical.layouts[Value("op", 0)].sbp == sbp
        np.testing.assert_array_equal(assembled(graph, physical, feeds), want, err_msg=str(sbp))
        checked += 1
    assert checked > 1


def layouts(shape: tuple[int, ...], hierarchy: tuple[int, ...]) -> Iterator[NdSbp]:
    """Yield all layouts of S and B with nonempty parts on every device."""
    last = prod(hierarchy) - 1
    for sbp in product((B, *map(S, range(len(shape)))), repeat=len(hierarchy)):
        if all(low < high for low, high in local_region(shape, sbp, hierarchy, last)):
            yield sbp


def test_dropout_mask_is_drawn_in_parts() -> None:
    """No boxing: the mask of a split tensor is split."""
    place = Placement.parse("cpu", "0:0-3")
    x = np.ones((9, 6))
    graph, _ = graph_of("random_mask_like", (x,), {"rate": 0.5}, place, (S(0),))
    types = to_physical(Problem(graph, SPECS)).graph.types
    shapes = [types[f"op@{rank}"][0].shape for rank in range(4)]
    assert shapes == [(3, 6), (2, 6), (2, 6), (2, 6)]


def test_split_heads_stay_on_their_devices() -> None:
    """(batch, time, heads * size) -> (batch, time, heads, size), split by heads."""
    place = Placement.parse("cpu", "0:0-1")
    x = np.arange(2 * 3 * 8.0).reshape(2, 3, 8)
    graph, feeds = graph_of("reshape", (x,), {"shape": (2, 3, 4, 2)}, place, (S(2),))
    physical = to_physical(Problem(graph, SPECS))
    np.testing.assert_array_equal(assembled(graph, physical, feeds), x.reshape(2, 3, 4, 2))
    assert physical.graph.ops["op@1"].attrs["shape"] == (2, 3, 2, 2)
