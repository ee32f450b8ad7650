"""Attention in NumPy, and its samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flow_core.authoring.specs import AttrValue, Sample
from flow_core.base.arrays import Array


def scores(q: Array, k: Array, mask: tuple[Array, ...], scale: float) -> Array:
    """Return the scores before softmax."""
    value = scale * (q @ k.swapaxes(-1, -2))
    return value + mask[0] if mask else value


def attention(
    q: Array, k: Array, v: Array, *mask: Array, **attrs: AttrValue
) -> Array | tuple[Array, ...]:
    value = scores(q, k, mask, attrs["scale"])
    top = value.max(-1, keepdims=True)
    weights = np.exp(value - top)
    total = weights.sum(-1, keepdims=True)
    out = (weights / total) @ v
    return (out, top + np.log(total)) if attrs["saves"] else out


def attention_grad(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    do: Array,
    stats: Array,
    *mask: Array,
    **attrs: AttrValue,
) -> tuple[Array, ...]:
    weights = np.exp(scores(q, k, mask, attrs["scale"]) - stats)
    slope = weights * (do @ v.swapaxes(-1, -2) - (o * do).sum(-1, keepdims=True))
    dq, dk = slope @ k * attrs["scale"], slope.swapaxes(-1, -2) @ q * attrs["scale"]
    return dq, dk, weights.swapaxes(-1, -2) @ do


SHAPES: tuple[tuple[tuple[int, ...], int, int, tuple[int, ...] | None], ...] = (
    ((2, 3, 5, 8), 5, 8, None),
    ((2, 3, 5, 8), 7, 16, (2, 1, 1, 7)),
    ((1, 2, 9, 16), 4, 8, (1, 2, 9, 4)),
    ((3, 6, 8), 6, 8, None),
)
"""For each sample: shape of q, sequence length of k, feature size of v, and shape of the mask."""


def operands(rng: np.random.Generator) -> Iterator[tuple[Array, ...]]:
    """Yield q, k, v and optionally a mask."""
    for shape, places, numbers, mask in SHAPES:
        *outer, _, size = shape
        arrays = [rng.normal(0, 1, s) for s in (shape, (*outer, places, size))]
        arrays.append(rng.normal(0, 1, (*outer, places, numbers)))
        yield (*arrays, *(() if mask is None else (rng.normal(0, 1, mask),)))


def attention_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for given in operands(rng):
        for saves in (False, True):
            attrs = {"scale": 0.3, "saves": saves, "workspace": 4096}
            yield Sample(given, attrs, gradient=False)


def attention_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for q, k, v, *mask in operands(rng):
        out, stats = attention(q, k, v, *mask, scale=0.3, saves=True)
        attrs = {"scale": 0.3, "workspace": 4096}
        given = (q, k, v, out, rng.normal(0, 1, out.shape), stats.astype(np.float32), *mask)
        yield Sample(given, attrs, gradient=False, fixed=(5,))
