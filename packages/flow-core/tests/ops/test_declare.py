"""Ops declared as classes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Any

import pytest

from flow_core.base.errors import PluginError
from flow_core.ops.declare import OpDef, specs
from flow_core.ops.rules import like_input, linear
from flow_core.plugins.specs import OpSpec


class Doubled(OpDef):
    """Twice
    the number.
    """

    schema = "doubled(x) -> y"
    infer = staticmethod(like_input)
    sbp = staticmethod(linear)
    factor: float = 2

    def reference(self, x: float) -> float:
        return x * self.factor


class Tripled(Doubled):
    schema = "tripled(x) -> y"
    factor = 3


@dataclass(frozen=True, slots=True)
class Row(OpDef):
    """A row of a table."""

    type: str
    power: int
    schema = "(x) -> y"
    infer = staticmethod(like_input)

    def reference(self, x: float) -> float:
        return float(x**self.power)


def called(spec: OpSpec, *inputs: float) -> Any:
    assert spec.reference is not None
    return spec.reference(*inputs)


def test_attributes_and_methods_are_fields_of_the_spec() -> None:
    (doubled,) = specs(Doubled)
    assert (doubled.type, doubled.inputs, doubled.outputs) == ("doubled", ("x",), ("y",))
    assert (doubled.infer, doubled.sbp, doubled.gradient) == (like_input, linear, None)
    assert called(doubled, 4) == 8


def test_a_docstring_is_not_inherited() -> None:
    assert [spec.doc for spec in specs(Doubled, Tripled)] == ["Twice the number.", ""]


def test_subclasses_and_rows_define_ops_of_their_own() -> None:
    tripled, square, cube = specs(Tripled, Row("square", 2), Row("cube", 3))
    assert [called(spec, 2) for spec in (tripled, square, cube)] == [6, 4, 8]
    assert (square.type, square.inputs, square.doc) == ("square", ("x",), "")


@pytest.mark.parametrize(
    ("schema", "inputs", "outputs"),
    [
        ("odd()", (), ()),
        ("odd() -> out", (), ("out",)),
        ("odd(x, beta?, gamma?) -> y, mean", ("x", "beta?", "gamma?"), ("y", "mean")),
        ("odd(in*) -> out*", ("in*",), ("out*",)),
    ],
)
def test_a_schema_has_inputs_and_outputs(schema: str, inputs: Any, outputs: Any) -> None:
    found = type("Odd", (OpDef,), {"schema": schema})
    assert (found.type, found.inputs, found.outputs) == ("odd", inputs, outputs)


@pytest.mark.parametrize("schema", ["odd", "odd(x", "odd(x) ->", "odd(x) -> ", "odd(x) out", ""])
def test_other_schemas_are_errors(schema: str) -> None:
    with pytest.raises(PluginError, match=r"the schema '.*'\n.*type\(inputs\) -> outputs"):
        type("Odd", (OpDef,), {"schema": schema})


def test_a_misspelled_field_is_an_error() -> None:
    with pytest.raises(PluginError, match=r"'gradeint'.*\n.*did you mean gradient\?"):
        type("Odd", (OpDef,), {"gradeint": None})


def test_all_fields_have_types() -> None:
    assert set(inspect.get_annotations(OpDef)) == {"schema", *(f.name for f in fields(OpSpec))}
