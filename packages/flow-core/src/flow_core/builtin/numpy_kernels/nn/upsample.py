"""Kernels of upsampling: they copy rows and columns, or multiply by two small matrices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import carve, kernel
from flow_core.device import Launch
from flow_core.ops.nn.upsample import SCALES, interpolation_matrix, nearest_indices
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

Parts = list[tuple[tuple[int, ...], Any]]


def _copies(query: KernelQuery) -> bool:
    """Return whether the op only copies elements."""
    return query.op == "upsample" and query.attrs["interpolation"] == "nearest"


def _parts(query: KernelQuery) -> Parts:
    """Return the workspace parts: the result along one axis; float32 copies of 16-bit tensors."""
    a, b = query.inputs[0], query.outputs[0]
    shape = (*a.shape[:2], b.shape[2], a.shape[3])
    if _copies(query):
        return [(shape, b.dtype.numpy)]
    dtype = b.dtype.accumulate
    shapes = [shape] if dtype is b.dtype else [shape, a.shape, b.shape]
    return [(s, dtype.numpy) for s in shapes]


def _bind(ctx: BindContext) -> Sequence[Launch]:
    (x,), (y,) = ctx.inputs, ctx.outputs
    if not prod(y.shape):
        return ()
    middle, *staged = carve(ctx.workspace, *_parts(ctx.query))
    if _copies(ctx.query):
        return _bind_copies(ctx, x, middle, y)
    rows, columns = _matrices(ctx, middle.dtype)
    if not staged:
        return partial(np.matmul, rows, x, middle), partial(np.matmul, middle, columns, y)
    wide, result = staged
    return (
        partial(np.copyto, wide, x, casting="unsafe"),
        partial(np.matmul, rows, wide, middle),
        partial(np.matmul, middle, columns, result),
        partial(np.copyto, y, result, casting="unsafe"),
    )


def _bind_copies(ctx: BindContext, x: Array, middle: Array, y: Array) -> Sequence[Launch]:
    rows, columns = (
        nearest_indices(n, ctx.attrs[k]) for n, k in zip(x.shape[2:], SCALES, strict=True)
    )
    return (
        partial(np.take, x, rows, 2, middle, "clip"),
        partial(np.take, middle, columns, 3, y, "clip"),
    )


def _matrices(ctx: BindContext, dtype: DTypeLike) -> tuple[Array, Array]:
    """Return the interpolation matrices by which images are multiplied from left and right."""
    (x,), (y,) = ctx.inputs, ctx.outputs
    small, back = (x, False) if ctx.query.op == "upsample" else (y, True)
    rows, columns = (
        interpolation_matrix(n, ctx.attrs[k], ctx.attrs["interpolation"]).astype(dtype)
        for n, k in zip(small.shape[2:], SCALES, strict=True)
    )
    return (rows.T, columns) if back else (rows, columns.T)


KERNELS: tuple[KernelSpec, ...] = tuple(
    kernel(op, _bind, parts=_parts) for op in ("upsample", "upsample_grad")
)
