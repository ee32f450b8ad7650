"""Kernels of softmax, losses and L2 normalization."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelSpec
from flow_cuda.device.launch import Read, call
from flow_cuda.kernels.binding import c_type, call_rows, kernel

HEADER = "rows.h"
HEADERS = ("row.h", HEADER)


def _extent(ctx: BindContext) -> tuple[int, int, int]:
    """Return the number of rows, the length of a row, and the stride of its elements."""
    shape = ctx.query.inputs[0].shape
    axis: int = ctx.attrs.get("axis", -1) % len(shape)
    inner = prod(shape[axis + 1 :])
    return prod(shape[:axis]) * inner, shape[axis], inner


def _rows(function: str, ctx: BindContext) -> Launch:
    """Bind a kernel function with arguments (inputs, outputs, rows, length, stride)."""
    extent, arrays = _extent(ctx), (*ctx.inputs, *ctx.outputs)
    values = (*map(Read, ctx.inputs), *ctx.outputs, *extent)
    types = (c_type(ctx.query.inputs[0]),)
    return call_rows(function, HEADER, types, arrays, *values, extent=extent)


def _loss(function: str, ctx: BindContext) -> Launch:
    """Bind a loss with arguments (inputs, outputs, rows, classes), for any type of labels."""
    x, label = ctx.query.inputs[:2]
    rows, n = prod(x.shape[:-1]), x.shape[-1]
    types = (c_type(x),) if label.dtype is x.dtype else (c_type(x), c_type(label))
    values = (*map(Read, ctx.inputs), *ctx.outputs, rows, n)
    if function in BY_ROW:
        wide = (*ctx.inputs, *ctx.outputs)
        arrays = [a for a in wide if a.shape == x.shape]
        return call_rows(function, HEADER, types, arrays, *values, extent=(rows, n, 1))
    return call(function, HEADERS, types, *values, items=x.size)


ROWS = ("softmax", "softmax_grad", "log_softmax", "log_softmax_grad")
LOSSES = {
    "softmax_cross_entropy": "dense_loss",
    "softmax_cross_entropy_grad": "dense_loss_grad",
    "sparse_softmax_cross_entropy": "sparse_loss",
    "sparse_softmax_cross_entropy_grad": "sparse_loss_grad",
}
"""The kernel function of each loss."""
BY_ROW = ("dense_loss", "dense_loss_grad", "sparse_loss")
"""The functions whose threads share rows."""

_BINDS: dict[str, Callable[[BindContext], Launch]] = {
    **{op: partial(_rows, op) for op in ROWS},
    **{op: partial(_loss, function) for op, function in LOSSES.items()},
}

KERNELS: tuple[KernelSpec, ...] = tuple(kernel(op, bind) for op, bind in _BINDS.items())
