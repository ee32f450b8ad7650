"""What several families share."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.base.dtypes import DType
from flow_onnx.emission import SMALL_INTEGERS, Emission

Made = str
Emit = Callable[[Emission], Made]


def direct(op_type: str) -> Emit:
    """An op that is one node of the same inputs, without attributes."""
    return lambda e: widened(e, lambda *xs: e.node(op_type, *xs))


def widened(e: Emission, emit: Callable[..., str]) -> str:
    """Small integers compute in int32: many operators are not defined for them."""
    if e.dtype.name not in SMALL_INTEGERS:
        return emit(*e.inputs)
    result = emit(*(wide(e, x, kind.dtype) for x, kind in zip(e.inputs, e.types, strict=True)))
    return e.cast(result, e.outputs[0].dtype)


def wide(e: Emission, x: str, dtype: DType) -> str:
    """``x`` in int32 if it is of a small integer type."""
    return e.cast(x, "int32") if dtype.name in SMALL_INTEGERS else x


def number(e: Emission, value: float, dtype: DType | None = None) -> str:
    """A number in the element type of the first input."""
    return e.const(value, dtype or e.dtype)
