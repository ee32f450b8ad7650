"""The element types, under their public names."""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.base.dtypes import (
    DType,
    as_dtype,
    bfloat16,
    char,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    record,
    tensor_buffer,
    uint8,
)
from flow_core.base.dtypes import float32 as float
from flow_core.base.dtypes import float64 as double

__all__ = [
    "bfloat16", "char", "convert_oneflow_dtype_to_numpy_dtype", "double", "dtypes", "float",
    "float16", "float32", "float64", "int8", "int32", "int64", "record", "tensor_buffer",
    "uint8",
]  # fmt: skip


def dtypes() -> list[DType]:
    """Return all element types.

    Returns: A list of element types.

    >>> flow.float32 in flow.dtypes()
    True
    """
    return [
        char, float16, float32, float64, int8, int32, int64, uint8, record, tensor_buffer
    ]  # fmt: skip


def convert_oneflow_dtype_to_numpy_dtype(oneflow_dtype: DType) -> type[Any]:
    """Return the numpy scalar type of an element type.

    Args:
        oneflow_dtype: an element type.

    Returns: A scalar type of numpy.

    >>> flow.convert_oneflow_dtype_to_numpy_dtype(flow.float32)
    <class 'numpy.float32'>
    """
    return np.dtype(as_dtype(oneflow_dtype).numpy).type
