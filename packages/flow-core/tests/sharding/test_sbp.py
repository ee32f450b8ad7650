"""Laws of the SBP algebra, and one-dimensional rules expanded to several, by brute force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import GraphError
from flow_core.compiler.select import NdSignature, signatures
from flow_core.ir.graph import GraphBuilder, Value
from flow_core.ops.array.select import LAST
from flow_core.ops.build import Emitter
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import LocalContext, Part, local_attrs
from flow_core.sharding.sbp import (
    B,
    NdSbp,
    P,
    Partial,
    S,
    Sbp,
    Split,
    format_nd_sbp,
    gradient_dual,
    local_region,
    parse_nd_sbp,
    parse_sbp,
    region_shape,
)
from flow_core.sharding.topology import Placement
from flow_core.testing.checks import as_tuple
from flow_rules.layouts import parse_layout
from flow_rules.scattering import gather, is_close, scatter

SPECS = default_registry().ops
GRIDS = ((2, 2), (2, 3), (3, 2))

atoms: st.SearchStrategy[Sbp] = st.one_of(
    st.just(B), st.sampled_from(["sum", "max", "min"]).map(Partial), st.integers(0, 5).map(Split)
)
nd_sbps = st.lists(atoms, min_size=1, max_size=4).map(tuple)


@given(atoms)
def test_text_form_round_trips(sbp: Sbp) -> None:
    assert parse_sbp(str(sbp)) == sbp


@pytest.mark.slow
@given(nd_sbps)
def test_text_form_of_several_dimensions_round_trips(nd: NdSbp) -> None:
    assert parse_nd_sbp(format_nd_sbp(nd)) == nd
    assert parse_nd_sbp(f" ({' ,  '.join(map(str, nd))}) ") == nd


@pytest.mark.parametrize("text", ["", "S", "S()", "S(x)", "P(prod)", "b", "S(0) B", "(S(0), )"])
def test_invalid_texts_are_rejected(text: str) -> None:
    with pytest.raises(GraphError, match="reading an SBP"):
        parse_nd_sbp(text)


@given(atoms)
def test_duals(sbp: Sbp) -> None:
    """The dual is an involution; the dual of a maximum is that of a sum."""
    twice = gradient_dual(gradient_dual(sbp))
    assert twice == (P if isinstance(sbp, Partial) else sbp)


# ------------------------------------------------------------------------ several dimensions


def scatter_nd(array: Any, nd: NdSbp, hierarchy: Sequence[int], rng: Any) -> list[Any]:
    """Return the part of each device, divided by the outermost dimension first."""
    if not nd:
        return [array]
    parts = scatter(array, parse_layout(str(nd[0])), hierarchy[0], rng)
    return [own for part in parts for own in scatter_nd(part, nd[1:], hierarchy[1:], rng)]


def gather_nd(parts: Sequence[Any], nd: NdSbp, hierarchy: Sequence[int]) -> Any:
    """Return the logical array, assembled from the innermost dimension."""
    if not nd:
        return parts[0]
    size = len(parts) // hierarchy[0]
    rows = (parts[i : i + size] for i in range(0, len(parts), size))
    return gather([gather_nd(row, nd[1:], hierarchy[1:]) for row in rows], parse_layout(str(nd[0])))


@pytest.mark.slow
@given(
    shape=st.tuples(st.integers(0, 7), st.integers(0, 7)),
    hierarchy=st.sampled_from([(2,), (4,), (2, 2), (2, 3), (2, 1, 3)]),
    data=st.data(),
)
def test_parts_assemble_to_the_whole(
    shape: tuple[int, ...], hierarchy: tuple[int, ...], data: st.DataObject
) -> None:
    """Also if an axis is shorter than its number of devices and some parts are empty."""
    kinds = st.sampled_from((B, P, Partial("max"), S(0), S(1)))
    nd = tuple(data.draw(kinds) for _ in hierarchy)
    rng = np.random.default_rng(0)
    array = rng.integers(-9, 9, shape)
    held = scatter_nd(array, nd, hierarchy, rng)
    for rank, part in enumerate(held):
        assert part.shape == region_shape(local_region(shape, nd, hierarchy, rank))
    np.testing.assert_array_equal(gather_nd(held, nd, hierarchy), array)


def candidates(op: str, arrays: Any, attrs: Any, hierarchy: Any) -> tuple[Any, list[NdSignature]]:
    """Return an op of a graph and all its signatures over a hierarchy."""
    place = Placement.parse("cpu", f"0:0-{prod(hierarchy) - 1}", hierarchy)
    builder = GraphBuilder()
    emitter = Emitter(builder, SPECS)
    values: list[Value] = []
    for i, x in enumerate(arrays):
        given = {"shape": x.shape, "dtype": as_dtype(x.dtype).name, "batch_axis": None}
        values += emitter.emit("input", [], given, placement=place, name=f"x{i}")
    emitter.emit(op, values, attrs, placement=place, name="op")
    graph = builder.build()
    return graph, list(signatures(graph, graph.ops["op"], SPECS[op]))


def check(graph: Any, arrays: Any, rule: NdSignature, hierarchy: Any, rng: Any) -> None:
    """Check that the devices' results assemble to the logical result."""
    op = graph.ops["op"]
    spec, types = SPECS[op.type], graph.input_types(op)
    want = as_tuple(spec.reference(*arrays, **op.attrs))  # type: ignore[misc]
    held = [scatter_nd(x, nd, hierarchy, rng) for x, nd in zip(arrays, rule.inputs, strict=True)]
    found = []
    for rank in range(prod(hierarchy)):
        ins, outs = (
            tuple(
                Part(t, local_region(t.shape, nd, hierarchy, rank))
                for t, nd in zip(*row, strict=True)
            )
            for row in ((types, rule.inputs), (graph.types["op"], rule.outputs))
        )
        attrs = local_attrs(spec, LocalContext(op.attrs, ins, outs))
        found.append(as_tuple(spec.reference(*(h[rank] for h in held), **attrs)))  # type: ignore[misc]
    for k, nd in enumerate(rule.outputs):
        whole = gather_nd([parts[k] for parts in found], nd, hierarchy)
        assert is_close(whole, want[k], 100.0), f"{op.type} {rule} on {hierarchy}"


def cases() -> Iterator[tuple[str, Any, Any]]:
    rng = np.random.default_rng(0)

    def whole(*shape: int) -> Any:
        return rng.integers(-4, 5, shape).astype(np.float64)

    ids = rng.integers(-1, 8, 7).astype(np.int32)
    yield "broadcast_add", (whole(7, 5), whole(5)), {}
    yield "broadcast_maximum", (whole(7, 1), whole(7, 5)), {}
    yield "reduce_sum", (whole(7, 5, 6),), {"axis": (1,)}
    yield "reduce_max", (whole(7, 5),), {"axis": (0,), "keepdims": True}
    yield "transpose", (whole(7, 5, 6),), {"perm": (2, 0, 1)}
    yield "reshape", (whole(5, 12, 3),), {"shape": (5, 6, 2, 3)}
    yield "reshape", (whole(5, 12, 3),), {"shape": (5, 36)}
    yield "gather", (whole(9, 5), ids), {"axis": 0}
    yield "unsorted_segment_sum", (whole(7, 5), ids), {"axis": 0, "num_segments": 7}
    yield "one_hot", (ids % 7,), {"depth": 7, "dtype": "float64"}
    yield "range", (), {"start": 2, "limit": 25, "delta": 2, "dtype": "int64"}
    yield "random_mask_like", (whole(7, 5, 6),), {"rate": 0.5}
    cut = {"start": (1, 0, 4), "stop": (6, LAST, 0), "step": (2, 1, -1)}
    yield "slice", (whole(7, 5, 6),), cut
    yield "slice_update", (whole(7, 5, 6), whole(3, 5, 4)), cut
    yield "softmax", (whole(7, 5, 6),), {"axis": 1}
    yield "layer_norm", (whole(7, 5), whole(5), whole(5)), {}


@pytest.mark.parametrize("hierarchy", GRIDS)
@pytest.mark.parametrize("case", tuple(cases()), ids=lambda case: case[0])
def test_rules_hold_in_each_dimension(case: Any, hierarchy: tuple[int, int]) -> None:
    op, arrays, attrs = case
    rng = np.random.default_rng(1)
    graph, found = candidates(op, arrays, attrs, hierarchy)
    for rule in found:
        check(graph, arrays, rule, hierarchy, rng)
    twice = [r for r in found for nd in (*r.inputs, *r.outputs) if nd[0] == nd[1] != B]
    assert twice, "no rule splits an axis, or is partial, in both dimensions"


@pytest.mark.parametrize("hierarchy", GRIDS)
@pytest.mark.parametrize("a", [False, True])
@pytest.mark.parametrize("b", [False, True])
def test_products_have_36_signatures(a: bool, b: bool, hierarchy: tuple[int, int]) -> None:
    """The six of one dimension in each of two, for any transposed operands."""
    rng = np.random.default_rng(2)
    left = rng.integers(-4, 5, (7, 9) if a else (9, 7)).astype(np.float64)
    right = rng.integers(-4, 5, (11, 7) if b else (7, 11)).astype(np.float64)
    attrs = {"transpose_a": a, "transpose_b": b}
    graph, found = candidates("matmul", (left, right), attrs, hierarchy)
    assert len(found) == len(set(found)) == 36
    for rule in found:
        check(graph, (left, right), rule, hierarchy, rng)
