"""Kernels of batch, layer and L2 normalization.

Variances are computed as means of squared deviations, which avoids cancellation.  Elementwise
passes run block by block, so that a block stays in cache between two passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.base.shapes import normal_axis
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import carve, scalar
from flow_core.builtin.numpy_kernels.rows import column_dots, column_sum, row_dots, row_sum
from flow_core.builtin.numpy_kernels.widening import widened
from flow_core.device import Launch
from flow_core.ir.graph import TensorType
from flow_core.ops.nn.norm import layer_axes
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

Launches = Sequence[Launch]
Shape = tuple[int, ...]

BLOCK_BYTES = 1 << 18


def _blocks(count: int, total_bytes: int) -> list[slice]:
    """Split ``count`` items of equal size into slices of about `BLOCK_BYTES` bytes each."""
    size = max(1, BLOCK_BYTES * count // max(total_bytes, 1))
    return [slice(i, min(i + size, count)) for i in range(0, count, size)]


# --- batch normalization: x is viewed as (outer, channels, inner)


@dataclass(frozen=True, slots=True)
class _Channels:
    """The folding of a tensor to (outer, channels, inner), and its division into blocks."""

    outer: int
    channels: int
    inner: int
    blocks: list[slice]

    @classmethod
    def of(cls, type_: TensorType, axis: int) -> _Channels:
        shape, axis = type_.shape, axis % len(type_.shape)
        outer = prod(shape[:axis])
        blocks = _blocks(outer, type_.nbytes)
        return cls(outer, shape[axis], prod(shape[axis + 1 :]), blocks)

    @property
    def count(self) -> int:
        """Number of elements per channel; at least 1, so that it can be a divisor."""
        return max(self.outer * self.inner, 1)

    @property
    def partials(self) -> Shape:
        """Shape of partial sums: one row per outer index, or per block if ``inner`` is 1."""
        return (len(self.blocks) if self.inner == 1 else self.outer), self.channels

    def fold(self, x: Array) -> Any:
        """Return the (outer, channels, inner) view."""
        return x.reshape(self.outer, self.channels, self.inner)

    def vector(self, v: Array) -> Array:
        """Return a channel vector in a shape that broadcasts against a block."""
        return v.reshape(self.channels, 1)

    def sum(self, x: Array, out: Array, scratch: Array, factor: float = 1.0) -> Launches:
        """Return launches that write ``factor`` times the channel sums of folded x to ``out``."""
        if self.inner == 1:
            return (column_sum(x[:, :, 0], out, factor),)
        rows = x.reshape(self.outer * self.channels, self.inner)
        return row_sum(rows, scratch.reshape(-1, 1)), column_sum(scratch, out, factor)

    def dots(self, k: int, x: Array, y: Array, scratch: Array) -> Launch:
        """Return a launch of the partial inner products, per channel, of block ``k`` of x and y."""
        block = self.blocks[k]
        if self.inner == 1:
            return column_dots(x[block, :, 0], y[block, :, 0], scratch[k])
        rows = (len(x[block]) * self.channels, self.inner)
        return row_dots(x[block].reshape(rows), y[block].reshape(rows), scratch[block].reshape(-1))


def _channels(query: KernelQuery) -> _Channels:
    return _Channels.of(query.inputs[0], query.attrs["axis"])


def _channel_parts(query: KernelQuery) -> tuple[tuple[Shape, DTypeLike], ...]:
    """Return the workspace parts: partial sums and two channel vectors."""
    fold, dtype = _channels(query), query.inputs[0].dtype.numpy
    vector = ((fold.channels,), dtype)
    return (fold.partials, dtype), vector, vector


def _batch_norm(ctx: BindContext) -> Launches:
    return _batch_norm_training(ctx) if ctx.attrs["training"] else _batch_norm_inference(ctx)


def _inverse_root(variance: Array, epsilon: float, out: Array) -> Launches:
    return (
        call(np.add, variance, scalar(epsilon, out), out=out),
        call(np.sqrt, out, out=out),
        call(np.reciprocal, out, out=out),
    )


def _batch_norm_training(ctx: BindContext) -> Launches:
    x, moving_mean, moving_variance, gamma, beta = ctx.inputs
    y, mean, inverse = ctx.outputs
    fold = _channels(ctx.query)
    scratch, variance, factor = carve(ctx.workspace, *_channel_parts(ctx.query))
    x, y = fold.fold(x), fold.fold(y)
    rate, n = 1 - ctx.attrs["momentum"], fold.count
    return (
        *fold.sum(x, mean, scratch, 1 / n),
        *_center_and_square(fold, x, mean, y, scratch),
        column_sum(scratch, variance, 1 / n),
        *_inverse_root(variance, ctx.attrs["epsilon"], inverse),
        *_move(moving_mean, mean, rate, 1.0, factor),
        *_move(moving_variance, variance, rate, n / max(n - 1, 1), factor),
        call(np.multiply, gamma, inverse, out=factor),
        *_scale_and_shift(fold, y, factor, beta, y),
    )


def _center_and_square(
    fold: _Channels, x: Array, mean: Array, out: Array, scratch: Array, other: Array | None = None
) -> Iterator[Launch]:
    """Yield launches that write x - mean to ``out``, and its partial inner products to ``scratch``.

    The second factor of the inner products is ``other`` or, without ``other``, x - mean itself.
    """
    for k, block in enumerate(fold.blocks):
        yield call(np.subtract, x[block], fold.vector(mean), out=out[block])
        yield fold.dots(k, out, out if other is None else other, scratch)


def _scale_and_shift(
    fold: _Channels, x: Array, factor: Array, shift: Array, out: Array
) -> Iterator[Launch]:
    for block in fold.blocks:
        yield call(np.multiply, x[block], fold.vector(factor), out=out[block])
        yield call(np.add, out[block], fold.vector(shift), out=out[block])


def _move(moving: Array, batch: Array, rate: float, unbias: float, scratch: Array) -> Launches:
    """Return launches that compute moving = moving (1 - rate) + batch unbias rate."""
    return (
        call(np.multiply, moving, scalar(1 - rate, moving), out=moving),
        call(np.multiply, batch, scalar(rate * unbias, batch), out=scratch),
        call(np.add, moving, scratch, out=moving),
    )


def _batch_norm_inference(ctx: BindContext) -> Launches:
    """Return launches that compute y = x factor + shift, with one factor and shift per channel."""
    x, moving_mean, moving_variance, gamma, beta = ctx.inputs
    y, mean, inverse = ctx.outputs
    fold = _channels(ctx.query)
    _, shift, factor = carve(ctx.workspace, *_channel_parts(ctx.query))
    return (
        *_inverse_root(moving_variance, ctx.attrs["epsilon"], inverse),
        partial(np.copyto, mean, moving_mean),
        call(np.multiply, gamma, inverse, out=factor),
        call(np.multiply, mean, factor, out=shift),
        call(np.subtract, beta, shift, out=shift),
        *_scale_and_shift(fold, fold.fold(x), factor, shift, fold.fold(y)),
    )


def _batch_norm_grad(ctx: BindContext) -> Launches:
    x, dy, mean, inverse, gamma = ctx.inputs
    dx, d_gamma, d_beta = ctx.outputs
    fold = _channels(ctx.query)
    scratch, slope, offset = carve(ctx.workspace, *_channel_parts(ctx.query))
    x, dy, dx = fold.fold(x), fold.fold(dy), fold.fold(dx)
    sums = (
        *fold.sum(dy, d_beta, scratch),
        *_center_and_square(fold, x, mean, dx, scratch, dy),
        column_sum(scratch, d_gamma),
        call(np.multiply, d_gamma, inverse, out=d_gamma),
    )
    if not ctx.attrs["training"]:
        factor = call(np.multiply, gamma, inverse, out=slope)
        return (*sums, factor, *_times(fold, dy, slope, dx))
    return (*sums, *_batch_norm_dx(fold, ctx, dy, dx, slope, offset))


def _times(fold: _Channels, x: Array, factor: Array, out: Array) -> Iterator[Launch]:
    for block in fold.blocks:
        yield call(np.multiply, x[block], fold.vector(factor), out=out[block])


def _batch_norm_dx(
    fold: _Channels, ctx: BindContext, dy: Array, dx: Array, slope: Array, offset: Array
) -> Iterator[Launch]:
    """Yield launches that compute dx = ((x - mean) slope + dy + offset) gamma inverse.

    Before them, dx holds x - mean.
    """
    inverse, gamma = ctx.inputs[3:]
    _, d_gamma, d_beta = ctx.outputs
    share = scalar(-1 / fold.count, slope)
    yield call(np.multiply, d_gamma, inverse, out=slope)
    yield call(np.multiply, slope, share, out=slope)
    yield call(np.multiply, d_beta, share, out=offset)
    for block in fold.blocks:
        part = dx[block]
        yield call(np.multiply, part, fold.vector(slope), out=part)
        yield call(np.add, part, dy[block], out=part)
        yield call(np.add, part, fold.vector(offset), out=part)
    yield call(np.multiply, gamma, inverse, out=slope)
    yield from _times(fold, dx, slope, dx)


# --- layer normalization: blocks of leading items, each a number of whole rows


def _leading(type_: TensorType, lead: int) -> tuple[int, list[slice]]:
    """Return the number of items along the first ``lead`` axes, and their division into blocks."""
    items = prod(type_.shape[:lead])
    return items, _blocks(items, type_.nbytes)


def _item_blocks(items: int, blocks: list[slice], array: Array) -> list[Array]:
    view = array.reshape(items, array.size // items if items else 0)
    return [view[block] for block in blocks]


def _layer_norm(ctx: BindContext) -> Launches:
    (x, *params), (y, mean, inverse) = ctx.inputs, ctx.outputs
    norm, begin = layer_axes(x.ndim, ctx.attrs)
    items, blocks = _leading(ctx.query.inputs[0], min(norm, begin))
    length = prod(x.shape[norm:])
    parts = [_item_blocks(items, blocks, a) for a in (x, y, mean, inverse)]
    beta = params[0].reshape(-1) if ctx.attrs["center"] else None
    gamma = params[-1].reshape(-1) if ctx.attrs["scale"] else None
    launches: list[Launch] = []
    for x_part, y_part, mean_part, inverse_part in zip(*parts, strict=True):
        rows = x_part.reshape(-1, length), y_part.reshape(-1, length)
        columns = mean_part.reshape(-1, 1), inverse_part.reshape(-1, 1)
        launches += _normalize_rows(*rows, *columns, ctx.attrs["epsilon"])
        launches += _affine(y_part, gamma, beta)
    return launches


def _normalize_rows(x: Array, y: Array, mean: Array, inverse: Array, epsilon: float) -> Launches:
    share = 1 / x.shape[1]
    return (
        row_sum(x, mean, share),
        call(np.subtract, x, mean, out=y),
        row_dots(y, y, inverse[:, 0]),
        call(np.multiply, inverse, scalar(share, inverse), out=inverse),
        *_inverse_root(inverse, epsilon, inverse),
        call(np.multiply, y, inverse, out=y),
    )


def _affine(y: Array, gamma: Any, beta: Any) -> Iterator[Launch]:
    for function, vector in ((np.multiply, gamma), (np.add, beta)):
        if vector is not None:
            rows = y.reshape(y.size // max(vector.size, 1), vector.size)
            yield call(function, rows, vector, out=rows)


def _row_parts(query: KernelQuery) -> tuple[tuple[Shape, DTypeLike], ...]:
    """Return the workspace parts: two numbers per row."""
    type_ = query.inputs[0]
    norm = normal_axis(query.attrs["begin_norm_axis"], len(type_.shape))
    rows = (prod(type_.shape[:norm]), 1)
    return (rows, type_.dtype.numpy), (rows, type_.dtype.numpy)


def _layer_norm_grad(ctx: BindContext) -> Launches:
    dot, total = carve(ctx.workspace, *_row_parts(ctx.query))
    rows = dot.shape[0]
    matrices = [a.reshape(rows, a.size // max(rows, 1)) for a in (*ctx.inputs, *ctx.outputs)]
    dy, x, mean, inverse, dx = matrices
    launches: list[Launch] = []
    for b in _blocks(rows, ctx.query.inputs[0].nbytes):
        parts = dy[b], x[b], mean[b], inverse[b], dx[b], dot[b], total[b]
        launches += _layer_norm_dx(*parts)
    return launches


def _layer_norm_dx(
    dy: Array, x: Array, mean: Array, inverse: Array, dx: Array, dot: Array, total: Array
) -> Launches:
    """Return launches of dx = (n slope + dy + offset) inverse, with n = (x - mean) inverse."""
    share = -1 / x.shape[1]
    return (
        call(np.subtract, x, mean, out=dx),
        call(np.multiply, dx, inverse, out=dx),
        row_dots(dy, dx, dot[:, 0]),
        call(np.multiply, dot, scalar(share, dot), out=dot),
        row_sum(dy, total, share),
        call(np.multiply, dx, dot, out=dx),
        call(np.add, dx, dy, out=dx),
        call(np.add, dx, total, out=dx),
        call(np.multiply, dx, inverse, out=dx),
    )


def _gamma_parts(query: KernelQuery) -> tuple[tuple[Shape, DTypeLike], ...]:
    """Return the workspace parts: the normalized values of a block, and partial sums per block."""
    type_ = query.inputs[0]
    norm, begin = layer_axes(len(type_.shape), query.attrs)
    _, blocks = _leading(type_, min(norm, begin))
    item = prod(type_.shape[min(norm, begin) :])
    largest = max((b.stop - b.start for b in blocks), default=0)
    width = prod(type_.shape[begin:])
    return ((largest, item), type_.dtype.numpy), ((len(blocks), width), type_.dtype.numpy)


def _layer_norm_gamma_grad(ctx: BindContext) -> Launches:
    dy = ctx.inputs[0]
    norm, begin = layer_axes(dy.ndim, ctx.attrs)
    items, blocks = _leading(ctx.query.inputs[0], min(norm, begin))
    normal, sums = carve(ctx.workspace, *_gamma_parts(ctx.query))
    launches: list[Launch] = []
    parts = [_item_blocks(items, blocks, a) for a in ctx.inputs]
    for k, (dy_part, x, mean, inverse) in enumerate(zip(*parts, strict=True)):
        values = normal[: x.shape[0]]
        rows = values.reshape(-1, prod(dy.shape[norm:]))
        width = dy_part.size // max(sums.shape[1], 1), sums.shape[1]
        launches += (
            call(np.subtract, x.reshape(rows.shape), mean.reshape(-1, 1), out=rows),
            call(np.multiply, rows, inverse.reshape(-1, 1), out=rows),
            column_dots(dy_part.reshape(width), values.reshape(width), sums[k]),
        )
    return (*launches, column_sum(sums, ctx.outputs[0]))


def _layer_norm_param_grad(ctx: BindContext) -> Launches:
    """Return the launches; the last one writes normalized_diff, since it can alias dy."""
    (dy, normalized, gamma), (out, d_beta, d_gamma) = ctx.inputs, ctx.outputs
    shape = (dy.size // max(gamma.size, 1), gamma.size)
    dy, normalized, out = (a.reshape(shape) for a in (dy, normalized, out))
    return (
        column_sum(dy, d_beta),
        column_dots(dy, normalized, d_gamma.reshape(-1)),
        call(np.multiply, dy, gamma.reshape(-1), out=out),
    )


# --- L2 normalization: x is viewed as (outer, length, inner)


def _fold_axis(array: Array, axis: int) -> Array:
    axis %= array.ndim
    shape = array.shape
    return array.reshape(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))


def _axis_dots(x: Array, y: Array, out: Array) -> Launch:
    return partial(np.einsum, "aib,aib->ab", x, y, out=out[:, 0, :])


def _l2_parts(query: KernelQuery) -> tuple[tuple[Shape, DTypeLike], ...]:
    """Return the workspace parts: two numbers and a flag per vector."""
    squares = query.outputs[1] if len(query.outputs) > 1 else query.inputs[2]
    part = (squares.shape, squares.dtype.numpy)
    return part, part, (squares.shape, np.dtype(np.bool_))


def _norm(squares: Array, epsilon: float, out: Array) -> Launches:
    return (call(np.maximum, squares, scalar(epsilon, out), out=out), call(np.sqrt, out, out=out))


def _l2_normalize(ctx: BindContext) -> Launches:
    (x,), (y, squares), axis = ctx.inputs, ctx.outputs, ctx.attrs["axis"]
    norm = carve(ctx.workspace, *_l2_parts(ctx.query))[0]
    folded = _fold_axis(x, axis)
    return (
        _axis_dots(folded, folded, _fold_axis(squares, axis)),
        *_norm(squares, ctx.attrs["epsilon"], norm),
        call(np.divide, x, norm, out=y),
    )


def _l2_normalize_grad(ctx: BindContext) -> Launches:
    (dy, y, squares), (dx,), axis = ctx.inputs, ctx.outputs, ctx.attrs["axis"]
    norm, inner, small = carve(ctx.workspace, *_l2_parts(ctx.query))
    epsilon = ctx.attrs["epsilon"]
    return (
        _axis_dots(_fold_axis(dy, axis), _fold_axis(y, axis), _fold_axis(inner, axis)),
        call(np.less, squares, scalar(epsilon, squares), out=small),
        partial(np.copyto, inner, 0, where=small),
        *_norm(squares, epsilon, norm),
        call(np.multiply, y, inner, out=dx),
        call(np.subtract, dy, dx, out=dx),
        call(np.divide, dx, norm, out=dx),
    )


KERNELS: tuple[KernelSpec, ...] = (
    widened("normalization", _batch_norm, parts=_channel_parts, mutates=(1, 2)),
    widened("normalization_grad", _batch_norm_grad, parts=_channel_parts),
    widened("layer_norm", _layer_norm),
    widened("layer_norm_grad", _layer_norm_grad, parts=_row_parts),
    widened("layer_norm_gamma_grad", _layer_norm_gamma_grad, parts=_gamma_parts),
    widened("layer_norm_param_grad", _layer_norm_param_grad),
    widened("l2_normalize", _l2_normalize, parts=_l2_parts),
    widened("l2_normalize_grad", _l2_normalize_grad, parts=_l2_parts),
)
