"""Helpers that the emitters of several op families share."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.base.dtypes import DType
from flow_onnx.emission import SMALL_INTEGERS, Emission

Made = str
Emit = Callable[[Emission], Made]


def direct(op_type: str) -> Emit:
    """Return the emitter of an op that becomes one node with the op's inputs and no attributes."""
    return lambda e: computed_in_int32(e, lambda *xs: e.node(op_type, *xs))


def computed_in_int32(e: Emission, emit: Callable[..., str]) -> str:
    """Emit an op with small integers cast to int32, since many operators do not support these."""
    if e.dtype.name not in SMALL_INTEGERS:
        return emit(*e.inputs)
    result = emit(*(to_int32(e, x, kind.dtype) for x, kind in zip(e.inputs, e.types, strict=True)))
    return e.cast(result, e.outputs[0].dtype)


def to_int32(e: Emission, x: str, dtype: DType) -> str:
    """Cast ``x`` to int32 if it has a small integer type."""
    return e.cast(x, "int32") if dtype.name in SMALL_INTEGERS else x


def number(e: Emission, value: float, dtype: DType | None = None) -> str:
    """Return a constant of element type ``dtype``, by default that of the first input."""
    return e.const(value, dtype or e.dtype)
