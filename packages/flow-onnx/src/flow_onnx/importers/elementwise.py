"""Importers of elementwise operators, comparisons and selections."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from flow_onnx.importers.context import (
    Blob,
    Importer,
    Node,
    as_type,
    by_kind,
    expanded,
    scalar,
    widened,
)
from flow_onnx.importers.folding import emit, filled
from flow_onnx.types import NAMES

UNARY: Mapping[str, str] = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf",
    "Exp": "exp", "Floor": "floor", "HardSwish": "hardswish", "Log": "log", "Neg": "negative",
    "Reciprocal": "reciprocal", "Round": "rint", "Sigmoid": "sigmoid",
    "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Softplus": "softplus", "Sqrt": "sqrt",
    "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
"""The op of each operator with one input and no attributes."""

BINARY: Mapping[str, str] = {
    "Add": "broadcast_add", "Sub": "broadcast_sub", "Mul": "broadcast_mul",
    "Div": "broadcast_div", "Max": "broadcast_maximum", "Min": "broadcast_minimum",
    "And": "broadcast_logical_and", "Or": "broadcast_logical_or",
    "Xor": "broadcast_logical_xor", "Equal": "broadcast_equal", "Greater": "broadcast_greater",
    "GreaterOrEqual": "broadcast_greater_equal", "Less": "broadcast_less",
    "LessOrEqual": "broadcast_less_equal",
}  # fmt: skip
"""The op of each operator with two inputs that broadcasts them."""


def _unary(op: str) -> Importer:
    return lambda n: emit(op, n.blob())


def _binary(op: str) -> Importer:
    """Return the importer of an operator of two inputs or, since they broadcast later, of any
    number.
    """
    since = 8 if op in ("broadcast_maximum", "broadcast_minimum") else 7

    def run(n: Node) -> Blob:
        check_broadcast(n, since)
        return reduce(lambda x, y: emit(op, x, y), n.blobs())

    return run


def check_broadcast(n: Node, since: int = 7) -> None:
    """Refuse inputs of different shapes in opsets in which they are not broadcast as in numpy."""
    if n.opset < 7 and "axis" in n.attrs:
        n.unsupported(f"axis={n.attr('axis')}, which tells where shapes are aligned")
    if n.opset < since and not n.attr("broadcast", 0):
        shapes = [n.shape(i) for i in range(len(n.inputs))]
        if len(set(shapes)) > 1:
            n.invalid(f"inputs of shapes {shapes}", f"equal shapes before opset {since}")


def plus(x: Blob, number: float) -> Blob:
    """Return a blob plus a number."""
    return emit("scalar_add", x, operand=number)


def times(x: Blob, number: float) -> Blob:
    """Return a blob times a number."""
    return emit("scalar_mul", x, operand=number)


def _with_number(op: str, wide: str, number: Callable[[float], float]) -> Importer:
    """Return the importer of an operator whose second input is often a known number."""

    def run(n: Node) -> Blob:
        check_broadcast(n)
        value, x = scalar(n, 1), n.blob(0)
        if value is not None and x.dtype.is_floating and len(n.shape(1)) <= len(x.shape):
            return emit(op, x, operand=number(value))
        return emit(wide, x, n.blob(1))

    return run


def _power(n: Node) -> Blob:
    """Return powers; those of integers are computed in float64, as ONNX Runtime does."""
    check_broadcast(n)
    x, exponent = n.blob(0), scalar(n, 1)
    if not x.dtype.is_floating:
        power = emit("broadcast_pow", *(as_type(n.blob(i), "float64") for i in (0, 1)))
        return as_type(power, x.dtype.name)
    if exponent is not None and len(n.shape(1)) <= len(x.shape):
        return emit("square", x) if exponent == 2 else emit("scalar_pow", x, exponent=exponent)
    return emit("broadcast_pow", x, as_type(n.blob(1), x.dtype.name))


def _remainder(n: Node) -> Blob:
    """Return remainders: with the sign of the divisor, or with fmod=1 that of the dividend."""
    x, y = n.blobs()
    if not n.attr("fmod", 0):
        if x.dtype.is_floating and n.opset < 28:
            n.invalid(f"fmod=0 for {x.dtype}", "fmod=1 for floating-point types before opset 28")
        return emit("broadcast_floor_mod", x, y)
    if not x.dtype.is_floating:
        whole = emit("broadcast_mul", emit("broadcast_div", x, y), y)
        return emit("broadcast_sub", x, whole)
    magnitude = emit("broadcast_floor_mod", emit("abs", x), emit("abs", y))
    return emit("broadcast_mul", emit("sign", x), magnitude)


def _gelu(n: Node) -> Blob:
    x = n.blob()
    if n.attr("approximate", "none") == "none":
        return emit("gelu", x)
    inner = plus(times(emit("square", x), 0.044715), 1.0)
    inner = times(emit("broadcast_mul", x, inner), math.sqrt(2 / math.pi))
    return emit("broadcast_mul", times(x, 0.5), plus(emit("tanh", inner), 1.0))


def _hard_sigmoid(n: Node) -> Blob:
    alpha, beta = n.attr("alpha", 0.2), n.attr("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return emit("hardsigmoid", n.blob())
    return clipped(plus(times(n.blob(), alpha), beta), 0.0, 1.0)


def _prelu(n: Node) -> Blob:
    x, slope = n.blobs()
    if n.opset < 7 and len(slope.shape) == 1:  # one per channel
        slope = emit("reshape", slope, shape=(slope.shape[0], *[1] * (len(x.shape) - 2)))
    below = emit("scalar_logical_less", x, operand=0)
    return emit("where", below, emit("broadcast_mul", x, slope), x)


def _selu(n: Node) -> Blob:
    alpha = n.attr("alpha", 1.67326319217681884765625)
    return times(emit("elu", n.blob(), alpha=alpha), n.attr("gamma", 1.05070102214813232421875))


def clipped(x: Blob, low: float | None, high: float | None) -> Blob:
    """Limit a blob to a range; None stands for no limit."""
    attrs: dict[str, Any] = {}
    for end, value in (("min", low), ("max", high)):
        if value is not None:
            attrs |= by_kind("{}_" + end, value, x.dtype)
    if not attrs:
        return emit("identity", x)
    end = "" if len(attrs) == 4 else "_max" if low is None else "_min"
    return emit(f"clip_by_scalar{end}", x, **attrs)


def _relu(n: Node) -> Blob:
    x = n.blob()
    return emit("relu", x) if x.dtype.is_floating else clipped(x, 0, None)


def _clip(n: Node) -> Blob:
    x = n.blob()
    if n.opset < 11:
        return clipped(x, n.attr("min"), n.attr("max"))
    limits = [scalar(n, i) if n.has(i) else None for i in (1, 2)]
    if all(not n.has(i) or limits[i - 1] is not None for i in (1, 2)):
        return clipped(x, *limits)
    for i, op in ((1, "broadcast_maximum"), (2, "broadcast_minimum")):
        x = emit(op, x, n.blob(i)) if n.has(i) else x
    return x


def _where(n: Node) -> Blob:
    given = n.blobs()
    shape = np.broadcast_shapes(*(tuple(x.shape) for x in given))
    return emit("where", *(expanded(x, shape) for x in given))


def _cast_to(n: Node, element: int) -> Blob:
    """Convert to a type; a known array may have, and become, a type that flow does not have."""
    if n.folds and element not in (TensorProto.BOOL, TensorProto.STRING):
        with np.errstate(all="ignore"):
            return n.value(0).astype(helper.tensor_dtype_to_np_dtype(element))
    if element not in NAMES:
        n.unsupported(f"element type {TensorProto.DataType.Name(element)}")
    if element == TensorProto.BOOL:
        return emit("scalar_logical_not_equal", n.blob(), operand=0)
    return as_type(n.blob(), NAMES[element])


def _cast(n: Node) -> Blob:
    wanted = n.attr("to")
    return _cast_to(n, TensorProto.DataType.Value(wanted) if isinstance(wanted, str) else wanted)


def _cast_like(n: Node) -> Blob:
    n.shape(1)
    return _cast_to(n, n.elements[1])


def _sum(n: Node) -> Blob:
    check_broadcast(n, 8)
    return reduce(lambda x, y: emit("broadcast_add", x, y), n.blobs())


def _mean(n: Node) -> Blob:
    check_broadcast(n, 8)
    first, *others = (widened(x) for x in n.blobs())
    total = reduce(lambda x, y: emit("broadcast_add", x, y), others, first)
    return as_type(times(total, 1 / len(n.inputs)), n.blob().dtype.name)


def _dropout(n: Node) -> Any:
    """Return the input, as in inference, and if requested the mask, which drops nothing."""
    training = n.number(2, "training_mode", False) or (n.opset < 7 and not n.attr("is_test", 0))
    if training:
        n.unsupported("training mode")
    x = n.blob()
    if len(n.proto.output) < 2 or n.opset < 12:
        return emit("identity", x)
    return emit("identity", x), emit("scalar_logical_equal", filled(x, x.shape), operand=0)


IMPORTERS: Mapping[str, Importer] = {
    **{name: _unary(op) for name, op in UNARY.items()},
    **{name: _binary(op) for name, op in BINARY.items()},
    "Add": _with_number("scalar_add", "broadcast_add", float),
    "Sub": _with_number("scalar_add", "broadcast_sub", lambda value: -value),
    "Mul": _with_number("scalar_mul", "broadcast_mul", float),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Dropout": _dropout,
    "Elu": lambda n: emit("elu", n.blob(), alpha=n.attr("alpha", 1.0)),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "Identity": lambda n: emit("identity", n.blob()),
    "IsNaN": lambda n: emit("broadcast_not_equal", n.blob(), n.blob()),
    "LeakyRelu": lambda n: emit("leaky_relu", n.blob(), alpha=n.attr("alpha", 0.01)),
    "Mean": _mean,
    "Mish": lambda n: emit("multiply", n.blob(), emit("tanh", emit("softplus", n.blob()))),
    "Mod": _remainder,
    "Not": lambda n: emit("logical_not", n.blob()),
    "PRelu": _prelu,
    "Pow": _power,
    "Relu": _relu,
    "Selu": _selu,
    "Softsign": lambda n: emit("broadcast_div", n.blob(), plus(emit("abs", n.blob()), 1.0)),
    "Sum": _sum,
    "Where": _where,
}
