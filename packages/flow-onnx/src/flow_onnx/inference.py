"""The element types and shapes that ONNX defines for the results of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, TypeProto, defs, helper, numpy_helper, shape_inference

from flow_onnx.importers.context import InvalidNode

LARGEST_DATA = 1024
"""Maximum number of elements of an array whose value may determine the shapes of results."""


@dataclass(frozen=True, slots=True)
class ResultType:
    """What ONNX defines for a result of a node."""

    element: int  # the number of the element type
    shape: tuple[int, ...] | None  # the shape; None if it depends on values that are not known

    @property
    def nbytes(self) -> int:
        """Bytes of an array of this type; 0 if the shape is not known."""
        kind = helper.tensor_dtype_to_np_dtype(self.element)
        return 0 if self.shape is None else prod(self.shape) * kind.itemsize


def schema_of(proto: NodeProto, opset: int) -> Any:
    """Return the definition of a node's operator.

    `Constant` has that of the newest opset, since models of early opsets have constants of types
    that were permitted later.  Raises `InvalidNode` if the version of the operators has none.
    """
    version = defs.onnx_opset_version() if proto.op_type == "Constant" else opset
    try:
        return defs.get_schema(proto.op_type, version, "")
    except defs.SchemaError:
        raise InvalidNode(f"no such operator in opset {opset}", "operators of the opset") from None


def result_types(
    proto: NodeProto, inputs: Sequence[Any], elements: Sequence[int], opset: int, ir_version: int
) -> dict[str, ResultType]:
    """Return the types of a node's results by name.

    Args:
        inputs: its inputs, with attributes ``shape``; None for omitted ones.
        opset, ir_version: the versions of the operators and of the format.

    Raises:
        InvalidNode: ONNX does not permit the attributes, or the types, shapes or values of inputs.
    """
    types, data = {}, {}
    for name, x, element in zip(proto.input, inputs, elements, strict=True):
        if x is not None:
            types[name] = helper.make_tensor_type_proto(element, tuple(x.shape))
        if isinstance(x, np.ndarray) and x.size <= LARGEST_DATA:
            data[name] = numpy_helper.from_array(_as_declared(x, element), name)
    imports = [helper.make_opsetid("", opset)]
    try:
        found = shape_inference.infer_node_outputs(
            schema_of(proto, opset), proto, types, data, opset_imports=imports,
            ir_version=ir_version,
        )  # fmt: skip
    except (ValueError, shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        given = ", ".join(
            f"{TensorProto.DataType.Name(e).lower()}{list(x.shape)}"
            for x, e in zip(inputs, elements, strict=True)
            if x is not None
        )
        text = " ".join(str(error).split())
        raise InvalidNode(f"{text}; inputs {given}", f"what opset {opset} permits") from None
    return {name: _result_type(type_) for name, type_ in found.items()}


def _as_declared(array: Any, element: int) -> Any:
    """Return an array in the type that ONNX declares, since booleans are stored as int8."""
    return array.astype(np.bool_) if element == TensorProto.BOOL else array


def _result_type(type_: TypeProto) -> ResultType:
    tensor = type_.tensor_type
    dims = tensor.shape.dim
    known = tensor.HasField("shape") and all(d.HasField("dim_value") for d in dims)
    return ResultType(tensor.elem_type, tuple(d.dim_value for d in dims) if known else None)


UNUSED: Mapping[str, frozenset[str | int]] = {
    "Cast": frozenset({"saturate", "round_mode"}),
    "CastLike": frozenset({"saturate", "round_mode"}),
    "Dropout": frozenset({"ratio", "seed", 1}),
    "MaxPool": frozenset({"storage_order"}),
    "Resize": frozenset({"cubic_coeff_a", "extrapolation_value", 1}),
}
"""Attributes and numbers of inputs that do not change the results that are computed."""


def ignored(proto: NodeProto, schema: Any, unread: set[str | int]) -> list[str]:
    """Return the attributes and inputs that an importer did not read although they matter."""
    attrs = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    found = []
    for part in unread - UNUSED.get(proto.op_type, frozenset()) - {"consumed_inputs"}:
        if isinstance(part, int):
            found.append(f"input {schema.inputs[min(part, len(schema.inputs) - 1)].name}")
            continue
        default = schema.attributes[part].default_value
        if not default.name or helper.get_attribute_value(default) != attrs[part]:
            found.append(f"{part}={attrs[part]!r}")
    return sorted(found)
