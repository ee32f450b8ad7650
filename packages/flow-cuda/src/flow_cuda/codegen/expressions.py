"""Elementwise ops as C++ expressions, in one table for single ops and for fused groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flow_core.authoring.specs import TensorType
from flow_core.base.dtypes import DType
from flow_cuda.codegen.program import C_TYPES, Scalars


class Element(NamedTuple):
    """An op on one element."""

    names: Sequence[str]  # the C++ names of the arguments
    attrs: Mapping[str, Any]
    types: Sequence[TensorType]  # the types of the inputs
    out: TensorType  # the type of the output
    scalars: Scalars  # kernel's scalars, to which an expression adds the attributes that it uses

    def scalar(self, attr: str) -> str:
        """Add an attribute, converted to the computation type of the output; return its name."""
        return scalar(self.attrs[attr], self.out.dtype, self.scalars)


Expression = Callable[[Element], str]
"""A function that returns the C++ expression of an op."""


def computation_type(dtype: DType) -> str:
    """Return the C++ type in which elements of a type are computed."""
    return C_TYPES[dtype.accumulate.name]


def scalar(value: Any, dtype: DType, scalars: Scalars) -> str:
    """Add a scalar parameter, converted to the computation type of ``dtype``; return its name.

    >>> from flow_core.base.dtypes import float32, int8
    >>> scalars = Scalars()
    >>> scalar(2.5, float32, scalars), scalar(2.5, int8, scalars), scalars.values
    ('c0', 'c1', [2.5, 2])
    """
    exact = float(value) if dtype.is_floating else int(np.array(value).astype(dtype.numpy))
    return scalars.add(computation_type(dtype), exact)


def _expression(pattern: str, *attrs: str) -> Expression:
    """Make an expression from a pattern.

    The pattern contains the inputs ``{0}``, ``{1}`` ..., then the attributes, and the type ``V``.

    ``V`` and the attributes have the computation type of the first floating-point input, or of the
    first input if no input is floating-point.
    """

    def write(e: Element) -> str:
        dtype = next((t.dtype for t in e.types if t.dtype.is_floating), e.types[0].dtype)
        numbers = [scalar(e.attrs[a], dtype, e.scalars) for a in attrs]
        return pattern.format(*e.names, *numbers, V=computation_type(dtype))

    return write


def _test(pattern: str) -> Expression:
    return _expression(f"(i8)({pattern})", "operand")


def _limits(back: bool) -> Expression:
    def write(e: Element) -> str:
        x, v = e.names[-1], computation_type(e.out.dtype)
        low, high = (e.scalars.add(v, end) for end in _clip_limits(e.attrs, e.out.dtype))
        if not back:
            return f"clip_({x}, {low}, {high})"
        return f"({x} >= {low} && {x} <= {high} ? {e.names[0]} : ({v})0)"

    return write


def _clip_limits(attrs: Mapping[str, Any], dtype: DType) -> tuple[float, float] | tuple[int, int]:
    """Return the limits of a clip op; the default limits are those of the type."""
    if dtype.is_floating:
        low, high = attrs.get("floating_min"), attrs.get("floating_max")
        return -np.inf if low is None else float(low), np.inf if high is None else float(high)
    info = np.iinfo(dtype.numpy)
    least, most = attrs.get("integral_min"), attrs.get("integral_max")
    ends = (info.min if least is None else least, info.max if most is None else most)
    bottom, top = (int(np.clip(end, info.min, info.max)) for end in ends)
    return bottom, top


def _cast(e: Element) -> str:
    return f"as<{C_TYPES[e.out.dtype.name]}>({e.names[0]})"


def _scalar_where(keeps: bool) -> Expression:
    """Return an expression that selects between an input and a scalar."""

    def write(e: Element) -> str:
        other = e.scalar("operand")
        yes, no = (e.names[1], other) if keeps else (other, e.names[1])
        return f"({e.names[0]} != 0 ? {yes} : {no})"

    return write


def _smooth_grad(e: Element) -> str:
    x, label, dy = e.names
    if not e.attrs["beta"]:
        return f"({dy} * sign_({x} - {label}))"
    v, beta = computation_type(e.out.dtype), e.scalar("beta")
    return f"({dy} * clip_(({x} - {label}) / {beta}, ({v})-1, ({v})1))"


def _smooth(e: Element) -> str:
    distance = f"abs_({e.names[0]} - {e.names[1]})"
    if not e.attrs["beta"]:
        return distance
    v, beta = computation_type(e.out.dtype), e.scalar("beta")
    near = f"min_({distance}, {beta})"
    return f"({near} * {near} * ({v})0.5 / {beta} + ({distance} - {near}))"


BINARY = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "divide_({0}, {1})",
    "maximum": "max_({0}, {1})",
    "minimum": "min_({0}, {1})",
    "pow": "pow_({0}, {1})",
    "floor_mod": "floor_mod_({0}, {1})",
    "floordiv": "floor_div_({0}, {1})",
}
COMPARISONS = {
    "equal": "{0} == {1}",
    "not_equal": "{0} != {1}",
    "greater": "{0} > {1}",
    "greater_equal": "{0} >= {1}",
    "less": "{0} < {1}",
    "less_equal": "{0} <= {1}",
}
FUNCTIONS = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "digamma",
    "erf", "erfc", "exp", "expm1", "floor", "gelu", "lgamma", "log", "log1p", "rint", "sigmoid",
    "sign", "sin", "sinh", "softplus", "sqrt", "tan", "tanh",
)  # fmt: skip
"""Ops that the function of the same name in the prelude implements."""

_MASKED = _expression("({0} * ({V}){1} * {2})", "scale")
_SIGMOID_SLOPE = "({1} * {0} * (({V})1 - {0}))"
_HARD = "clip_({0} / ({V})6 + ({V})0.5, ({V})0, ({V})1)"
_INSIDE = "({0} > -3 && {0} < 3)"

TABLE: Mapping[str, Expression] = {
    **{name: _expression(f"{name}_({{0}})") for name in FUNCTIONS},
    **{f"broadcast_{name}": _expression(pattern) for name, pattern in BINARY.items()},
    **{f"scalar_{k}_by_tensor": _expression(BINARY[k]) for k in ("add", "sub", "mul", "div")},
    **{f"broadcast_{name}": _expression(f"(i8)({p})") for name, p in COMPARISONS.items()},
    **{f"scalar_logical_{name}": _test(p) for name, p in COMPARISONS.items()},
    "broadcast_logical_and": _expression("(i8)({0} != 0 && {1} != 0)"),
    "broadcast_logical_or": _expression("(i8)({0} != 0 || {1} != 0)"),
    "broadcast_logical_xor": _expression("(i8)(({0} != 0) != ({1} != 0))"),
    "logical_not": _expression("(i8)({0} == 0)"),
    "multiply": _expression(BINARY["mul"]),
    "pow": _expression(BINARY["pow"]),
    "floordiv": _expression(BINARY["floordiv"]),
    "elementwise_maximum": _expression(BINARY["maximum"]),
    "elementwise_minimum": _expression(BINARY["minimum"]),
    "atan2": _expression("atan2_({0}, {1})"),
    "xdivy": _expression("({0} == 0 ? ({V})0 : {0} / {1})"),
    "xlogy": _expression("({0} == 0 ? ({V})0 : {0} * log_({1}))"),
    "add_n": lambda e: f"({' + '.join(e.names)})",
    "negative": _expression("(-{0})"),
    "square": _expression("({0} * {0})"),
    "rsqrt": _expression("(({V})1 / sqrt_({0}))"),
    "reciprocal": _expression("(({V})1 / {0})"),
    "reciprocal_no_nan": _expression("({0} == 0 ? ({V})0 : ({V})1 / {0})"),
    "round": _expression("rint_({0})"),
    "log_sigmoid": _expression("(-softplus_(-{0}))"),
    "scalar_add": _expression("({0} + {1})", "operand"),
    "scalar_mul": _expression("({0} * {1})", "operand"),
    "scalar_pow": _expression("pow_({0}, {1})", "exponent"),
    **{f"clip_by_scalar{side}": _limits(False) for side in ("", "_min", "_max")},
    **{f"clip_by_scalar{side}_grad": _limits(True) for side in ("", "_min", "_max")},
    "where": _expression("({0} != 0 ? {1} : {2})"),
    "where_scalar_y": _scalar_where(True),
    "where_scalar_x": _scalar_where(False),
    "cast": _cast,
    "fused_cast_scale": lambda e: f"({_cast(e)} * {e.names[1]})",
    "relu": _expression("max_({0}, ({V})0)"),
    "relu_grad": _expression("({0} > 0 ? {1} : ({V})0)"),
    "sigmoid_v2": _expression("sigmoid_({0})"),
    "sigmoid_grad": _expression(_SIGMOID_SLOPE),
    "tanh_grad": _expression("({1} * (({V})1 - {0} * {0}))"),
    "gelu_grad": _expression("({1} * gelu_slope_({0}))"),
    "hardsigmoid": _expression(_HARD),
    "hardsigmoid_grad": _expression(f"({_INSIDE} ? {{1}} / ({{V}})6 : ({{V}})0)"),
    "hardswish": _expression(f"({{0}} * {_HARD})"),
    "hardswish_grad": _expression(
        f"({{1}} * ({_HARD} + ({_INSIDE} ? {{0}} : ({{V}})0) / ({{V}})6))"
    ),
    "hardtanh": _expression("clip_({0}, {1}, {2})", "min_val", "max_val"),
    "hardtanh_grad": _expression("({0} > {2} && {0} < {3} ? {1} : ({V})0)", "min_val", "max_val"),
    "leaky_relu": _expression("({0} > 0 ? {0} : {1} * {0})", "alpha"),
    "leaky_relu_grad": _expression("({1} * ({0} > 0 ? ({V})1 : {2}))", "alpha"),
    "elu": _expression("({0} > 0 ? {0} : {1} * expm1_({0}))", "alpha"),
    "elu_grad": _expression("({1} * ({0} > 0 ? ({V})1 : {2} * exp_({0})))", "alpha"),
    "prelu": _expression("({0} > 0 ? {0} : {1} * {0})"),
    "prelu_input_grad": _expression("({0} * ({1} > 0 ? ({V})1 : {2}))"),
    "dropout": _MASKED,
    "dropout_grad": _MASKED,
    "sigmoid_cross_entropy": _expression("(softplus_({0}) - {0} * ({V}){1})"),
    "sigmoid_cross_entropy_grad": _expression("({2} * (sigmoid_({0}) - ({V}){1}))"),
    "smooth_l1_loss": _smooth,
    "smooth_l1_loss_grad": _smooth_grad,
    "l1_l2_regularize_gradient": _expression("({1} + {2} * sign_({0}) + {3} * {0})", "l1", "l2"),
}
"""The C++ expression of each elementwise op."""
