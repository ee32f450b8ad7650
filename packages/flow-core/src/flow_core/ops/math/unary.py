"""Elementwise ops of one input, defined by one table.

Each row has the numpy semantics, and the derivative as an expression of graph ops.  Functions with
a separate op for the derivative, such as ``relu_grad``, are in `flow_core.ops.nn.activation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import UnsupportedError
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import (
    floating,
    floating_like_input,
    like_input,
    linear,
    nondecreasing,
    nonincreasing,
    split_all_axes,
)
from flow_core.plugins.specs import InferContext, Sample, SbpContext
from flow_core.sharding.sbp import Signatures

TWO_OVER_SQRT_PI = 2 / sqrt(pi)


@dataclass(frozen=True, slots=True)
class Unary(OpDef):
    """A row of the table of unary ops."""

    type: str
    reference: Callable[[Any], Any]
    # Function that emits dx as graph ops; None if dx is zero or undefined everywhere.
    derivative: Callable[[GradContext], Sym] | None = None
    domain: tuple[float, float] = (-3.0, 3.0)  # interval from which samples are drawn
    floating: bool = True  # whether the op takes floating types only
    linear: bool = False  # whether f(a + b) = f(a) + f(b), so that P -> P is a rule
    order: str = ""  # "rising", "falling", or "" for neither
    # Whether numbers above the domain are also valid but numbers below it are not, so that parts of
    # a minimum are valid inputs, and parts of a maximum are not.
    above: bool = False
    schema = "(x) -> y"
    elementwise = True
    inplace = (0,)

    def infer(self, ctx: InferContext) -> Types:
        return floating_like_input(ctx) if self.floating else number_like_input(ctx)

    def sbp(self, ctx: SbpContext) -> Signatures:
        basic = linear(ctx) if self.linear else split_all_axes(ctx)
        wraps = self.type == "negative" and not floating(ctx)  # the least integer is unchanged
        if not self.order or wraps:
            return basic
        ordered = nondecreasing if self.order == "rising" else nonincreasing
        return (*basic, *ordered(ctx, 0)[1 if self.above else 0 :])

    def gradient(self, g: GradContext) -> Gradients:
        return (self.derivative(g) if self.derivative else None,)

    def samples(self, rng: Rng) -> Samples:
        smooth = self.derivative not in (None, _no_second_derivative)
        for shape in ((7,), (3, 5), (2, 1, 4)):
            yield Sample((rng.uniform(*self.domain, shape),), gradient=smooth)
        yield Sample((rng.uniform(*self.domain, (0, 3)),), gradient=False, note="no elements")
        yield Sample((rng.uniform(*self.domain, ()),), gradient=False, note="no axes")
        for dtype in () if self.floating else (np.int8, np.int32, np.int64):
            x = rng.integers(-9, 9, (3, 4)).astype(dtype)
            yield Sample((x,), gradient=False, note=f"{x.dtype}")


def number_like_input(ctx: InferContext) -> Types:
    """Infer one output of the first input's type, which must not be bool."""
    ctx.check(
        ctx.inputs[0].dtype.kind != "b",
        f"input of type {ctx.inputs[0]}",
        "a floating or integer type",
        "cast it first: flow.cast(x, flow.int8)",
    )
    return like_input(ctx)


def mapped(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """Convert a function of floats to one of arrays; poles and overflow map to infinity."""

    def at(value: float) -> float:
        try:
            return function(value)
        except (ValueError, OverflowError):
            return math.inf

    return np.vectorize(at, otypes=[np.float64])


def _digamma(x: Array) -> Array:
    """Return the digamma function in full precision, by recurrence and an asymptotic series."""
    mirrored = np.asarray(x) < 0.5
    z = np.where(mirrored, 1 - x, x).astype(np.float64)
    below = np.zeros_like(z)
    for _ in range(20):
        below, z = below + 1 / z, z + 1
    value = np.log(z) - 1 / (2 * z) - 1 / (12 * z**2) + 1 / (120 * z**4) - 1 / (252 * z**6)
    value = value + 1 / (240 * z**8) - below
    with np.errstate(all="ignore"):
        return np.where(mirrored, value - pi / np.tan(pi * x), value)


def _no_second_derivative(g: GradContext) -> Sym:
    raise UnsupportedError(
        f"gradient of {g.op.type} {g.op.name!r}",
        at=g.maker.line,
        found="the second derivative of lgamma",
        allowed="first derivatives of lgamma",
    )


def _reciprocal_no_nan(x: Array) -> Array:
    return np.divide(1, x, out=np.zeros_like(x), where=x != 0)


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x)) without overflow or loss of small values."""
    return np.logaddexp(x, 0)


def _gauss(g: GradContext) -> Sym:
    return g.dy * g.one("exp", -(g.x * g.x)) * TWO_OVER_SQRT_PI


TABLE: tuple[Unary, ...] = (
    Unary("negative", np.negative, lambda g: -g.dy, floating=False, linear=True, order="falling"),
    Unary("abs", np.abs, lambda g: g.dy * g.one("sign", g.x), (0.1, 3.0), floating=False),
    Unary("sign", np.sign, None, (0.1, 3.0), floating=False, order="rising"),
    Unary("exp", np.exp, lambda g: g.dy * g.y, order="rising"),
    Unary("expm1", np.expm1, lambda g: g.dy * (g.y + 1), order="rising"),
    Unary("log", np.log, lambda g: g.dy / g.x, (0.1, 5.0), order="rising", above=True),
    Unary("log1p", np.log1p, lambda g: g.dy / (g.x + 1), (-0.9, 5.0), order="rising", above=True),
    Unary("sqrt", np.sqrt, lambda g: g.dy / g.y * 0.5, (0.1, 5.0), order="rising", above=True),
    Unary(
        "rsqrt", lambda x: 1 / np.sqrt(x), lambda g: g.dy * g.y * g.y * g.y * -0.5, (0.1, 5.0),
        order="falling", above=True,
    ),
    Unary("square", np.square, lambda g: g.dy * g.x * 2, floating=False),
    Unary("reciprocal", lambda x: 1 / x, lambda g: -(g.dy * g.y * g.y), (0.2, 3.0)),
    Unary("reciprocal_no_nan", _reciprocal_no_nan, lambda g: -(g.dy * g.y * g.y), (0.2, 3.0)),
    Unary("sin", np.sin, lambda g: g.dy * g.one("cos", g.x)),
    Unary("cos", np.cos, lambda g: -(g.dy * g.one("sin", g.x))),
    Unary("tan", np.tan, lambda g: g.dy * (g.y * g.y + 1), (-1.2, 1.2)),
    Unary("sinh", np.sinh, lambda g: g.dy * g.one("cosh", g.x), order="rising"),
    Unary("cosh", np.cosh, lambda g: g.dy * g.one("sinh", g.x)),
    Unary("asin", np.arcsin, lambda g: g.dy * g.one("rsqrt", 1 - g.x * g.x), (-0.9, 0.9)),
    Unary("acos", np.arccos, lambda g: -(g.dy * g.one("rsqrt", 1 - g.x * g.x)), (-0.9, 0.9)),
    Unary("atan", np.arctan, lambda g: g.dy / (g.x * g.x + 1), order="rising"),
    Unary("asinh", np.arcsinh, lambda g: g.dy * g.one("rsqrt", g.x * g.x + 1), order="rising"),
    Unary(
        "acosh", np.arccosh, lambda g: g.dy * g.one("rsqrt", g.x * g.x - 1), (1.2, 4.0),
        order="rising", above=True,
    ),
    Unary("atanh", np.arctanh, lambda g: g.dy / (1 - g.x * g.x), (-0.9, 0.9)),
    Unary("ceil", np.ceil, order="rising"), Unary("floor", np.floor, order="rising"),
    Unary("rint", np.rint, order="rising"),
    # as in OneFlow, halves round to even
    Unary("round", np.rint, order="rising"),
    Unary("erf", mapped(math.erf), _gauss, order="rising"),
    Unary("erfc", mapped(math.erfc), lambda g: -_gauss(g), (-4.0, 6.0), order="falling"),
    Unary("lgamma", mapped(math.lgamma), lambda g: g.dy * g.one("digamma", g.x), (-5.0, 12.0)),
    Unary("digamma", _digamma, _no_second_derivative, (0.1, 12.0)),
    Unary(
        "softplus", softplus, lambda g: g.dy * g.one("sigmoid", g.x), (-9.0, 9.0), order="rising",
    ),
    Unary(
        "log_sigmoid", lambda x: -softplus(-x), lambda g: g.dy * g.one("sigmoid", -g.x),
        (-9.0, 9.0), order="rising",
    ),
)  # fmt: skip


OPS = specs(*TABLE)
