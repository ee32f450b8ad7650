"""Activations and the ops that compute their gradients, defined by one table.

Each row has a function and its derivative; the gradient op takes OneFlow's inputs in OneFlow's
order: the forward output ``y`` or input ``x`` first, then ``dy``.  If the gradient is a function of
the output, the live range of the input is shorter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import pi, sqrt
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import AttrValue, TensorType
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.math.broadcasting import linear_in, sum_to_shape
from flow_core.ops.math.unary import mapped
from flow_core.ops.rules import (
    broadcast_sbp,
    broadcast_type,
    floating_like_input,
    nondecreasing,
    same_inputs,
    split_all_axes,
)
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import B, P, Signature, Signatures


@dataclass(frozen=True, slots=True)
class Activation:
    """A row of the table of activations.

    Attributes:
        name: op type.
        reference: numpy semantics, with the attributes as keyword arguments.
        derivative: numpy semantics of the derivative at ``x`` or ``y``.
        grad: op type of the gradient; None if another row defines that op.
        at: the argument of the derivative, "x" or "y".
        attrs: attributes of both ops.
        samples: attributes with which the kits test the ops.
        rises: whether the function is nondecreasing if its slopes are nonnegative.
        flat: whether the function has constant pieces, where the gradient is 0 for any dy.
    """

    name: str
    reference: Callable[..., Any]
    derivative: Callable[..., Any]
    grad: str
    at: str = "x"
    attrs: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Mapping[str, Any], ...] = ({},)
    rises: bool = True
    flat: bool = False


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


TABLE: tuple[Activation, ...] = (
    Activation(
        "relu", lambda x: np.maximum(x, 0), lambda y: y > 0, "relu_grad", "y", flat=True
    ),
    Activation("sigmoid", _sigmoid, lambda y: y * (1 - y), "sigmoid_grad", "y"),
    Activation("sigmoid_v2", _sigmoid, lambda y: y * (1 - y), "sigmoid_grad", "y"),
    Activation("tanh", np.tanh, lambda y: 1 - y * y, "tanh_grad", "y"),
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
        {"alpha": REQUIRED}, ({"alpha": 0.2}, {"alpha": 1.5}),
    ),
    Activation(
        "elu", lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x)),
        lambda x, alpha: np.where(x > 0, 1, alpha * np.exp(x)), "elu_grad", "x",
        {"alpha": REQUIRED}, ({"alpha": 1.0}, {"alpha": 0.3}),
    ),
)  # fmt: skip


def _forward_samples(row: Activation) -> Callable[[np.random.Generator], Iterator[Sample]]:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for attrs in row.samples:
            for shape in ((9,), (3, 5), (2, 1, 4)):
                yield Sample((rng.uniform(-5, 5, shape),), attrs)
        yield Sample((np.zeros((0, 3)),), row.samples[0], False, "no elements")
        yield Sample((np.array([-90.0, 0.0, -0.0, 90.0]),), row.samples[0], False, "far and zero")

    return samples


def _backward_samples(row: Activation) -> Callable[[np.random.Generator], Iterator[Sample]]:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for attrs in row.samples:
            for shape in ((9,), (3, 5), (0, 3)):
                x = rng.uniform(-5, 5, shape)
                at = row.reference(x, **{**row.attrs, **attrs}) if row.at == "y" else x
                yield Sample((at, rng.uniform(-1, 1, shape)), attrs, gradient=False)

    return samples


def _forward_sbp(row: Activation) -> Callable[[SbpContext], Signatures]:
    def sbp(ctx: SbpContext) -> Signatures:
        rises = row.rises and ctx.attrs.get("alpha", 0) >= 0
        return (*split_all_axes(ctx), *(nondecreasing(ctx, 0) if rises else ()))

    return sbp


def _forward_spec(row: Activation) -> OpSpec:
    def gradient(g: GradContext) -> Sequence[Sym]:
        return (g.one(row.grad, g.x if row.at == "x" else g.y, g.dy, **g.attrs),)

    return OpSpec(
        type=row.name,
        inputs=("x",) if row.name in ("leaky_relu", "tanh", "sigmoid_v2") else ("in",),
        outputs=("y",) if row.name in ("leaky_relu", "tanh", "sigmoid_v2") else ("out",),
        infer=floating_like_input,
        attrs=row.attrs,
        sbp=_forward_sbp(row),
        gradient=gradient,
        reference=row.reference,
        samples=_forward_samples(row),
        elementwise=True,
        inplace=(0,),
    )


def _floating_same_inputs(ctx: InferContext) -> tuple[TensorType, ...]:
    return (floating_like_input(ctx), same_inputs(ctx))[1]


def _backward_reference(row: Activation) -> Callable[..., Any]:
    """Return a function that computes dy times the derivative.

    Where the activation is flat, the result is 0, even if dy is NaN.
    """

    def reference(at: Any, dy: Array, **attrs: AttrValue) -> Array:
        slope = row.derivative(at, **attrs)
        return np.where(slope == 0, 0.0, dy * slope) if row.flat else dy * slope

    return reference


def _backward_spec(row: Activation) -> OpSpec:
    return OpSpec(
        type=row.grad,
        inputs=(row.at, "dy"),
        outputs=("dx",),
        infer=_floating_same_inputs,
        attrs=row.attrs,
        sbp=linear_in(1),
        reference=_backward_reference(row),
        samples=_backward_samples(row),
        elementwise=True,
        # relu_grad builds its bit mask in the output, so dy must not share its memory
        inplace=(0,) if row.grad == "relu_grad" else (0, 1),
    )


def _backward_specs() -> tuple[OpSpec, ...]:
    """Return one op per name; rows that share a gradient op define it identically."""
    return tuple({row.grad: _backward_spec(row) for row in reversed(TABLE)}.values())


# activations whose slopes are variables


def _prelu_infer(ctx: InferContext) -> tuple[TensorType, ...]:
    """Return the type of x, to which alpha must broadcast."""
    x = ctx.inputs[-2]
    ctx.check(x.dtype.is_floating, f"input of type {x}", "a floating type")
    ctx.check(
        broadcast_type(ctx) == x,
        f"slopes {ctx.inputs[-1]} for {x}",
        "slopes of the input's shape without its first axis, or with axes of size 1",
    )
    return (x,)


def _prelu_reference(x: Array, alpha: Array) -> Array:
    return np.where(x > 0, x, alpha * x)


def _prelu_gradient(g: GradContext) -> Sequence[Sym | None]:
    x, alpha = g.inputs
    dx = g.one("prelu_input_grad", g.dy, x, alpha) if g.needed[0] else None
    if not g.needed[1]:
        return dx, None
    below = g.one("clip_by_scalar_max", x, floating_max=0.0, integral_max=0)
    return dx, sum_to_shape(g, 1, g.dy * below)


def _prelu_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x, alpha in (((3, 5), (5,)), ((2, 3, 4), (3, 1)), ((2, 3, 4), (1, 1)), ((4, 1), (1,))):
        yield Sample((rng.uniform(-2, 2, x), rng.uniform(0.1, 0.9, alpha)))


def _prelu_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in _prelu_samples(rng):
        dy = rng.uniform(-1, 1, sample.inputs[0].shape)
        yield Sample((dy, *sample.inputs), gradient=False)


def _prelu_grad_sbp(ctx: SbpContext) -> Signatures:
    return (*broadcast_sbp(ctx), Signature((P, B, B), (P,)))


PRELU = OpSpec(
    type="prelu",
    inputs=("x", "alpha"),
    outputs=("y",),
    infer=_prelu_infer,
    sbp=broadcast_sbp,
    gradient=_prelu_gradient,
    reference=_prelu_reference,
    samples=_prelu_samples,
    elementwise=True,
    inplace=(0,),
)

PRELU_GRAD = replace(
    PRELU,
    type="prelu_input_grad",
    inputs=("dy", "x", "alpha"),
    outputs=("dx",),
    sbp=_prelu_grad_sbp,
    gradient=None,
    reference=lambda dy, x, alpha: dy * np.where(x > 0, 1, alpha),
    samples=_prelu_grad_samples,
    inplace=(0, 1),
)

OPS: tuple[OpSpec, ...] = (*map(_forward_spec, TABLE), *_backward_specs(), PRELU, PRELU_GRAD)
