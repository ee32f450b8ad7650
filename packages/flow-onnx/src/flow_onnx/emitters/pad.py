"""Emitters of padding and triangular masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flow_onnx.emission import Emission
from flow_onnx.emitters.common import Emit, computed_in_int32


def _pad(e: Emission) -> str:
    kind = "floating" if e.dtype.is_floating else "integral"
    value = e.const(e.attr(f"{kind}_constant_value"), e.dtype)
    pads = e.ints([*e.attr("padding_before"), *e.attr("padding_after")])
    return e.node("Pad", e.x, pads, value, mode="constant")


def _unpad(e: Emission) -> str:
    before, after = e.attr("padding_before"), e.attr("padding_after")
    axes = [i for i in range(e.rank) if before[i] or after[i]]
    ends = [-after[i] or 2**31 for i in axes]
    return e.slice(e.x, axes, [before[i] for i in axes], ends) if axes else e.node("Identity", e.x)


def _reflect(e: Emission) -> str:
    return e.node("Pad", e.x, e.ints([*e.attr("padding")] * 2), mode="reflect")


def _number_attr(e: Emission, what: str) -> Any:
    kind = "floating" if e.attr(f"is_floating_{what}_value") else "integer"
    return e.attr(f"{kind}_{what}_value")


def _tril(e: Emission) -> str:
    """Emit the lower triangle; since opset 14, one operator does so for a fill value of 0."""
    fill, diagonal = _number_attr(e, "fill"), int(e.attr("diagonal"))
    if e.opset >= 14 and fill == 0 and e.dtype.is_floating:
        return e.node("Trilu", e.x, e.const(diagonal, "int64"), upper=0)
    rows, columns = e.shape[-2:]
    lower = e.const(np.tri(rows, columns, diagonal), "bool")
    filled = e.const(fill, e.dtype)
    return computed_in_int32(e, lambda x: e.node("Where", lower, x, filled))


def _scaled_tril(e: Emission) -> str:
    scale = _number_attr(e, "scale")
    scaled = e.node("Mul", e.x, e.const(scale, e.dtype))
    inner = replace(e, inputs=(scaled,))
    return _tril(inner)


EMITTERS: Mapping[str, Emit] = {
    "pad": _pad,
    "pad_grad": _unpad,
    "reflection_pad2d": _reflect,
    "tril": _tril,
    "fused_scale_tril": _scaled_tril,
}
