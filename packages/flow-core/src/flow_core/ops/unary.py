"""Elementwise ops of one input, as one table.

A row gives the numpy semantics and the derivative as an expression of graph ops.  Rows whose
derivative has an op of its own in OneFlow (``relu_grad`` ...) are in `flow_core.ops.activation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import numpy as np

from flow_core.ops.build import GradContext, Sym
from flow_core.ops.rules import floating_like_input, like_input, linear, split_all_axes
from flow_core.plugins.specs import OpSpec, Sample


@dataclass(frozen=True, slots=True)
class Unary:
    """One row of the table.

    Attributes:
        name: op type.
        reference: numpy semantics.
        derivative: dx as graph ops, None when it is zero or undefined everywhere.
        domain: interval from which samples are drawn.
        floating: whether only floating types are taken.
        linear: whether f(a + b) = f(a) + f(b), so that P -> P is a rule.
    """

    name: str
    reference: Callable[[Any], Any]
    derivative: Callable[[GradContext], Sym] | None = None
    domain: tuple[float, float] = (-3.0, 3.0)
    floating: bool = True
    linear: bool = False


def _samples(domain: tuple[float, float], smooth: bool) -> Callable[[Any], Iterator[Sample]]:
    def samples(rng: Any) -> Iterator[Sample]:
        for shape in ((7,), (3, 5), (2, 1, 4)):
            yield Sample((rng.uniform(*domain, shape),), gradient=smooth)
        yield Sample((rng.uniform(*domain, (0, 3)),), gradient=False, note="no elements")

    return samples


TABLE: tuple[Unary, ...] = (
    Unary("negative", np.negative, lambda g: -g.dy, floating=False, linear=True),
    Unary("abs", np.abs, lambda g: g.dy * g.one("sign", g.x), (0.1, 3.0), floating=False),
    Unary("sign", np.sign, None, (0.1, 3.0), floating=False),
    Unary("exp", np.exp, lambda g: g.dy * g.y),
    Unary("expm1", np.expm1, lambda g: g.dy * (g.y + 1)),
    Unary("log", np.log, lambda g: g.dy / g.x, (0.1, 5.0)),
    Unary("log1p", np.log1p, lambda g: g.dy / (g.x + 1), (-0.9, 5.0)),
    Unary("sqrt", np.sqrt, lambda g: g.dy / g.y * 0.5, (0.1, 5.0)),
    Unary(
        "rsqrt", lambda x: 1 / np.sqrt(x), lambda g: g.dy * g.y * g.y * g.y * -0.5, (0.1, 5.0)
    ),
    Unary("square", np.square, lambda g: g.dy * g.x * 2, floating=False),
    Unary("reciprocal", lambda x: 1 / x, lambda g: -(g.dy * g.y * g.y), (0.2, 3.0)),
    Unary("sin", np.sin, lambda g: g.dy * g.one("cos", g.x)),
    Unary("cos", np.cos, lambda g: -(g.dy * g.one("sin", g.x))),
    Unary("tan", np.tan, lambda g: g.dy * (g.y * g.y + 1), (-1.2, 1.2)),
    Unary("sinh", np.sinh, lambda g: g.dy * g.one("cosh", g.x)),
    Unary("cosh", np.cosh, lambda g: g.dy * g.one("sinh", g.x)),
    Unary("asin", np.arcsin, lambda g: g.dy * g.one("rsqrt", 1 - g.x * g.x), (-0.9, 0.9)),
    Unary("acos", np.arccos, lambda g: -(g.dy * g.one("rsqrt", 1 - g.x * g.x)), (-0.9, 0.9)),
    Unary("atan", np.arctan, lambda g: g.dy / (g.x * g.x + 1)),
    Unary("asinh", np.arcsinh, lambda g: g.dy * g.one("rsqrt", g.x * g.x + 1)),
    Unary("acosh", np.arccosh, lambda g: g.dy * g.one("rsqrt", g.x * g.x - 1), (1.2, 4.0)),
    Unary("atanh", np.arctanh, lambda g: g.dy / (1 - g.x * g.x), (-0.9, 0.9)),
    Unary("ceil", np.ceil), Unary("floor", np.floor), Unary("rint", np.rint),
    Unary("round", lambda x: np.trunc(x + np.copysign(0.5, x))),
)  # fmt: skip

SQRT_2, TWO_OVER_SQRT_PI = sqrt(2), 2 / sqrt(pi)


def _zero(g: GradContext) -> tuple[None]:
    return (None,)


def unary_spec(row: Unary) -> OpSpec:
    """The `OpSpec` of one row."""
    derivative = row.derivative
    return OpSpec(
        type=row.name,
        inputs=("x",),
        outputs=("y",),
        infer=floating_like_input if row.floating else like_input,
        sbp=linear if row.linear else split_all_axes,
        gradient=(lambda g: (derivative(g),)) if derivative else _zero,
        reference=row.reference,
        samples=_samples(row.domain, row.derivative is not None),
        elementwise=True,
        inplace=(0,),
    )


OPS: tuple[OpSpec, ...] = tuple(map(unary_spec, TABLE))
