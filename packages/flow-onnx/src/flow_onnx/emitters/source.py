"""Emitters of constants."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from onnx import helper

from flow_onnx.emission import Emission
from flow_onnx.emitters.common import Emit
from flow_onnx.types import element_type

SMALL = 256
"""Maximum number of elements of a constant whose elements are stored in the model."""


def _constant(e: Emission) -> str:
    shape, dtype = e.outputs[0].shape, e.outputs[0].dtype
    if prod(shape) <= SMALL:
        return e.const(np.full(shape, e.attr("value")), dtype)
    return _filled(e, e.ints(shape), e.attr("value"))


def _filled(e: Emission, shape: str, value: float) -> str:
    """Emit a tensor filled with a number; its shape is given as a tensor."""
    dtype = e.outputs[0].dtype
    array = np.array([value]).astype(dtype.numpy)
    data = helper.make_tensor("", element_type(dtype), (1,), array.tobytes(), raw=True)
    return e.node("ConstantOfShape", shape, value=data)


def _like(e: Emission) -> str:
    return _filled(e, e.node("Shape", e.x), e.op.attrs.get("value", 0))


def _range(e: Emission) -> str:
    numbers = np.arange(*(e.attr(key) for key in ("start", "limit", "delta")))
    return e.const(numbers, e.outputs[0].dtype)


def _literal(e: Emission) -> str:
    shape, dtype = e.outputs[0].shape, e.outputs[0].dtype
    return e.const(np.array(e.attr("data")).reshape(shape), dtype)


EMITTERS: Mapping[str, Emit] = {
    "constant": _constant,
    "constant_like": _like,
    "zero_like": _like,
    "range": _range,
    "literal": _literal,
}
