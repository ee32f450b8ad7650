"""A case of an ONNX operator, and its model of one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from onnx import (
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    checker,
    defs,
    helper,
    numpy_helper,
    shape_inference,
)


@dataclass(frozen=True)
class Case:
    """A node with its inputs.

    Attributes:
        op: the operator.
        inputs: arrays; None for an omitted input.
        attrs: the attributes.
        fed: numbers of the inputs that the job is fed; the others are initializers.
        moved: names of the attributes that some inputs are in early opsets, by number of the input.
        outputs: the number of results.
        opsets: the first and the last opset.
    """

    op: str
    inputs: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    fed: tuple[int, ...] = (0,)
    moved: Mapping[int, str] = field(default_factory=dict)
    outputs: int = 1
    opsets: tuple[int, int] = (1, 99)

    def __str__(self) -> str:
        parts = ["-" if x is None else f"{x.dtype}{list(x.shape)}" for x in self.inputs]
        known = [f"input {i}={x.tolist()}" for i, x in enumerate(self.inputs)
                 if x is not None and i not in self.fed]  # fmt: skip
        return f"{self.op}({', '.join(parts)}) {dict(self.attrs)} {' '.join(known)}"

    @property
    def feeds(self) -> dict[str, Any]:
        """The fed arrays by name."""
        return {f"x{i}": self.inputs[i] for i in self.fed}


def model_of(case: Case, opset: int, known: bool = False) -> ModelProto:
    """Return the model of one node; inputs that are attributes in the opset become attributes.

    Args:
        case: the node.
        opset: the version of the operators.
        known: whether all inputs are results of `Constant` nodes, so that the node can be folded.
    """
    schema = defs.get_schema(case.op, opset, "")
    names, attrs, initializers = [], dict(case.attrs), []
    for i, x in enumerate(case.inputs):
        if i in case.moved and i >= schema.max_input:
            if x is not None:
                name = case.moved[i]
                single = schema.attributes[name].type == defs.OpSchema.AttrType.INT
                attrs[name] = int(x[0]) if single else x.tolist()
            continue
        names.append("" if x is None else f"x{i}")
        if x is not None and i not in case.fed:
            initializers.append(numpy_helper.from_array(x, f"x{i}"))
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, **attrs)
    while names and not names[-1]:
        del names[-1]
    arrays = {f"x{i}": x for i, x in enumerate(case.inputs) if f"x{i}" in names}
    data = [] if known else initializers
    types = results_of(node, schema, arrays, data)
    constants = [helper.make_node("Constant", [], [name], value=numpy_helper.from_array(x))
                 for name, x in arrays.items()]  # fmt: skip
    feeds = {} if known else case.feeds
    graph = helper.make_graph(
        [*constants, node] if known else [node],
        "one",
        [helper.make_value_info(name, type_of(x)) for name, x in feeds.items()],
        [helper.make_value_info(name, types.get(name, UNKNOWN)) for name in outputs],
        data,
    )
    ir = 8 if opset <= 18 else 10
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


UNKNOWN = helper.make_tensor_type_proto(TensorProto.FLOAT, (None,))
"""Declared type of the results of invalid nodes."""


def type_of(array: Any) -> TypeProto:
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def results_of(
    node: NodeProto, schema: Any, arrays: Mapping[str, Any], data: Sequence[TensorProto]
) -> dict[str, TypeProto]:
    """Return the types of a node's results, as far as ONNX infers them."""
    try:
        found: dict[str, TypeProto] = shape_inference.infer_node_outputs(
            schema,
            node,
            {name: type_of(x) for name, x in arrays.items()},
            {tensor.name: tensor for tensor in data},
            opset_imports=[helper.make_opsetid("", schema.since_version)],
        )
    except (shape_inference.InferenceError, checker.ValidationError):
        return {}
    for type_ in found.values():
        type_.tensor_type.shape.SetInParent()
    return found


def versions(op: str, last: int) -> Sequence[int]:
    """Return the opsets in which an operator changed, from 7 on, which ONNX Runtime supports."""
    since = _versions()[op]
    return sorted({max(7, min(since)), *(n for n in since if 7 < n <= last), last})


@cache
def _versions() -> Mapping[str, set[int]]:
    """Return all opsets in which ONNX's own operators changed."""
    found: dict[str, set[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            found.setdefault(schema.name, set()).add(schema.since_version)
    return found
