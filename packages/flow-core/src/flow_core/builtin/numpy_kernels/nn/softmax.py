"""Kernels of softmax and the losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.base.errors import DataError
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes, kernel, scalar
from flow_core.builtin.numpy_kernels.rows import row_max, row_sum
from flow_core.builtin.numpy_kernels.widening import widened
from flow_core.device import Launch
from flow_core.ops.nn.softmax import SMALLEST_PROBABILITY
from flow_core.plugins.batchable import rowwise
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

Launches = Sequence[Launch]
Shape = tuple[int, ...]


# --- softmax along any axis: arrays are viewed as (outer, classes, inner)


def _folded(shape: Shape, axis: int) -> tuple[int, int, int]:
    axis %= len(shape)
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def _along_axis_parts(query: KernelQuery) -> tuple[tuple[Shape, DTypeLike], ...]:
    """Return the workspace parts: one number per row, and one per element."""
    type_ = query.inputs[0]
    outer, classes, inner = _folded(type_.shape, query.attrs["axis"])
    dtype = type_.dtype.numpy
    return ((outer, 1, inner), dtype), ((outer, classes, inner), dtype)


def _maxima(x: Array, out: Array, scratch: Array) -> Launches:
    if x.shape[2] == 1:
        return row_max(x[:, :, 0], out[:, :, 0], scratch)
    return (partial(np.maximum.reduce, x, axis=1, out=out, keepdims=True),)


def _sums(x: Array, out: Array) -> Launch:
    if x.shape[2] == 1:
        return row_sum(x[:, :, 0], out[:, :, 0])
    return partial(np.add.reduce, x, axis=1, out=out, keepdims=True)


def _views(ctx: BindContext) -> tuple[Any, ...]:
    """Return the folded views of inputs and output, then the parts of the workspace."""
    shape = _folded(ctx.inputs[0].shape, ctx.attrs["axis"])
    arrays = [x.reshape(shape) for x in (*ctx.inputs, *ctx.outputs)]
    return (*arrays, *carve(ctx.workspace, *_along_axis_parts(ctx.query)))


def _softmax(ctx: BindContext) -> Launches:
    x, y, row, whole = _views(ctx)
    return (
        *_maxima(x, row, whole),
        call(np.subtract, x, row, out=y),
        call(np.exp, y, out=y),
        _sums(y, row),
        call(np.divide, y, row, out=y),
    )


def _softmax_grad(ctx: BindContext) -> Launches:
    y, dy, dx, row, whole = _views(ctx)
    return (
        call(np.multiply, y, dy, out=whole),
        _sums(whole, row),
        call(np.subtract, dy, row, out=dx),
        call(np.multiply, dx, y, out=dx),
    )


def _log_softmax(ctx: BindContext) -> Launches:
    x, y, row, whole = _views(ctx)
    return (
        *_maxima(x, row, whole),
        call(np.subtract, x, row, out=y),
        call(np.exp, y, out=whole),
        _sums(whole, row),
        call(np.log, row, out=row),
        call(np.subtract, y, row, out=y),
    )


def _log_softmax_grad(ctx: BindContext) -> Launches:
    y, dy, dx, row, whole = _views(ctx)
    return (
        call(np.exp, y, out=whole),
        _sums(dy, row),
        call(np.multiply, whole, row, out=whole),
        call(np.subtract, dy, whole, out=dx),
    )


# --- cross entropies: predictions are viewed as (rows, classes)


def _matrix(x: Array) -> Array:
    return x.reshape(-1 if x.size else 0, x.shape[-1])


def _loss_parts(query: KernelQuery) -> tuple[tuple[Shape, DTypeLike], ...]:
    """Return the workspace parts: a matrix of predictions, two numbers and an index per row."""
    type_ = query.inputs[0]
    rows, classes = prod(type_.shape[:-1]), type_.shape[-1]
    dtype = type_.dtype.numpy
    return ((rows, classes), dtype), ((rows, 1), dtype), ((rows, 1), dtype), ((rows,), np.intp)


def _row_parts(query: KernelQuery) -> tuple[tuple[Shape, DTypeLike], ...]:
    return _loss_parts(query)[2:]


def _label_check(ctx: BindContext, label: Array) -> Launches:
    """Return a launch that raises `DataError` if any label is outside of [0, depth)."""
    if not label.size:
        return ()
    bits = label.view(f"u{label.itemsize}").reshape(-1)  # negative labels become large numbers
    depth = ctx.attrs["depth"]
    limit = min(depth, np.iinfo(label.dtype).max + 1)
    largest = np.zeros((), bits.dtype)
    reduce = partial(np.maximum.reduce, bits, out=largest)

    def launch() -> None:
        reduce()
        if int(largest) >= limit:
            _raise_label(ctx.query.op, label, depth)

    return (launch,)


def _raise_label(op: str, label: Array, depth: int) -> None:
    bad = label[(label < 0) | (label >= depth)]
    raise DataError(
        f"running {op}",
        found=f"{bad.size} of {label.size} labels outside of the classes, such as {bad.flat[0]}",
        allowed=f"0 <= label < {depth}, the number of classes",
    )


def _label_indices(label: Array, depth: int, out: Array) -> Launches:
    """Return launches that write the labels' flat indices in a matrix of ``depth`` columns."""
    starts = np.arange(label.size, dtype=np.intp) * depth
    flat = label.reshape(-1)
    return partial(np.copyto, out, flat), call(np.add, out, starts, out=out)


def _gather(matrix: Array, indices: Array, out: Array) -> Launches:
    """Return a launch that gathers at valid indices; mode "clip" avoids NumPy's output buffer."""
    if not indices.size:
        return ()
    return (partial(matrix.reshape(-1).take, indices, None, out, "clip"),)


def _scatter(matrix: Array, indices: Array, values: Array) -> Launches:
    if not indices.size:
        return ()
    return (partial(matrix.reshape(-1).put, indices, values, "clip"),)


def _normalize(prob: Array, row: Array) -> Launches:
    """Return launches that turn the shifted logits in ``prob`` into probabilities.

    ``row`` gets the logarithm of each row's sum of exponentials.
    """
    return (
        call(np.exp, prob, out=prob),
        row_sum(prob, row),
        call(np.divide, prob, row, out=prob),
        call(np.log, row, out=row),
    )


def _sparse_softmax_loss(ctx: BindContext) -> Launches:
    x, label = _matrix(ctx.inputs[0]), ctx.inputs[1]
    prob, out = _matrix(ctx.outputs[0]), ctx.outputs[1].reshape(-1)
    whole, row, _, indices = carve(ctx.workspace, *_loss_parts(ctx.query))
    return (
        *_label_check(ctx, label),
        *row_max(x, row, whole),
        call(np.subtract, x, row, out=prob),
        *_label_indices(label, x.shape[1], indices),
        *_gather(prob, indices, out),
        *_normalize(prob, row),
        call(np.subtract, row[:, 0], out, out=out),
    )


def _sparse_softmax_loss_grad(ctx: BindContext) -> Launches:
    prob, label, dy = _matrix(ctx.inputs[0]), ctx.inputs[1], ctx.inputs[2].reshape(-1)
    dx = _matrix(ctx.outputs[0])
    row, indices = carve(ctx.workspace, *_row_parts(ctx.query))
    at_label = row[:, 0]
    return (
        *_label_check(ctx, label),
        call(np.multiply, prob, dy[:, None], out=dx),
        *_label_indices(label, prob.shape[1], indices),
        *_gather(dx, indices, at_label),
        call(np.subtract, at_label, dy, out=at_label),
        *_scatter(dx, indices, at_label),
    )


def _dense_softmax_loss(ctx: BindContext) -> Launches:
    """Return launches that compute log(sum(exp(z))) sum(label) - sum(label z).

    The logits z are clamped to the lowest finite number, which keeps 0 * -inf out of the sum if a
    logit of -inf has a label of 0.
    """
    (x, label), prob = map(_matrix, ctx.inputs), _matrix(ctx.outputs[0])
    out = ctx.outputs[1].reshape(-1)
    whole, row, total, _ = carve(ctx.workspace, *_loss_parts(ctx.query))
    lowest = scalar(np.finfo(x.dtype).min, x)
    return (
        *row_max(x, row, whole),
        call(np.subtract, x, row, out=prob),
        call(np.maximum, prob, lowest, out=prob),
        call(np.multiply, prob, label, out=whole),
        row_sum(whole, out[:, None]),
        *_normalize(prob, row),
        row_sum(label, total),
        call(np.multiply, row, total, out=row),
        call(np.subtract, row[:, 0], out, out=out),
    )


def _dense_softmax_loss_grad(ctx: BindContext) -> Launches:
    prob, label = _matrix(ctx.inputs[0]), _matrix(ctx.inputs[1])
    dy, dx = ctx.inputs[2].reshape(-1), _matrix(ctx.outputs[0])
    return (call(np.subtract, prob, label, out=dx), call(np.multiply, dx, dy[:, None], out=dx))


def _sparse_loss(ctx: BindContext) -> Launches:
    x, label, out = _matrix(ctx.inputs[0]), ctx.inputs[1], ctx.outputs[0].reshape(-1)
    _, indices = carve(ctx.workspace, *_row_parts(ctx.query))
    return (
        *_label_check(ctx, label),
        *_label_indices(label, x.shape[1], indices),
        *_gather(x, indices, out),
        call(np.maximum, out, scalar(SMALLEST_PROBABILITY, out), out=out),
        call(np.log, out, out=out),
        call(np.negative, out, out=out),
    )


def _sparse_loss_grad(ctx: BindContext) -> Launches:
    x, label, dy = _matrix(ctx.inputs[0]), ctx.inputs[1], ctx.inputs[2].reshape(-1)
    dx = _matrix(ctx.outputs[0])
    row, indices = carve(ctx.workspace, *_row_parts(ctx.query))
    at_label = row[:, 0]
    return (
        *_label_check(ctx, label),
        *_label_indices(label, x.shape[1], indices),
        *_gather(x, indices, at_label),
        call(np.maximum, at_label, scalar(SMALLEST_PROBABILITY, x), out=at_label),
        call(np.divide, dy, at_label, out=at_label),
        call(np.negative, at_label, out=at_label),
        partial(dx.fill, 0),
        *_scatter(dx, indices, at_label),
    )


# --- losses per element; they can be bound to tiles, so that sizes are taken from the arrays


def _two_elements_each(query: KernelQuery) -> int:
    type_ = query.outputs[0]
    part = (type_.shape, type_.dtype.numpy)
    return carved_bytes(part, part)


def _two_like(ctx: BindContext) -> tuple[Array, ...]:
    out = ctx.outputs[0]
    return carve(ctx.workspace, (out.shape, out.dtype), (out.shape, out.dtype))


def _same_type(label: Array, spare: Array) -> tuple[Array, Launches]:
    """Return the label in the element type of ``spare``, and the launches that convert it."""
    if label.dtype == spare.dtype:
        return label, ()
    return spare, (partial(np.copyto, spare, label, casting="unsafe"),)


def _sigmoid_loss(ctx: BindContext) -> Launches:
    (x, label), (loss,) = ctx.inputs, ctx.outputs
    t, spare = _two_like(ctx)
    label, bring = _same_type(label, spare)
    return (
        *bring,
        call(np.abs, x, out=t),
        call(np.negative, t, out=t),
        call(np.exp, t, out=t),
        call(np.log1p, t, out=t),
        call(np.maximum, x, scalar(0, x), out=loss),
        call(np.add, loss, t, out=loss),
        call(np.multiply, x, label, out=t),
        call(np.subtract, loss, t, out=loss),
    )


def _sigmoid_loss_grad(ctx: BindContext) -> Launches:
    (x, label, dy), (dx,) = ctx.inputs, ctx.outputs
    label, bring = _same_type(label, _two_like(ctx)[1])
    return (
        *bring,
        call(np.negative, x, out=dx),
        call(np.exp, dx, out=dx),
        call(np.add, dx, scalar(1, dx), out=dx),
        call(np.reciprocal, dx, out=dx),
        call(np.subtract, dx, label, out=dx),
        call(np.multiply, dx, dy, out=dx),
    )


def _smooth_l1(ctx: BindContext) -> Launches:
    """Return launches of the loss c (d - c/2) / beta, where d = |x - label| and c = min(d, beta).

    This formula holds for both branches of the loss.
    """
    (x, label), (loss,), beta = ctx.inputs, ctx.outputs, ctx.attrs["beta"]
    distance = call(np.subtract, x, label, out=loss), call(np.abs, loss, out=loss)
    if beta == 0:
        return distance
    half = _two_like(ctx)[0]
    return (
        *distance,
        call(np.minimum, loss, scalar(beta, loss), out=half),
        call(np.multiply, half, scalar(0.5, loss), out=half),
        call(np.subtract, loss, half, out=loss),
        call(np.multiply, loss, half, out=loss),
        call(np.multiply, loss, scalar(2 / beta, loss), out=loss),
    )


def _smooth_l1_grad(ctx: BindContext) -> Launches:
    (x, label, dy), (dx,), beta = ctx.inputs, ctx.outputs, ctx.attrs["beta"]
    slope: Launches = (call(np.sign, dx, out=dx),)
    if beta:
        slope = (
            call(np.multiply, dx, scalar(1 / beta, dx), out=dx),
            call(np.minimum, dx, scalar(1, dx), out=dx),
            call(np.maximum, dx, scalar(-1, dx), out=dx),
        )
    return (call(np.subtract, x, label, out=dx), *slope, call(np.multiply, dx, dy, out=dx))


def _elementwise(op: str, bind: Callable[[BindContext], Launches]) -> KernelSpec:
    return kernel(op, bind, workspace=_two_elements_each)


KERNELS: tuple[KernelSpec, ...] = (
    widened("softmax", _softmax, parts=_along_axis_parts),
    widened("softmax_grad", _softmax_grad, parts=_along_axis_parts),
    widened("log_softmax", _log_softmax, parts=_along_axis_parts),
    widened("log_softmax_grad", _log_softmax_grad, parts=_along_axis_parts),
    widened("softmax_cross_entropy", _dense_softmax_loss, parts=_loss_parts),
    widened("softmax_cross_entropy_grad", _dense_softmax_loss_grad, batchable=rowwise),
    widened("sparse_softmax_cross_entropy", _sparse_softmax_loss, parts=_loss_parts),
    widened(
        "sparse_softmax_cross_entropy_grad",
        _sparse_softmax_loss_grad,
        parts=_row_parts,
        batchable=rowwise,
    ),
    widened("sparse_cross_entropy", _sparse_loss, parts=_row_parts),
    widened("sparse_cross_entropy_grad", _sparse_loss_grad, parts=_row_parts),
    _elementwise("sigmoid_cross_entropy", _sigmoid_loss),
    _elementwise("sigmoid_cross_entropy_grad", _sigmoid_loss_grad),
    _elementwise("smooth_l1_loss", _smooth_l1),
    _elementwise("smooth_l1_loss_grad", _smooth_l1_grad),
)
