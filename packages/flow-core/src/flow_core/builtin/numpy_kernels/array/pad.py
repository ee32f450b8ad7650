"""Kernels of padding and tril: copies between views that are created once, and fills."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.array.select import copied, copy, fill
from flow_core.builtin.numpy_kernels.binding import kernel, scalar
from flow_core.device import Launch
from flow_core.ops.array.pad import pad_value, tril_value, unpadded
from flow_core.plugins.specs import BindContext, KernelSpec


def _borders(inner: Sequence[slice], shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yield disjoint regions, two per padded axis, that cover everything outside of ``inner``."""
    for axis, (part, size) in enumerate(zip(inner, shape, strict=True)):
        for border in (slice(0, part.start), slice(part.stop, size)):
            if border.start < border.stop:
                yield (*inner[:axis], border)


def _pad(ctx: BindContext) -> Sequence[Launch]:
    (x,), (y,) = ctx.inputs, ctx.outputs
    inner = unpadded(y.shape, ctx.attrs["padding_before"], ctx.attrs["padding_after"])
    value = pad_value(ctx.attrs, ctx.query.inputs[0].dtype.is_floating)
    borders = (fill(y[border], value) for border in _borders(inner, y.shape))
    return (copy(y[inner], x), *borders)


def _pad_grad(ctx: BindContext) -> Launch:
    (dy,), (dx,) = ctx.inputs, ctx.outputs
    return copy(dx, dy[unpadded(dy.shape, ctx.attrs["padding_before"], ctx.attrs["padding_after"])])


def _mirrors(size: int, pad: int) -> tuple[tuple[slice, slice], ...]:
    """Return (target, source) slices along one axis: the interior, then the mirrored borders."""
    middle = (slice(pad, pad + size), slice(0, size))
    if pad == 0:
        return (middle,)
    stop = size - 2 - pad
    before = (slice(0, pad), slice(pad, 0, -1))
    after = (slice(pad + size, None), slice(size - 2, None if stop < 0 else stop, -1))
    return middle, before, after


def _reflections(x: Array, padding: Sequence[int], padded: Array) -> list[tuple[Array, Array]]:
    """Return pairs of a view of the padded array and a view of ``x``, the interior first."""
    rows, columns = (_mirrors(x.shape[axis], padding[axis]) for axis in (2, 3))
    return [
        (padded[:, :, to_row, to_column], x[:, :, row, column])
        for (to_row, row), (to_column, column) in product(rows, columns)
    ]


def _reflection(ctx: BindContext) -> Sequence[Launch]:
    pairs = _reflections(ctx.inputs[0], ctx.attrs["padding"], ctx.outputs[0])
    return tuple(copy(target, source) for target, source in pairs)


def _reflection_grad(ctx: BindContext) -> Sequence[Launch]:
    (_, middle), *borders = (
        (dx, dy) for dy, dx in _reflections(ctx.outputs[0], ctx.attrs["padding"], ctx.inputs[0])
    )
    adds = (call(np.add, dx, dy, out=dx) for dx, dy in borders)
    return (copy(ctx.outputs[0], middle), *adds)


def _upper_fill(ctx: BindContext, out: Array) -> Launch:
    upper = ~np.tri(out.shape[-2], out.shape[-1], ctx.attrs["diagonal"], bool)
    return partial(np.copyto, out, scalar(tril_value(ctx.attrs, "fill"), out), where=upper)


def _tril(ctx: BindContext) -> Sequence[Launch]:
    (x,), (y,) = ctx.inputs, ctx.outputs
    return (*copied(y, x), _upper_fill(ctx, y))


def _scaled_tril(ctx: BindContext) -> Sequence[Launch]:
    (x,), (y,) = ctx.inputs, ctx.outputs
    scale = scalar(tril_value(ctx.attrs, "scale"), x)
    return call(np.multiply, x, scale, out=y), _upper_fill(ctx, y)


KERNELS: tuple[KernelSpec, ...] = (
    kernel("pad", _pad),
    kernel("pad_grad", _pad_grad),
    kernel("reflection_pad2d", _reflection),
    kernel("reflection_pad2d_grad", _reflection_grad),
    kernel("tril", _tril),
    kernel("fused_scale_tril", _scaled_tril),
)
