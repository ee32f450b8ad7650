"""Emitters of selections, clipping and casts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flow_onnx.emission import SMALL_INTEGERS, Emission
from flow_onnx.emitters.common import Emit, to_int32


def _where(e: Emission) -> str:
    condition = e.to_bool(e.x, e.types[0])
    return _select(e, condition, e.inputs[1], e.inputs[2])


def _select(e: Emission, condition: str, x: str, y: str) -> str:
    dtype = e.outputs[0].dtype
    if dtype.name not in SMALL_INTEGERS:
        return e.node("Where", condition, x, y)
    return e.cast(e.node("Where", condition, to_int32(e, x, dtype), to_int32(e, y, dtype)), dtype)


def _where_number(keeps: bool) -> Emit:
    """Return the emitter of a selection between an input and a number."""

    def emit(e: Emission) -> str:
        dtype, operand = e.outputs[0].dtype, e.attr("operand")
        other = e.const(operand if dtype.is_floating else int(operand), dtype)
        pair = (e.inputs[1], other) if keeps else (other, e.inputs[1])
        return _select(e, e.to_bool(e.x, e.types[0]), *pair)

    return emit


def _limits(e: Emission) -> tuple[Any, Any]:
    """Return the minimum and the maximum; None stands for no limit."""
    kind = "floating" if e.dtype.is_floating else "integral"
    found = tuple(e.op.attrs.get(f"{kind}_{end}") for end in ("min", "max"))
    if e.dtype.is_floating:
        return found[0], found[1]
    ends = np.iinfo(e.dtype.numpy)
    low, high = (None if n is None else min(max(int(n), ends.min), ends.max) for n in found)
    return low, high


def _clip(e: Emission) -> str:
    low, high = _limits(e)
    if e.opset >= 12 or e.dtype.is_floating:
        ends = ("" if n is None else e.const(n, e.dtype) for n in (low, high))
        return e.node("Clip", e.x, *ends)
    return _clip_integers(e, low, high)


def _clip_integers(e: Emission, low: Any, high: Any) -> str:
    """Clip integers in opset 11, whose ``Clip`` supports floating-point types only."""
    x = to_int32(e, e.x, e.dtype)
    for limit, test in ((low, "Less"), (high, "Greater")):
        if limit is not None:
            end = to_int32(e, e.const(limit, e.dtype), e.dtype)
            x = e.node("Where", e.node(test, x, end), end, x)
    return e.cast(x, e.dtype)


def _cast(e: Emission) -> str:
    return e.cast(e.x, e.outputs[0].dtype)


def _cast_scaled(e: Emission) -> str:
    scalar = e.inputs[1]
    if e.rank < len(e.types[1].shape):
        scalar = e.reshape(scalar, ())
    return e.node("Mul", _cast(e), scalar)


EMITTERS: Mapping[str, Emit] = {
    "where": _where,
    "where_scalar_y": _where_number(keeps=True),
    "where_scalar_x": _where_number(keeps=False),
    "clip_by_scalar": _clip,
    "clip_by_scalar_min": _clip,
    "clip_by_scalar_max": _clip,
    "cast": _cast,
    "cast_like": _cast,
    "fused_cast_scale": _cast_scaled,
}
