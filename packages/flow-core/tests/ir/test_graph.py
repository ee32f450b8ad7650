"""Graphs: invariants, text form, passes on random graphs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.base.dtypes import float32
from flow_core.base.errors import GraphError, SourceLine
from flow_core.builtin.passes_plugin import PASSES
from flow_core.ir.graph import (
    NO_ATTRS,
    Attrs,
    Graph,
    GraphBuilder,
    Op,
    Origin,
    Value,
    rebuild,
    tensor_type,
    verify,
)
from flow_core.ir.text import parse_graph, print_graph
from flow_core.ops.build import Emitter
from flow_core.passes.base import PassContext
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import load
from flow_core.sharding.sbp import B, S
from flow_core.sharding.topology import Placement
from flow_core.testing.interpret import evaluate

CPU = Placement.parse("cpu", "0:0")
SPECS = default_registry().ops
UNARY = ("exp", "negative", "tanh", "relu", "sin")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw random graphs of elementwise ops, constants and matmuls on 3x3 arrays."""
    builder = GraphBuilder()
    emitter = Emitter(builder, SPECS)
    attrs = {"shape": (3, 3), "dtype": "float32"}
    values = [emitter.emit("input", (), attrs, placement=CPU, name=n)[0] for n in ("x", "y")]
    values += emitter.emit("constant", (), {**attrs, "value": 0.5}, placement=CPU)
    for _ in range(draw(st.integers(1, 15))):
        a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        kind = draw(st.sampled_from((*UNARY, "broadcast_add", "broadcast_mul", "matmul")))
        inputs = [a] if kind in UNARY else [a, b]
        values += emitter.emit(kind, inputs, placement=CPU)
    builder.results = tuple(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))
    return builder.build()


@given(graphs())
@settings(max_examples=40)
def test_text_form_round_trips(graph: Graph) -> None:
    assert parse_graph(print_graph(graph)) == graph


@given(graphs())
@settings(max_examples=40)
def test_passes_preserve_semantics_and_invariants(graph: Graph) -> None:
    passes = (p for p in PASSES if p.default and p.name != "fuse_elementwise")
    context, after = PassContext(SPECS), graph
    for item in (load(p.load)() for p in passes):
        before, after = after, item.apply(after, context)
        verify(after, before, SPECS)
    rng = np.random.default_rng(0)
    feeds = {n: rng.uniform(-0.5, 0.5, (3, 3)).astype("f4") for n in ("x", "y")}
    with np.errstate(all="ignore"):
        want, have = evaluate(graph, SPECS, feeds), evaluate(after, SPECS, feeds)
    for a, b in zip(graph.results, after.results, strict=True):
        np.testing.assert_allclose(have[b], want[a], rtol=2e-3)
    assert len(after) <= len(graph)


@given(graphs())
@settings(max_examples=40)
def test_fusion_produces_valid_graphs_with_the_same_members(graph: Graph) -> None:
    """Groups without readers are dropped, as they would have no outputs."""
    fuse, dead_code = (
        next(load(p.load)() for p in PASSES if p.name == name)
        for name in ("fuse_elementwise", "dead_code")
    )
    context = PassContext(SPECS)
    for before in (graph, dead_code.apply(graph, context)):
        after = fuse.apply(before, context)
        verify(after)
        assert parse_graph(print_graph(after)) == after
        groups = [op for op in after.ops.values() if op.type == "fused"]
        assert all(op.attrs["outputs"] for op in groups)
        members = sum(len(op.attrs["body"]) for op in groups) + len(after) - len(groups)
        assert members == len(before) if before is not graph else members <= len(before)


def test_attributes_distinguish_numbers_of_different_type() -> None:
    assert Attrs({"a": 1}) == Attrs({"a": 1})
    assert Attrs({"a": 1}) != Attrs({"a": 1.0})
    assert Attrs({"a": 1}) != Attrs({"a": True})


def _one_op(**changes: object) -> Graph:
    op = replace(Op("x", "exp", (), Attrs(), CPU), **changes)  # type: ignore[arg-type]
    return Graph({"x": op}, {"x": (tensor_type((2,), float32),)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "y"}, "filed under"),
        ({"inputs": (Value("z", 0),)}, "comes later or not at all"),
        ({"control": ("z",)}, "comes later or not at all"),
        ({"attrs": Attrs({"a": [1]})}, "attribute a"),
    ],
)
def test_verifier_names_the_broken_rule(changes: dict[str, object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        verify(_one_op(**changes))


def test_text_preserves_sbp_control_edges_and_unusual_names() -> None:
    a = Op('a "b" c', "input", (), Attrs({"shape": (2,)}), CPU)
    b = Op("d", "exp", (Value(a.name, 0),), Attrs(), CPU, ((S(0), B), None), (a.name,))
    kind = tensor_type((2,), float32)
    graph = Graph({a.name: a, "d": b}, {a.name: (kind,), "d": (kind,)}, (Value("d", 0),), ("d",))
    assert parse_graph(print_graph(graph)) == graph


def test_unparsable_line_is_named() -> None:
    with pytest.raises(GraphError, match="line 2"):
        parse_graph("graph\nwhat is this\n")


ATTRIBUTES = {
    "text": "it's \"x\" \\ \n\t\0 }  # a \u2028 \U0001f600 \ud800",
    "numbers": (0, -7, 2**70, 1e-300, -0.0, 1.5),
    "infinite": (float("inf"), float("-inf")), "words": (True, False, None), "one": (1,),
    "nested": ((), ((2, 3), ("a",))),
}  # fmt: skip


@pytest.mark.parametrize("lines", [False, True])
def test_text_preserves_attributes(lines: bool) -> None:
    op = Op("return", "input", (), Attrs(ATTRIBUTES), CPU)
    kind = tensor_type((2,), float32)
    graph = Graph({op.name: op}, {op.name: (kind,)}, lines={op.name: SourceLine("a.py", 3)})
    assert parse_graph(print_graph(graph, lines)) == graph


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("x = input() : float32[2] @cpu[0:0] {'a': " + "(" * 65 + ")" * 65 + "}", r"\( as a value"),
        ("x = input() : float32[2] @cpu[0:0] {'a': " + "(" * 100_000, "as a value"),
        ("x = input() : float32[2] @cpu[0:0] {'a': 1, 'a': 2}", "'a' as the name"),
        ("x = input() : float32[2] @cpu[0:0] {'a': [1]}", r"\[1"),
        ("x = input() : float32[2] @cpu[0:0] {'a': '\\q'}", "the escape"),
        ("x = input() : float32[2] @cpu[0:0] {'a': '\\Uffffffff'}", "the escape"),
        ("x = input() : float32[2] @cpu[0:0] {'a': " + "9" * 5000 + "}", "digits"),
        ("x = input() : float32[2] @cpu[0:0] {1: 2}", "1 as the name"),
        ("x = input() : float32[2] @cpu[0:0] {} y", "' y' after the attributes"),
        ("x = input() : int3[2] @cpu[0:0] {}", "int3"),
        ("x = input() : float32[2] @cpu[0:0 as 0] {}", "hierarchy"),
        ("x = input() : float32[2] @cpu[0:0] sbp(Q) {}", "Q"),
        ("y = input() : float32[2] @cpu[0:0] {}", "a second op 'y'"),
        ("return y:0 y:0", "y:0 y:0"),
        # these take time that doubles with each item if an expression is ambiguous
        ("x = f(" + "a:11" * 200 + "!) : float32[2] @cpu[0:0] {}", "another form"),
        ("x = f() : float32[2] @cpu[0:0] after(" + "a" * 2000 + "!) {}", "another form"),
    ],
)  # fmt: skip
def test_bad_lines_are_named(row: str, text: str) -> None:
    with pytest.raises(GraphError, match=f"line 3(.|\n)*{text}"):
        parse_graph(f"graph\ny = input() : float32[2] @cpu[0:0] {{}}\n{row}\n")


def test_origins_follow_their_ops() -> None:
    origins = {"a": Origin("x", micro_batch=0), "b": Origin("x", micro_batch=1)}
    builder = GraphBuilder()
    for name, origin in origins.items():
        builder.add(
            Op(name, "input", (), NO_ATTRS, CPU), (tensor_type((), float32),), origin=origin
        )
    graph = rebuild(builder.build(), [builder.ops["b"]])
    assert graph.origins == {"b": origins["b"]}
    assert graph.origin("b") == origins["b"]
    assert graph.origin("c") == Origin("c")
