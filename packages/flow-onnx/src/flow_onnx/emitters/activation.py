"""Emitters of activation functions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from flow_onnx.emission import Emission
from flow_onnx.emitters.common import Emit, direct, number


def _gelu(e: Emission) -> str:
    """Emit gelu, computed with the error function; it is one operator since opset 20."""
    if e.opset >= 20:
        return e.node("Gelu", e.x)
    erf = e.node("Erf", e.node("Mul", e.x, number(e, 1 / math.sqrt(2))))
    half = e.node("Mul", e.x, number(e, 0.5))
    return e.node("Mul", half, e.node("Add", erf, number(e, 1)))


def _hardsigmoid(e: Emission) -> str:
    return e.node("HardSigmoid", e.x, alpha=1 / 6, beta=0.5)


def _hardswish(e: Emission) -> str:
    return e.node("HardSwish", e.x) if e.opset >= 14 else e.node("Mul", e.x, _hardsigmoid(e))


def _hardtanh(e: Emission) -> str:
    return e.node("Clip", e.x, number(e, e.attr("min_val")), number(e, e.attr("max_val")))


def _with_alpha(op_type: str) -> Emit:
    return lambda e: e.node(op_type, e.x, alpha=float(e.attr("alpha")))


EMITTERS: Mapping[str, Emit] = {
    "relu": direct("Relu"),
    "sigmoid": direct("Sigmoid"),
    "sigmoid_v2": direct("Sigmoid"),
    "tanh": direct("Tanh"),
    "gelu": _gelu,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "hardtanh": _hardtanh,
    "leaky_relu": _with_alpha("LeakyRelu"),
    "elu": _with_alpha("Elu"),
    "prelu": direct("PRelu"),
}
