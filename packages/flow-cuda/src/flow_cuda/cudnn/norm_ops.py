"""The normalization ops that cuDNN computes; see `flow_cuda.cudnn.ops`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flow_core.authoring.specs import (
    REQUIRED,
    AttrValue,
    InferContext,
    OpSpec,
    Sample,
    TensorType,
    tensor_type,
)
from flow_core.base.arrays import Array
from flow_core.base.dtypes import float32
from flow_cuda.cudnn.ops import PLAN, WORKSPACE

Types = tuple[TensorType, ...]
ATTRS = {"axis": REQUIRED, **PLAN}


def _row(ctx: InferContext) -> TensorType:
    x = ctx.inputs[0]
    return tensor_type((x.shape[ctx.attrs["axis"]],), float32)


def _axes(x: Array, axis: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes to reduce, and the shape in which one number per channel broadcasts."""
    others = tuple(i for i in range(x.ndim) if i != axis)
    return others, tuple(n if i == axis else 1 for i, n in enumerate(x.shape))


def _norm(
    x: Array, moving_mean: Array, moving_variance: Array, gamma: Array, beta: Array, *addend: Array,
    axis: int, epsilon: float, momentum: float, activation: str, **_: AttrValue,
) -> tuple[Array, ...]:  # fmt: skip
    others, shape = _axes(x, axis)
    mean, variance, count = x.mean(others), x.var(others), x.size // x.shape[axis]
    inverse = 1 / np.sqrt(variance + epsilon)
    y = (x - mean.reshape(shape)) * (inverse * gamma).reshape(shape) + beta.reshape(shape)
    y = y + addend[0] if addend else y
    unbiased = variance * count / max(count - 1, 1)
    return (
        np.maximum(y, 0) if activation else y,
        mean,
        inverse,
        momentum * moving_mean + (1 - momentum) * mean,
        momentum * moving_variance + (1 - momentum) * unbiased,
    )


def _grad(
    x: Array, dy: Array, mean: Array, inverse: Array, gamma: Array, *, axis: int, **_: AttrValue
) -> tuple[Array, ...]:
    others, shape = _axes(x, axis)
    normal = (x - mean.reshape(shape)) * inverse.reshape(shape)
    dgamma, dbeta = (normal * dy).sum(others), dy.sum(others)
    count = x.size // x.shape[axis]
    inner = dy - (normal * dgamma.reshape(shape) + dbeta.reshape(shape)) / count
    return inner * (gamma * inverse).reshape(shape), dgamma, dbeta


SHAPES = (((4, 8, 3, 5), 1), ((3, 2, 3, 16), 3), ((5, 8, 7), 1), ((2, 3, 2, 4, 8), 4))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for i, (shape, axis) in enumerate(SHAPES):
        rows = [rng.uniform(0.5, 1.5, shape[axis]) for _ in range(4)]
        addend = (rng.normal(0, 1, shape),) if i % 2 else ()
        attrs = {"axis": axis, "activation": ("", "relu")[i % 2], "workspace": WORKSPACE}
        yield Sample((rng.normal(0.5, 1.5, shape), *rows, *addend), attrs, gradient=False)


def _grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, axis in SHAPES:
        rows = [rng.uniform(0.5, 1.5, shape[axis]) for _ in range(3)]
        arrays = (rng.normal(0, 1, shape), rng.normal(0, 1, shape), *rows)
        yield Sample(arrays, {"axis": axis, "workspace": WORKSPACE}, gradient=False)


def _layer_norm(
    x: Array, beta: Array, gamma: Array, *, begin: int, epsilon: float, **_: AttrValue
) -> Any:
    axes = tuple(range(begin, x.ndim))
    inner = x - x.mean(axes, keepdims=True)
    spread = np.square(inner).mean(axes, keepdims=True)
    return inner / np.sqrt(spread + epsilon) * gamma + beta


def _layer_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, begin in (((5, 8), 1), ((2, 3, 16), 2), ((3, 2, 4), 1), ((1, 3, 2, 12), 2)):
        rows = (rng.normal(1, 0.5, shape[begin:]) for _ in range(2))
        attrs = {"begin": begin, "workspace": WORKSPACE}
        yield Sample((rng.normal(0.5, 1.5, shape), *rows), attrs, gradient=False)


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="cudnn_norm",
        internal=True,
        inputs=("x", "moving_mean", "moving_variance", "gamma", "beta", "addend?"),
        outputs=("y", "mean", "inv_variance"),
        infer=lambda ctx: (ctx.inputs[0], _row(ctx), _row(ctx)),
        attrs={**ATTRS, "epsilon": 1e-5, "momentum": 0.9, "activation": ""},
        mutates=(1, 2),
        reference=_norm,
        samples=_samples,
        doc="Batch normalization in training, then optional addition and ReLU.",
    ),
    OpSpec(
        type="cudnn_norm_grad",
        internal=True,
        inputs=("x", "dy", "mean", "inv_variance", "gamma"),
        outputs=("dx", "gamma_diff", "beta_diff"),
        infer=lambda ctx: (ctx.inputs[0], _row(ctx), _row(ctx)),
        attrs=ATTRS,
        reference=_grad,
        samples=_grad_samples,
        doc="The gradients of batch normalization.",
    ),
    OpSpec(
        type="cudnn_layer_norm",
        internal=True,
        inputs=("x", "beta", "gamma"),
        outputs=("y",),
        infer=lambda ctx: (ctx.inputs[0],),
        attrs={**PLAN, "begin": REQUIRED, "epsilon": 1e-5},
        reference=_layer_norm,
        samples=_layer_samples,
        doc="Layer normalization over the axes from ``begin`` on, without statistics.",
    ),
)
