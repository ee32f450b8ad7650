"""Activations and the ops that compute their gradients, defined by one table.

Each row has a function and its derivative; the gradient op takes OneFlow's inputs in OneFlow's
order: the forward output ``y`` or input ``x`` first, then ``dy``.  If the gradient is a function of
the output, the live range of the input is shorter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from math import pi, sqrt
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import AttrValue
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.math.broadcasting import sum_to_shape
from flow_core.ops.math.unary import mapped
from flow_core.ops.rules import (
    broadcast_sbp,
    broadcast_type,
    floating_like_input,
    nondecreasing,
    same_inputs,
    split_all_axes,
    with_rows,
)
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import B, P, Signatures


@dataclass(frozen=True, slots=True)
class Activation(OpDef):
    """A row of the table of activations."""

    type: str
    reference: Callable[..., Any]
    # Numpy semantics of the derivative at ``x`` or ``y``, with the attributes.
    derivative: Callable[..., Any]
    grad: str  # op type of the gradient; rows that share one define it identically
    at: str = "x"  # the argument of the derivative, "x" or "y"
    attrs: Attributes = field(default_factory=dict)
    cases: tuple[Attributes, ...] = ({},)  # attributes with which the kits test the ops
    rises: bool = True  # whether the function is nondecreasing if its slopes are nonnegative
    # Whether the function has constant pieces, where the gradient is 0 for any dy.
    flat: bool = False
    inputs: tuple[str, ...] = ("in",)
    outputs: tuple[str, ...] = ("out",)
    elementwise = True
    inplace = (0,)
    infer = staticmethod(floating_like_input)

    def sbp(self, ctx: SbpContext) -> Signatures:
        rises = self.rises and ctx.attrs.get("alpha", 0) >= 0
        return (*split_all_axes(ctx), *(nondecreasing(ctx, 0) if rises else ()))

    def gradient(self, g: GradContext) -> Gradients:
        return (g.one(self.grad, g.x if self.at == "x" else g.y, g.dy, **g.attrs),)

    def samples(self, rng: Rng) -> Samples:
        for attrs in self.cases:
            for shape in ((9,), (3, 5), (2, 1, 4)):
                yield Sample((rng.uniform(-5, 5, shape),), attrs)
        yield Sample((np.zeros((0, 3)),), self.cases[0], False, "no elements")
        far = np.array([-90.0, 0.0, -0.0, 90.0])
        yield Sample((far,), self.cases[0], False, "far and zero")


@dataclass(frozen=True, slots=True)
class ActivationGrad(OpDef):
    """The gradient op of a row."""

    type: str
    row: Activation
    inputs: tuple[str, ...]
    attrs: Attributes
    inplace: tuple[int, ...]
    outputs = ("dx",)
    elementwise = True
    sbp = staticmethod(with_rows(split_all_axes, ((B, P), P)))
    infer = staticmethod(lambda ctx: (floating_like_input(ctx), same_inputs(ctx))[1])

    def reference(self, at: Any, dy: Array, **attrs: AttrValue) -> Any:
        """Return dy times the derivative; where the activation is flat, 0, even if dy is NaN."""
        slope = self.row.derivative(at, **attrs)
        return np.where(slope == 0, 0.0, dy * slope) if self.row.flat else dy * slope

    def samples(self, rng: Rng) -> Samples:
        for attrs in self.row.cases:
            for shape in ((9,), (3, 5), (0, 3)):
                x = rng.uniform(-5, 5, shape)
                at = self.row.reference(x, **{**self.attrs, **attrs}) if self.row.at == "y" else x
                yield Sample((at, rng.uniform(-1, 1, shape)), attrs, gradient=False)


def _gradient_op(row: Activation) -> ActivationGrad:
    # relu_grad builds its bit mask in the output, so dy must not share its memory
    inplace = (0,) if row.grad == "relu_grad" else (0, 1)
    return ActivationGrad(row.grad, row, (row.at, "dy"), row.attrs, inplace)


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0, -x))


def _gelu(x: Array) -> Any:
    return 0.5 * x * (1 + mapped(math.erf)(x / sqrt(2)))


def _gelu_derivative(x: Array) -> Any:
    return 0.5 * (1 + mapped(math.erf)(x / sqrt(2))) + x * np.exp(-x * x / 2) / sqrt(2 * pi)


def _hardsigmoid(x: Array) -> Array:
    return np.clip(x / 6 + 0.5, 0, 1)


def _inside(x: Array, low: float, high: float) -> Array:
    return (low < x) & (x < high)


X_TO_Y: Any = {"inputs": ("x",), "outputs": ("y",)}

TABLE: tuple[Activation, ...] = (
    Activation(
        "relu", lambda x: np.maximum(x, 0), lambda y: y > 0, "relu_grad", "y", flat=True
    ),
    Activation("sigmoid", _sigmoid, lambda y: y * (1 - y), "sigmoid_grad", "y"),
    Activation("sigmoid_v2", _sigmoid, lambda y: y * (1 - y), "sigmoid_grad", "y", **X_TO_Y),
    Activation("tanh", np.tanh, lambda y: 1 - y * y, "tanh_grad", "y", **X_TO_Y),
    Activation("gelu", _gelu, _gelu_derivative, "gelu_grad", rises=False),
    Activation(
        "hardsigmoid", _hardsigmoid, lambda x: _inside(x, -3, 3) / 6, "hardsigmoid_grad", flat=True
    ),
    Activation(
        "hardswish", lambda x: x * _hardsigmoid(x),
        lambda x: _hardsigmoid(x) + np.where(_inside(x, -3, 3), x, 0) / 6,
        "hardswish_grad", rises=False,
    ),
    Activation(
        "hardtanh", lambda x, min_val, max_val: np.clip(x, min_val, max_val),
        lambda y, min_val, max_val: _inside(y, min_val, max_val), "hardtanh_grad", "y",
        {"min_val": -1.0, "max_val": 1.0}, ({}, {"min_val": 0.0, "max_val": 2.5}), flat=True,
    ),
    Activation(
        "leaky_relu", lambda x, alpha: np.where(x > 0, x, alpha * x),
        lambda x, alpha: np.where(x > 0, 1, alpha), "leaky_relu_grad", "x",
        {"alpha": REQUIRED}, ({"alpha": 0.2}, {"alpha": 1.5}), **X_TO_Y,
    ),
    Activation(
        "elu", lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x)),
        lambda x, alpha: np.where(x > 0, 1, alpha * np.exp(x)), "elu_grad", "x",
        {"alpha": REQUIRED}, ({"alpha": 1.0}, {"alpha": 0.3}),
    ),
)  # fmt: skip


class SlopeOp(OpDef):
    """An op whose last input, the slopes, broadcasts to the input before it."""

    elementwise = True

    def infer(self, ctx: InferContext) -> Types:
        x = ctx.inputs[-2]
        ctx.check(x.dtype.is_floating, f"input of type {x}", "a floating type")
        ctx.check(
            broadcast_type(ctx) == x,
            f"slopes {ctx.inputs[-1]} for {x}",
            "slopes of the input's shape without its first axis, or with axes of size 1",
        )
        return (x,)

    def samples(self, rng: Rng) -> Samples:
        for x, alpha in (((3, 5), (5,)), ((2, 3, 4), (3, 1)), ((2, 3, 4), (1, 1)), ((4, 1), (1,))):
            yield Sample((rng.uniform(-2, 2, x), rng.uniform(0.1, 0.9, alpha)))


class Prelu(SlopeOp):
    schema = "prelu(x, alpha) -> y"
    inplace = (0,)
    sbp = staticmethod(broadcast_sbp)
    reference = staticmethod(lambda x, alpha: np.where(x > 0, x, alpha * x))

    def gradient(self, g: GradContext) -> Gradients:
        x, alpha = g.inputs
        dx = g.one("prelu_input_grad", g.dy, x, alpha) if g.needed[0] else None
        if not g.needed[1]:
            return dx, None
        below = g.one("clip_by_scalar_max", x, floating_max=0.0, integral_max=0)
        return dx, sum_to_shape(g, 1, g.dy * below)


class PreluInputGrad(SlopeOp):
    schema = "prelu_input_grad(dy, x, alpha) -> dx"
    inplace = (0, 1)
    sbp = staticmethod(with_rows(broadcast_sbp, ((P, B, B), P)))
    reference = staticmethod(lambda dy, x, alpha: dy * np.where(x > 0, 1, alpha))

    def samples(self, rng: Rng) -> Samples:
        for sample in super().samples(rng):
            dy = rng.uniform(-1, 1, sample.inputs[0].shape)
            yield Sample((dy, *sample.inputs), gradient=False)


GRADIENTS = {row.grad: _gradient_op(row) for row in reversed(TABLE)}

OPS = specs(*TABLE, *GRADIENTS.values(), Prelu, PreluInputGrad)
