"""The order in which an editor leaves the ops of a graph."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flow_core.base.dtypes import float32
from flow_core.ir.graph import NO_ATTRS, Graph, Op, Value, tensor_type, verify
from flow_core.rewriting.editor import Editor, edit
from flow_core.sharding.topology import Placement

CPU, SCALAR = Placement.parse("cpu", "0:0"), tensor_type((), float32)


@st.composite
def editors(draw: st.DrawFn) -> Editor:
    """A graph whose ops have been given other ranks, some of them before what they need."""
    ops: dict[str, Op] = {}
    for i in range(draw(st.integers(1, 8))):
        picks = st.lists(st.sampled_from(sorted(ops)), max_size=2) if ops else st.just([])
        inputs = tuple(Value(name, 0) for name in draw(picks))
        ops[f"op{i}"] = Op(f"op{i}", "any", inputs, NO_ATTRS, CPU, control=tuple(draw(picks)))
    editor = edit(Graph(ops, dict.fromkeys(ops, (SCALAR,))), {})
    if draw(st.booleans()):
        editor.rank = {name: float(draw(st.integers(0, 8))) for name in ops}
    return editor


@given(editors())
def test_ops_are_taken_by_rank_each_after_what_it_needs(editor: Editor) -> None:
    order = list(editor.finish().ops.values())
    verify(editor.finish())
    assert order == editor._taken_in_turn(list(editor.ops.values()))


def test_an_op_that_would_stand_before_its_input_waits() -> None:
    ops = {"a": Op("a", "any", (), NO_ATTRS, CPU)}
    ops["b"] = Op("b", "any", (Value("a", 0),), NO_ATTRS, CPU)
    editor = edit(Graph(ops, dict.fromkeys(ops, (SCALAR,))), {})
    assert list(editor.finish().ops) == ["a", "b"]
    editor.rank = {"a": 2.0, "b": 1.0}
    assert list(editor.finish().ops) == ["a", "b"]
