"""The rewriter: replacement maps, readers, names, source lines, order and rejected rewrites."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_core.base.dtypes import float32
from flow_core.base.errors import GraphError, SourceLine
from flow_core.ir.graph import NO_ATTRS, Graph, Op, Value, tensor_type, verify
from flow_core.ir.text import parse_graph, print_graph
from flow_core.passes.rewriting.rewriter import Rewriter, like_op
from flow_core.sharding.topology import Placement

CPU, SCALAR = Placement.parse("cpu", "0:0"), tensor_type((), float32)


def graph_of(*rows: str, returns: str = "", effects: str = "") -> Graph:
    """Build a graph of scalars from ``name = type(inputs)``, with optional ``after(names)``."""
    lines = []
    for row in rows:
        head, _, after = row.partition(" after")
        end = f" after{after}" if after else ""
        lines.append(f"{head} : float32[] @cpu[0:0]{end} {{}}")
    return parse_graph("\n".join([*lines, f"return {returns}", f"effects {effects}"]))


def rows_of(graph: Graph) -> list[str]:
    """Return the rows of `graph_of`."""
    verify(graph)
    rows = print_graph(graph).splitlines()[1:-2]
    return [row.replace(" : float32[] @cpu[0:0]", "").removesuffix(" {}") for row in rows]


def scalar(name: str, *inputs: str, type_: str = "new") -> Op:
    return Op(name, type_, tuple(Value(i, 0) for i in inputs), NO_ATTRS, CPU)


CHAIN = graph_of("a = x()", "b = y(a:0)", "c = z(b:0, a:0)", "d = z(c:0)", returns="d:0")


def test_unchanged_rewrite_returns_the_same_graph() -> None:
    rewriter = Rewriter(CHAIN)
    assert rewriter.only_reader(Value("b", 0)) is CHAIN.ops["c"]
    assert rewriter.finish() is CHAIN


def test_replacements_chain_in_either_order() -> None:
    for pairs in ((("c", "b"), ("b", "a")), (("b", "a"), ("c", "b"))):
        rewriter = Rewriter(CHAIN)
        for old, new in pairs:
            rewriter.replace_value(Value(old, 0), Value(new, 0))
        assert rewriter.resolve(Value("c", 0)) == Value("a", 0)
        assert rows_of(rewriter.finish())[-1] == "d = z(a:0)"


def test_graph_results_are_replaced() -> None:
    rewriter = Rewriter(CHAIN)
    rewriter.replace_value(Value("d", 0), Value("a", 0))
    assert rewriter.finish().results == (Value("a", 0),)


def test_value_cannot_replace_itself() -> None:
    rewriter = Rewriter(CHAIN)
    rewriter.replace_value(Value("b", 0), Value("a", 0))
    with pytest.raises(GraphError, match="depends on it"):
        rewriter.replace_value(Value("a", 0), Value("b", 0))


def test_reused_name_distinguishes_old_and_new_values() -> None:
    """One op replaces two under the name of the second: b:0 is d:0, d:0 is d:1."""
    graph = graph_of("a = x()", "b = y(a:0)", "d = y(a:0)", "e = z(b:0, d:0)", returns="d:0, b:0")
    rewriter = Rewriter(graph)
    pair = rewriter.replace(graph.ops["d"], scalar("d", "a", type_="pair"), (SCALAR, SCALAR))
    rewriter.drop(graph.ops["b"])
    rewriter.replace_value(Value("b", 0), pair.output(0))
    rewriter.replace_value(Value("d", 0), pair.output(1))
    made = rewriter.finish()
    assert made.ops["e"].inputs == (Value("d", 0), Value("d", 1))
    assert made.results == (Value("d", 1), Value("d", 0))


def test_readers_include_every_input_and_results() -> None:
    graph = graph_of("a = x()", "b = y(a:0, a:0)", "c = y(b:0)", "d = z(c:0)", returns="c:0")
    rewriter = Rewriter(graph)
    a, b, c, d = (Value(name, 0) for name in "abcd")
    assert rewriter.readers(a) == [graph.ops["b"]] * 2
    assert rewriter.readers(a, "z") == []
    assert rewriter.only_reader(a) is None
    assert rewriter.only_reader(b) is graph.ops["c"]
    assert rewriter.only_reader(b, "z") is None
    assert rewriter.only_reader(c) is None
    assert (rewriter.is_used(c), rewriter.is_used(d)) == (True, False)


def test_rewritten_reader_does_not_match() -> None:
    for touch in (Rewriter.drop, lambda r, op: r.replace(op, replace(op, type="other"))):
        rewriter = Rewriter(CHAIN)
        touch(rewriter, CHAIN.ops["c"])
        assert not rewriter.is_untouched(CHAIN.ops["c"])
        assert rewriter.only_reader(Value("b", 0)) is None


def test_new_ops_are_inserted_in_order() -> None:
    rewriter = Rewriter(CHAIN)
    c = CHAIN.ops["c"]
    rewriter.after(c).add(scalar("after_1", "c"), (SCALAR,))
    rewriter.add(scalar("after_2", "c"), (SCALAR,))
    rewriter.before(c).add(scalar("before_1", "b"), (SCALAR,))
    rewriter.add(scalar("before_2", "b"), (SCALAR,))
    rewriter.at_end().add(scalar("last"), (SCALAR,))
    names = ["a", "b", "before_1", "before_2", "c", "after_1", "after_2", "d", "last"]
    assert list(rewriter.finish().ops) == names


def test_moved_ops_are_inserted_at_the_insertion_point() -> None:
    graph = graph_of("a = x()", "b = x()", "c = x()")
    rewriter = Rewriter(graph)
    rewriter.before(graph.ops["a"]).move(graph.ops["c"])
    assert list(rewriter.finish().ops) == ["c", "a", "b"]


def test_op_is_placed_after_its_inputs() -> None:
    rewriter = Rewriter(CHAIN)
    rewriter.before(CHAIN.ops["a"]).move(CHAIN.ops["d"])
    rewriter.move(CHAIN.ops["b"])
    assert list(rewriter.finish().ops) == ["a", "b", "c", "d"]


def test_replacement_under_another_name_keeps_place_line_effect_and_control() -> None:
    graph = graph_of("a = x()", "b = y(a:0)", "c = z() after(b)", effects="b")
    line = SourceLine("model.py", 3)
    graph = replace(graph, lines={"b": line})
    rewriter = Rewriter(graph)
    rewriter.replace(graph.ops["b"], scalar("n", "a"))
    made = rewriter.finish()
    assert rows_of(made) == ["a = x()", "n = new(a:0)", "c = z() after(n)"]
    assert made.effects == ("n",)
    assert made.lines == {"n": line}


def test_new_ops_inherit_the_line_of_the_adjacent_op() -> None:
    here, other = SourceLine("model.py", 3), SourceLine("model.py", 4)
    graph = replace(CHAIN, lines={"c": here})
    rewriter = Rewriter(graph).after(graph.ops["c"])
    rewriter.add(scalar("n", "c"), (SCALAR,))
    rewriter.add(scalar("m", "c"), (SCALAR,), line=other)
    lines = rewriter.finish().lines
    assert (lines["n"], lines["m"]) == (here, other)


def test_effects_can_be_added_and_removed() -> None:
    graph = graph_of("a = x()", "b = y()", effects="a")
    rewriter = Rewriter(graph)
    rewriter.replace(graph.ops["a"], like_op(graph.ops["a"], "z", {}, ()), effect=False)
    rewriter.add(scalar("n"), (), effect=True)
    assert rewriter.finish().effects == ("n",)


def test_control_edges_to_dropped_ops_are_removed() -> None:
    graph = graph_of("a = x()", "b = x()", "c = x()", "d = y() after(a, b)")
    rewriter = Rewriter(graph)
    rewriter.drop(graph.ops["a"])
    rewriter.drop(graph.ops["b"], successor="c")
    assert rows_of(rewriter.finish()) == ["c = x()", "d = y() after(c)"]


def test_names_are_unique_and_reusable_after_a_drop() -> None:
    rewriter = Rewriter(CHAIN)
    assert [rewriter.unique_name(n) for n in ("b", "n")] == ["b_1", "n"]
    with pytest.raises(GraphError, match="an op of that name"):
        rewriter.add(scalar("b"), (SCALAR,))
    rewriter.drop(CHAIN.ops["b"])
    assert rewriter.unique_name("b") == "b"
    rewriter.at_end().add(scalar("b", "a"), (SCALAR,))
    assert list(rewriter.finish().ops) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("dropped", "found"), [("b", "inputs of.*'b'"), ("d", "result d:0, of a dropped op")]
)
def test_remaining_readers_of_a_dropped_op_are_rejected(dropped: str, found: str) -> None:
    rewriter = Rewriter(CHAIN)
    rewriter.drop(CHAIN.ops[dropped])
    with pytest.raises(GraphError, match=found):
        rewriter.finish()


def test_cycles_are_rejected() -> None:
    rewriter = Rewriter(CHAIN)
    rewriter.replace(CHAIN.ops["b"], scalar("b", "c"))
    with pytest.raises(GraphError, match="cycle"):
        rewriter.finish()


@st.composite
def moves(draw: st.DrawFn) -> tuple[Graph, list[tuple[str, str]]]:
    """Draw a graph and moves of its ops before other ops."""
    ops: dict[str, Op] = {}
    for i in range(draw(st.integers(1, 8))):
        picks = st.lists(st.sampled_from(sorted(ops)), max_size=2) if ops else st.just([])
        op = scalar(f"op{i}", *draw(picks))
        ops[op.name] = replace(op, control=tuple(draw(picks)))
    names = st.sampled_from(sorted(ops))
    graph = Graph(ops, dict.fromkeys(ops, (SCALAR,)))
    return graph, draw(st.lists(st.tuples(names, names), max_size=4))


@pytest.mark.slow
@given(moves())
def test_any_moves_produce_a_valid_graph(drawn: tuple[Graph, list[tuple[str, str]]]) -> None:
    graph, pairs = drawn
    rewriter = Rewriter(graph)
    for name, target in pairs:
        rewriter.before(graph.ops[target]).move(graph.ops[name])
    made = rewriter.finish()
    verify(made)
    assert dict(made.ops) == dict(graph.ops)
