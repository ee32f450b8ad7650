"""ONNX element types and shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import TensorProto, ValueInfoProto, helper

from flow_core.base.dtypes import DType

ELEMENT_TYPES: Mapping[str, int] = {
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int8": TensorProto.INT8,
    "char": TensorProto.INT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}

NAMES: Mapping[int, str] = {
    **{number: name for name, number in ELEMENT_TYPES.items() if name != "char"},
    TensorProto.BOOL: "int8",
}
"""The element types of blobs by ONNX's numbers; booleans are int8, as in all jobs."""

Dims = Sequence[int | str | None]
"""Sizes: a number, a string for an open size with a name, None for an open size without one."""


def element_type(dtype: DType | str) -> int:
    """Return the number by which ONNX denotes an element type.

    >>> element_type("float32"), element_type("int64")
    (1, 7)
    """
    return ELEMENT_TYPES[str(dtype)]


def element_of(dtype: Any) -> int:
    """Return the number by which ONNX denotes the element type of a blob or an array.

    >>> from flow_core.base.dtypes import float32
    >>> element_of(helper.tensor_dtype_to_np_dtype(4)), element_of(float32)
    (4, 1)
    """
    if isinstance(dtype, DType):
        return ELEMENT_TYPES.get(dtype.name, TensorProto.UNDEFINED)
    return helper.np_dtype_to_tensor_dtype(dtype)


def value_info(name: str, dtype: DType, dims: Dims) -> ValueInfoProto:
    """Return the declaration of a value in a model."""
    return helper.make_tensor_value_info(name, element_type(dtype), list(dims))
