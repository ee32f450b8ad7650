"""Batch normalization in NumPy, and its samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cuda_references.convolutions import WORKSPACE
from flow_core.authoring.specs import AttrValue, Sample
from flow_core.base.arrays import Array


def _axes(x: Array, axis: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes to reduce, and the shape in which one number per channel broadcasts."""
    others = tuple(i for i in range(x.ndim) if i != axis)
    return others, tuple(n if i == axis else 1 for i, n in enumerate(x.shape))


def norm(
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


def norm_grad(
    x: Array, dy: Array, mean: Array, inverse: Array, gamma: Array, *, axis: int, **_: AttrValue
) -> tuple[Array, ...]:
    others, shape = _axes(x, axis)
    normal = (x - mean.reshape(shape)) * inverse.reshape(shape)
    dgamma, dbeta = (normal * dy).sum(others), dy.sum(others)
    count = x.size // x.shape[axis]
    inner = dy - (normal * dgamma.reshape(shape) + dbeta.reshape(shape)) / count
    return inner * (gamma * inverse).reshape(shape), dgamma, dbeta


SHAPES = (((4, 8, 3, 5), 1), ((3, 2, 3, 16), 3), ((5, 8, 7), 1), ((2, 3, 2, 4, 8), 4))


def norm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for i, (shape, axis) in enumerate(SHAPES):
        rows = [rng.uniform(0.5, 1.5, shape[axis]) for _ in range(4)]
        addend = (rng.normal(0, 1, shape),) if i % 2 else ()
        attrs = {"axis": axis, "activation": ("", "relu")[i % 2], "workspace": WORKSPACE}
        yield Sample((rng.normal(0.5, 1.5, shape), *rows, *addend), attrs, gradient=False)


def norm_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, axis in SHAPES:
        rows = [rng.uniform(0.5, 1.5, shape[axis]) for _ in range(3)]
        arrays = (rng.normal(0, 1, shape), rng.normal(0, 1, shape), *rows)
        yield Sample(arrays, {"axis": axis, "workspace": WORKSPACE}, gradient=False)
