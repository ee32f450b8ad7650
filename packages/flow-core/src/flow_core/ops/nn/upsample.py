"""Upsampling of images, by the nearest element or by linear interpolation between centers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import floating_like_input, signatures, split_axes
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import P, Signatures

METHODS = ("nearest", "bilinear")
SCALES = ("height_scale", "width_scale")


def nearest_indices(size: int, scale: float) -> Any:
    """Return the source index of each output position, for an integer factor.

    >>> nearest_indices(2, 2.0)
    array([0, 0, 1, 1])
    """
    positions = np.arange(size * int(scale))
    return np.clip(np.floor((positions + 0.5) / scale).astype(np.int64), 0, size - 1)


def interpolation_matrix(size: int, scale: float, method: str) -> Array:
    """Return the matrix (output size, size) that upsamples a column vector, in float64.

    >>> interpolation_matrix(2, 2.0, "bilinear")
    array([[1.  , 0.  ],
           [0.75, 0.25],
           [0.25, 0.75],
           [0.  , 1.  ]])
    """
    out = size * int(scale)
    matrix = np.zeros((out, size))
    if method == "nearest":
        matrix[np.arange(out), nearest_indices(size, scale)] = 1
        return matrix
    center = np.clip((np.arange(out) + 0.5) / scale - 0.5, 0, size - 1)
    low = np.floor(center).astype(np.int64)
    np.add.at(matrix, (np.arange(out), low), 1 - (center - low))
    np.add.at(matrix, (np.arange(out), np.minimum(low + 1, size - 1)), center - low)
    return matrix


def _check(ctx: InferContext) -> TensorType:
    (x,), attrs = floating_like_input(ctx), ctx.attrs
    form = attrs["data_format"]
    ctx.check(form == "channels_first", f"data_format={form!r}", "channels_first")
    ctx.check(len(x.shape) == 4, f"input {x}", "rank 4: batch, channels, height, width")
    method = attrs["interpolation"]
    ctx.check(method in METHODS, f"interpolation={method!r}", " or ".join(METHODS))
    for name in SCALES:
        ctx.check(
            1 <= attrs[name] < np.inf, f"{name}={attrs[name]}", "a finite number of at least 1"
        )
    return x


def _matrices(size: tuple[int, ...], attrs: Mapping[str, AttrValue]) -> list[Array]:
    columns = zip(size, SCALES, strict=True)
    return [interpolation_matrix(n, attrs[k], attrs["interpolation"]) for n, k in columns]


def _cases() -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    for method in METHODS:
        for shape, scales in (
            ((2, 3, 3, 4), (2.0, 3.0)), ((1, 2, 1, 5), (4.0, 1.0)), ((2, 1, 3, 3), (2.5, 1.5)),
        ):  # fmt: skip
            attrs = dict(zip(SCALES, scales, strict=True))
            yield shape, {**attrs, "data_format": "channels_first", "interpolation": method}


class Upsampling(OpDef):
    """Upsampling, which is linear, or its gradient; the gradient of each is the other one."""

    attrs = dict.fromkeys((*SCALES, "data_format", "interpolation"), REQUIRED)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split the batch, channels, or axes that keep their size; pass P of a linear op."""
        kept = [i for i, name in enumerate(SCALES, 2) if ctx.attrs[name] == 1]
        return signatures(*split_axes(ctx, (0, 1, *kept)), (P, P))

    def gradient(self, g: GradContext) -> Gradients:
        other = "upsample" if g.op.type == "upsample_grad" else "upsample_grad"
        return (g.one(other, g.dy, **g.attrs),)


class Upsample(Upsampling):
    schema = "upsample(x) -> y"

    def infer(self, ctx: InferContext) -> Types:
        x = _check(ctx)
        height, width = (n * int(ctx.attrs[k]) for n, k in zip(x.shape[2:], SCALES, strict=True))
        return (tensor_type((*x.shape[:2], height, width), x.dtype),)

    def reference(self, x: Array, **attrs: AttrValue) -> Any:
        rows, columns = _matrices(x.shape[2:], attrs)
        return rows.astype(x.dtype) @ x @ columns.T.astype(x.dtype)

    def samples(self, rng: Rng) -> Samples:
        for shape, attrs in _cases():
            yield Sample((rng.normal(size=shape),), attrs)


class UpsampleGrad(Upsampling):
    schema = "upsample_grad(dy) -> dx"

    def infer(self, ctx: InferContext) -> Types:
        dy = _check(ctx)
        factors = [int(ctx.attrs[k]) for k in SCALES]
        ctx.check(
            all(n % f == 0 for n, f in zip(dy.shape[2:], factors, strict=True)),
            f"dy {dy}",
            f"a height and a width divisible by {factors[0]} and {factors[1]}",
        )
        height, width = (n // f for n, f in zip(dy.shape[2:], factors, strict=True))
        return (tensor_type((*dy.shape[:2], height, width), dy.dtype),)

    def reference(self, dy: Array, **attrs: AttrValue) -> Any:
        size = tuple(n // int(attrs[k]) for n, k in zip(dy.shape[2:], SCALES, strict=True))
        rows, columns = _matrices(size, attrs)
        return rows.T.astype(dy.dtype) @ dy @ columns.astype(dy.dtype)

    def samples(self, rng: Rng) -> Samples:
        for shape, attrs in _cases():
            height, width = (n * int(attrs[k]) for n, k in zip(shape[2:], SCALES, strict=True))
            yield Sample((rng.normal(size=(*shape[:2], height, width)),), attrs)


OPS = specs(Upsample, UpsampleGrad)
