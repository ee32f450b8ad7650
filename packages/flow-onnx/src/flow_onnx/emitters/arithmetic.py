"""Emitters of comparisons and of elementwise functions of inputs and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from flow_onnx.emission import SMALL_INTEGERS, Emission
from flow_onnx.emitters.common import Emit, computed_in_int32, direct, number, to_int32

SAME: Mapping[str, str] = {
    "negative": "Neg", "abs": "Abs", "sign": "Sign", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
    "reciprocal": "Reciprocal", "sin": "Sin", "cos": "Cos", "tan": "Tan", "sinh": "Sinh",
    "cosh": "Cosh", "asin": "Asin", "acos": "Acos", "atan": "Atan", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh", "ceil": "Ceil", "floor": "Floor", "rint": "Round",
    "round": "Round", "erf": "Erf", "softplus": "Softplus",
}  # fmt: skip
"""ONNX operator of each op with one input."""

PAIRS: Mapping[str, str] = {
    "broadcast_add": "Add", "broadcast_sub": "Sub", "broadcast_mul": "Mul",
    "broadcast_div": "Div", "broadcast_pow": "Pow", "multiply": "Mul", "pow": "Pow",
    "scalar_add_by_tensor": "Add", "scalar_sub_by_tensor": "Sub", "scalar_mul_by_tensor": "Mul",
    "scalar_div_by_tensor": "Div",
}  # fmt: skip
"""ONNX operator of each op with two inputs; OneFlow and ONNX truncate integer quotients alike."""


def _expm1(e: Emission) -> str:
    """Emit tanh(x/2) (exp(x) + 1), which is accurate for small numbers."""
    half = e.node("Tanh", e.node("Mul", e.x, number(e, 0.5)))
    return e.node("Mul", half, e.node("Add", e.node("Exp", e.x), number(e, 1)))


def _log1p(e: Emission) -> str:
    """Emit 2 atanh(x / (2 + x)) for small x, where it is accurate, and log(1 + x) for large x."""
    ratio = e.node("Div", e.x, e.node("Add", e.x, number(e, 2)))
    near = e.node("Mul", e.node("Atanh", ratio), number(e, 2))
    far = e.node("Log", e.node("Add", e.x, number(e, 1)))
    small = e.node("Less", e.node("Abs", e.x), number(e, 0.5))
    return e.node("Where", small, near, far)


def _reciprocal_no_nan(e: Emission) -> str:
    zero = number(e, 0)
    is_zero = e.node("Equal", e.x, zero)
    return e.node("Where", is_zero, zero, e.node("Reciprocal", e.x))


# ------------------------------------------------------------------------------ two inputs


def extreme(op_type: str) -> Emit:
    """Return the emitter of a maximum or minimum, which supports integers since opset 12."""

    def emit(e: Emission) -> str:
        if e.opset >= 12 or e.dtype.is_floating:
            return computed_in_int32(e, lambda x, y: e.node(op_type, x, y))
        test = {"Max": "Greater", "Min": "Less"}[op_type]
        return computed_in_int32(e, lambda x, y: e.node("Where", e.node(test, x, y), x, y))

    return emit


def _floor_mod(e: Emission) -> str:
    """Emit the remainder with the sign of the divisor; ONNX's ``Mod`` computes it for integers."""
    if not e.dtype.is_floating:
        return computed_in_int32(e, lambda x, y: e.node("Mod", x, y))
    x, y = e.inputs
    return e.node("Sub", x, e.node("Mul", e.node("Floor", e.node("Div", x, y)), y))


def _floordiv(e: Emission) -> str:
    if e.dtype.is_floating:
        return e.node("Floor", e.node("Div", *e.inputs))
    return computed_in_int32(
        e, lambda x, y: e.node("Div", e.node("Sub", x, e.node("Mod", x, y)), y)
    )


def _atan2(e: Emission) -> str:
    """Emit atan(x/y), shifted by pi for negative y; the result for x = 0 is 0 or pi."""
    x, y = e.inputs
    zero, turn = number(e, 0), number(e, math.pi)
    behind = e.node("Less", y, zero)
    shift = e.node("Where", e.node("Less", x, zero), e.node("Neg", turn), turn)
    angle = e.node("Add", e.node("Atan", e.node("Div", x, y)), e.node("Where", behind, shift, zero))
    flat = e.node("Where", behind, turn, zero)
    return e.node("Where", e.node("Equal", x, zero), flat, angle)


def _unless_zero(emit: Callable[[Emission], str]) -> Emit:
    """Return an emitter whose result is 0 where the first input is 0, for any second input."""

    def emitter(e: Emission) -> str:
        zero = number(e, 0)
        return e.node("Where", e.node("Equal", e.x, zero), zero, emit(e))

    return emitter


# ------------------------------------------------------------------------------ numbers


def _with_number(op_type: str, name: str) -> Emit:
    """Return the emitter of an op on an input and a number, which is truncated for integers."""

    def emit(e: Emission) -> str:
        operand = e.const(_cut(e, e.attr(name)), e.dtype)
        return computed_in_int32(e, lambda x: e.node(op_type, x, to_int32(e, operand, e.dtype)))

    return emit


def _cut(e: Emission, value: float) -> float:
    return value if e.dtype.is_floating else int(value)


def _add_n(e: Emission) -> str:
    """Emit a sum of several inputs; ONNX's ``Sum`` supports floating-point types only."""
    if e.dtype.is_floating:
        return e.node("Sum", *e.inputs)
    total = to_int32(e, e.x, e.dtype)
    for x in e.inputs[1:]:
        total = e.node("Add", total, to_int32(e, x, e.dtype))
    return e.cast(total, e.dtype) if e.dtype.name in SMALL_INTEGERS else e.node("Identity", total)


# ------------------------------------------------------------------------------ comparisons


def _or_equal(op_type: str, strict: str) -> Callable[[Emission, str, str], str]:
    """Return the emitter of ``>=`` or ``<=``, which are ONNX operators since opset 12."""

    def emit(e: Emission, x: str, y: str) -> str:
        if e.opset >= 12:
            return e.node(op_type, x, y)
        return e.node("Or", e.node(strict, x, y), e.node("Equal", x, y))

    return emit


COMPARISONS: Mapping[str, Callable[[Emission, str, str], str]] = {
    "equal": lambda e, x, y: e.node("Equal", x, y),
    "not_equal": lambda e, x, y: e.node("Not", e.node("Equal", x, y)),
    "greater": lambda e, x, y: e.node("Greater", x, y),
    "less": lambda e, x, y: e.node("Less", x, y),
    "greater_equal": _or_equal("GreaterOrEqual", "Greater"),
    "less_equal": _or_equal("LessOrEqual", "Less"),
}


def _compared(kind: str) -> Emit:
    """Return the emitter of a comparison; its result is int8, as in OneFlow."""

    def emit(e: Emission) -> str:
        x, y = (to_int32(e, x, kind.dtype) for x, kind in zip(e.inputs, e.types, strict=True))
        return e.cast(COMPARISONS[kind](e, x, y), e.outputs[0].dtype)

    return emit


def _compared_with_number(kind: str) -> Emit:
    def emit(e: Emission) -> str:
        operand = e.const(_cut(e, e.attr("operand")), e.dtype)
        x, y = (to_int32(e, x, e.dtype) for x in (e.x, operand))
        return e.cast(COMPARISONS[kind](e, x, y), e.outputs[0].dtype)

    return emit


def _logical(op_type: str) -> Emit:
    def emit(e: Emission) -> str:
        truths = (e.to_bool(x, kind) for x, kind in zip(e.inputs, e.types, strict=True))
        return e.cast(e.node(op_type, *truths), e.outputs[0].dtype)

    return emit


EMITTERS: Mapping[str, Emit] = {
    **{name: direct(op_type) for name, op_type in {**SAME, **PAIRS}.items()},
    "expm1": _expm1,
    "log1p": _log1p,
    "rsqrt": lambda e: e.node("Reciprocal", e.node("Sqrt", e.x)),
    "square": lambda e: computed_in_int32(e, lambda x: e.node("Mul", x, x)),
    "reciprocal_no_nan": _reciprocal_no_nan,
    "erfc": lambda e: e.node("Sub", number(e, 1), e.node("Erf", e.x)),
    "log_sigmoid": lambda e: e.node("Neg", e.node("Softplus", e.node("Neg", e.x))),
    "broadcast_maximum": extreme("Max"),
    "elementwise_maximum": extreme("Max"),
    "broadcast_minimum": extreme("Min"),
    "elementwise_minimum": extreme("Min"),
    "broadcast_floor_mod": _floor_mod,
    "broadcast_floordiv": _floordiv,
    "floordiv": _floordiv,
    "atan2": _atan2,
    "xdivy": _unless_zero(lambda e: e.node("Div", *e.inputs)),
    "xlogy": _unless_zero(lambda e: e.node("Mul", e.x, e.node("Log", e.inputs[1]))),
    "scalar_add": _with_number("Add", "operand"),
    "scalar_mul": _with_number("Mul", "operand"),
    "scalar_pow": _with_number("Pow", "exponent"),
    "add_n": _add_n,
    **{f"broadcast_{kind}": _compared(kind) for kind in COMPARISONS},
    **{f"scalar_logical_{kind}": _compared_with_number(kind) for kind in COMPARISONS},
    "broadcast_logical_and": _logical("And"),
    "broadcast_logical_or": _logical("Or"),
    "broadcast_logical_xor": _logical("Xor"),
    "logical_not": _logical("Not"),
}
