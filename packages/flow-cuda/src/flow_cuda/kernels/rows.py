"""Kernels of softmax, losses and L2 normalization, with one block per row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelSpec
from flow_cuda.device.launch import Read, call
from flow_cuda.kernels.binding import c_type, kernel

HEADER = "rows.h"


def _extent(ctx: BindContext) -> tuple[int, int, int]:
    """Return the number of rows, the length of a row, and the stride of its elements."""
    shape = ctx.query.inputs[0].shape
    axis: int = ctx.attrs.get("axis", -1) % len(shape)
    inner = prod(shape[axis + 1 :])
    return prod(shape[:axis]) * inner, shape[axis], inner


def _rows(function: str, ctx: BindContext) -> Launch:
    """Bind a kernel function with arguments (inputs, outputs, rows, length, stride[, epsilon])."""
    rows, n, inner = _extent(ctx)
    numbers = (ctx.attrs["epsilon"],) if "epsilon" in ctx.attrs else ()
    types = (c_type(ctx.query.inputs[0]),)
    values = (*map(Read, ctx.inputs), *ctx.outputs, rows, n, inner, *numbers)
    return call(function, HEADER, types, *values, items=rows, blocks=True)


def _loss(function: str, blocks: bool, ctx: BindContext) -> Launch:
    """Bind a loss with arguments (inputs, outputs, rows, classes), for any type of labels."""
    x, label = ctx.query.inputs[:2]
    rows, n = prod(x.shape[:-1]), x.shape[-1]
    types = (c_type(x),) if label.dtype is x.dtype else (c_type(x), c_type(label))
    values = (*map(Read, ctx.inputs), *ctx.outputs, rows, n)
    items = rows if blocks or function == "entropy" else rows * n
    return call(function, HEADER, types, *values, items=items, blocks=blocks)


ROWS = ("softmax", "softmax_grad", "log_softmax", "log_softmax_grad", "l2_normalize",
        "l2_normalize_grad")  # fmt: skip
LOSSES = {
    "softmax_cross_entropy": ("dense_loss", True),
    "softmax_cross_entropy_grad": ("dense_loss_grad", True),
    "sparse_softmax_cross_entropy": ("sparse_loss", True),
    "sparse_softmax_cross_entropy_grad": ("sparse_loss_grad", False),
    "sparse_cross_entropy": ("entropy", False),
    "sparse_cross_entropy_grad": ("entropy_grad", False),
}
"""The kernel function of each loss, and whether one block processes a row."""

_BINDS: dict[str, Callable[[BindContext], Launch]] = {
    **{op: partial(_rows, op) for op in ROWS},
    **{op: partial(_loss, *row) for op, row in LOSSES.items()},
}

KERNELS: tuple[KernelSpec, ...] = tuple(kernel(op, bind) for op, bind in _BINDS.items())
