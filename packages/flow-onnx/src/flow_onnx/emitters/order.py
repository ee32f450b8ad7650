"""Emitters of argmax, top-k and sorting; equal elements keep their order."""

from __future__ import annotations

from collections.abc import Mapping

from flow_onnx.emission import Emission
from flow_onnx.emitters.common import Emit, to_int32


def _argmax(e: Emission) -> str:
    x = e.cast(e.x, "float64") if e.dtype.name == "int32" else to_int32(e, e.x, e.dtype)
    found = e.cast(e.node("ArgMax", x, axis=-1, keepdims=0), e.outputs[0].dtype)
    return found if e.rank > 1 else e.as_output(found)


def _ordered(e: Emission, count: int, largest: bool) -> list[str]:
    """Emit the first elements of the sorted last axis, and their indices."""
    x, k = to_int32(e, e.x, e.dtype), e.ints([count])
    return e.nodes("TopK", x, k, outputs=2, axis=-1, largest=int(largest), sorted=1)


def _places(e: Emission, count: int, largest: bool) -> str:
    return e.cast(_ordered(e, count, largest)[1], e.outputs[0].dtype)


def _is_down(e: Emission) -> bool:
    return bool(e.attr("direction") == "DESCENDING")


def _sort(e: Emission) -> str:
    values = _ordered(e, e.shape[-1], _is_down(e))[0]
    return values if to_int32(e, e.x, e.dtype) == e.x else e.cast(values, e.dtype)


EMITTERS: Mapping[str, Emit] = {
    "argmax": _argmax,
    "top_k": lambda e: _places(e, e.outputs[0].shape[-1], True),
    "sort": _sort,
    "arg_sort": lambda e: _places(e, e.shape[-1], _is_down(e)),
}
