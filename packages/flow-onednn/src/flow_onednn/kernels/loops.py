"""The kernels that call the C loops: updates, dropout masks, sums, losses and layer norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NoReturn

import numpy as np

from flow_core.authoring.backends import Launch, rowwise
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_core.authoring.update_rules import BY_TYPE, COMMON, RATE, TABLE, Update
from flow_core.base.alignment import aligned
from flow_core.base.arrays import Array
from flow_core.base.errors import DataError
from flow_onednn import threads
from flow_onednn.binding import CData
from flow_onednn.kernels.upcast import RowLoop, is_half, with_upcast
from flow_onednn.native import compiler
from flow_onednn.native.calls import call
from flow_onednn.primitives import address
from flow_onednn.recipes import PRIORITY
from flow_onednn.threads import partition_count

Accepts = Callable[[KernelQuery], bool]
FLOAT_BYTES = 4


def pointer(array: Array, kind: str = "float *") -> CData:
    """Return a C pointer to the data of an array."""
    return compiler.ffi(compiler.CDEF).cast(kind, address(array))


def null() -> CData:
    """Return the null pointer, which stands for an absent argument."""
    return compiler.ffi(compiler.CDEF).NULL


def _all_float32(query: KernelQuery) -> bool:
    return all(t.dtype.name == "float32" for t in (*query.inputs, *query.outputs))


def loop_kernel(
    op: str, bind: Callable[[BindContext], Launch | list[Launch]], accepts: Accepts = _all_float32,
    workspace: Callable[[KernelQuery], int] | None = None,
) -> KernelSpec:  # fmt: skip
    """Return the `KernelSpec` of an op that a C loop computes."""
    takes = _with_compiler(accepts)
    return KernelSpec(op, "cpu", bind, takes, PRIORITY, workspace, f"c.{op}")


def _with_compiler(accepts: Accepts) -> Accepts:
    return lambda query: accepts(query) and query.inputs[0].size > 0 and compiler.available()


def upcast_loop_kernel(
    op: str, bind: Callable[[BindContext], Launch | list[Launch]], accepts: Accepts = _all_float32,
    workspace: Callable[[KernelQuery], int] | None = None, rows: RowLoop | None = None,
) -> KernelSpec:  # fmt: skip
    """Return the `KernelSpec` of a C loop that mutates no input, extended to bfloat16."""
    loop = loop_kernel(op, bind, accepts, workspace)
    return with_upcast(loop, _with_compiler(accepts), rows=rows)


def _only_half(spec: KernelSpec) -> KernelSpec:
    """Restrict a kernel to bfloat16."""
    accepts = spec.accepts
    if accepts is None:
        raise LookupError(f"the kernel of {spec.op} has no predicate")
    return replace(spec, accepts=lambda query: is_half(query.inputs[0]) and accepts(query))


# --- updates

PAIR_BYTES = 16
MIN_PARTITION = 1 << 14
"""Minimum number of elements of a partial sum; equals `PARALLEL` in `native/functions.h`."""


def update_numbers(row: Update, attrs: Mapping[str, Any]) -> CData:
    """Return the attributes that all updates have, absent ones as 0, then those of the rule."""
    values = [float(attrs.get(name, 0.0)) for name in (*COMMON, *row.attrs)]
    return compiler.ffi(compiler.CDEF).new("double[]", values)


def pointers(*arrays: Array) -> CData:
    """Return a C array of the pointers to the data of arrays."""
    return compiler.ffi(compiler.CDEF).new("void *[]", [pointer(a, "void *") for a in arrays])


def _norm_parts(query: KernelQuery) -> int:
    return partition_count(query.inputs[0].size, MIN_PARTITION)


def _is_updated(query: KernelQuery) -> bool:
    """Return whether all inputs but the step number are float32."""
    step = RATE + 1 if BY_TYPE[query.op].step else None
    return all(t.dtype.name == "float32" for i, t in enumerate(query.inputs) if i != step)


def _norm_bytes(query: KernelQuery) -> int:
    return aligned(_norm_parts(query) * PAIR_BYTES)


def _update(ctx: BindContext) -> Launch:
    row, (model, diff, rate, *_) = BY_TYPE[ctx.query.op], ctx.inputs
    states, factor = ctx.inputs[row.first_state : len(row.inputs)], ctx.inputs[len(row.inputs) :]
    return call(
        "update",
        TABLE.index(row), pointers(model, diff, *states), pointer(rate),
        pointer(factor[0]) if factor else null(),
        pointer(ctx.inputs[RATE + 1], "int64_t *") if row.step else null(),
        null() if row.local else pointer(ctx.workspace, "double *"),
        model.size, 1 if row.local else _norm_parts(ctx.query), update_numbers(row, ctx.attrs),
    )  # fmt: skip


# --- dropout masks


def _is_mask(query: KernelQuery) -> bool:
    return query.outputs[0].dtype.name == "int8" and query.attrs["place"] is None


def _mask(ctx: BindContext) -> Launch:
    (keep,), seed = ctx.outputs, ctx.attrs["seed"]
    key = (ctx.seed if seed is None else int(seed)) & (1 << 64) - 1
    step = pointer(ctx.step, "int64_t *")
    rate = ctx.attrs["rate"]
    launch: Any = call("dropout_mask", pointer(keep, "int8_t *"), step, key, keep.size, rate)
    return _keeping(launch, ctx.step)


def _keeping(launch: Launch, *arrays: Array) -> Launch:
    """Keep arrays alive as long as a launch that has their addresses, and return the launch."""
    launch.arrays = arrays  # type: ignore[attr-defined]  # partials have attributes
    return launch


# --- sums


def _sum_form(query: KernelQuery) -> tuple[str, int, int, int] | None:
    """Return the kind of loop and its numbers of matrices, rows and columns.

    Return None if the reduced axes are not adjacent.
    """
    shape, axes = query.inputs[0].shape, query.attrs["axis"]
    if not isinstance(axes, tuple) or not axes:
        return None
    gone = sorted(a % len(shape) for a in axes)
    first, end = gone[0], gone[-1] + 1
    if end - first > len(gone):
        return None
    stack, rows, columns = prod(shape[:first]), prod(shape[first:end]), prod(shape[end:])
    if end == len(shape):
        return "row", 1, stack, rows
    return ("column" if first == 0 else "stack"), stack, rows, columns


def _sums(query: KernelQuery) -> bool:
    return _all_float32(query) and _sum_form(query) is not None


def thread_parts(rows: int) -> int:
    """Return the number of parallel parts of a loop in which each row belongs to one thread."""
    return max(1, min(threads.count(), rows))


def sum_partitions(rows: int, columns: int) -> int:
    """Return the number of partial sums over rows; each of them is stored in a row of its own."""
    return partition_count(
        min(rows * columns, rows * (MIN_PARTITION // MIN_PARTITION_ROWS)), MIN_PARTITION
    )


MIN_PARTITION_ROWS = 16
"""Minimum number of rows of a partial sum."""


def _sum_bytes(query: KernelQuery) -> int:
    form = _sum_form(query)
    if form is None or form[0] != "column":
        return 0
    return aligned(sum_partitions(form[2], form[3]) * form[3] * FLOAT_BYTES)


def _sum(ctx: BindContext) -> Launch:
    form = _sum_form(ctx.query)
    x, y = pointer(ctx.inputs[0]), pointer(ctx.outputs[0])
    kind, stack, rows, columns = form or ("row", 1, 1, ctx.inputs[0].size)
    if kind == "stack":
        return call("stack_sums", x, y, stack, rows, columns)
    if kind == "row":
        return call("row_sums", x, y, rows, columns)
    partial_sums = pointer(ctx.workspace)
    return call("column_sums", x, y, partial_sums, rows, columns, sum_partitions(rows, columns))


def _mean(ctx: BindContext) -> list[Launch]:
    count = ctx.attrs["count"] or ctx.inputs[0].size // max(ctx.outputs[0].size, 1)
    out = ctx.outputs[0]
    return [_sum(ctx), partial(np.multiply, out, np.float32(1 / count), out)]


# --- levels


def _one_grid(query: KernelQuery) -> bool:
    return query.attrs["axis"] is None


def _levels(name: str, ctx: BindContext) -> Launch:
    kinds = [t.dtype.name for t in (*ctx.query.inputs, *ctx.query.outputs)]
    arrays = zip((*ctx.inputs, *ctx.outputs), kinds, strict=True)
    pointers_ = (pointer(x, "float *" if k == "float32" else f"{k}_t *") for x, k in arrays)
    n, c, *space = ctx.inputs[0].shape if name == "quantize_last" else (ctx.inputs[0].size, 1)
    sizes = (n, c, prod(space)) if space else (n,)
    return call(f"{name}_{kinds[2]}", *pointers_, *sizes)


# --- losses

WIDTHS = {"int64": 8, "int32": 4, "int8": 1, "uint8": -1}


def _labeled(query: KernelQuery) -> bool:
    floats = (*query.inputs[:1], *query.inputs[2:], *query.outputs)
    return query.inputs[1].dtype.name in WIDTHS and all(t.dtype.name == "float32" for t in floats)


def _loss_arguments(ctx: BindContext) -> tuple[Any, ...]:
    x, label = ctx.inputs[:2]
    width = WIDTHS[ctx.query.inputs[1].dtype.name]
    return x.size // x.shape[-1], x.shape[-1], width, pointer(label, "void *")


def _loss(ctx: BindContext) -> Launch:
    rows, columns, width, label = _loss_arguments(ctx)
    prob, loss = map(pointer, ctx.outputs)
    return call(
        "cross_entropy",
        pointer(ctx.inputs[0]), label, prob, loss, rows, columns, width, fail=_wrong_label(ctx),
    )  # fmt: skip


def _wrong_label(ctx: BindContext) -> Callable[[int], NoReturn]:
    return partial(_raise_label, ctx.query.op, ctx.inputs[1], ctx.inputs[0].shape[-1])


def _raise_label(op: str, label: Array, depth: int, count: int) -> NoReturn:
    """Raise `DataError`, since a loop has found ``count`` labels out of range."""
    bad = label[(label < 0) | (label >= depth)]
    raise DataError(
        f"running {op}",
        found=f"{count} of {label.size} labels outside of the classes, such as {bad.flat[0]}",
        allowed=f"0 <= label < {depth}, the number of classes",
    )


def _loss_grad(ctx: BindContext) -> Launch:
    rows, columns, width, label = _loss_arguments(ctx)
    prob, _, dy = ctx.inputs
    return call(
        "cross_entropy_grad",
        pointer(prob), label, pointer(dy), pointer(ctx.outputs[0]), rows, columns, width,
        fail=_wrong_label(ctx),
    )  # fmt: skip


# --- layer normalization


def _rows(query: KernelQuery) -> tuple[int, int]:
    shape = query.inputs[0].shape
    axis: Any = query.attrs["begin_norm_axis"]
    return prod(shape[: axis % len(shape)]), prod(shape[axis % len(shape) :])


def _params_per_row(query: KernelQuery) -> bool:
    """Return whether the parameters have the shape of a row."""
    rank = len(query.inputs[0].shape)
    norm, params = (query.attrs[f"begin_{k}_axis"] % rank for k in ("norm", "params"))
    return _all_float32(query) and norm == params


def _layer_norm(ctx: BindContext) -> Launch:
    rows, columns = _rows(ctx.query)
    x, *params = ctx.inputs
    gamma = pointer(params.pop()) if ctx.attrs["scale"] else null()
    beta = pointer(params.pop()) if ctx.attrs["center"] else null()
    outputs = map(pointer, ctx.outputs)
    epsilon = ctx.attrs["epsilon"]
    return call("layer_norm", pointer(x), beta, gamma, *outputs, rows, columns, epsilon)


def _layer_norm_grad(ctx: BindContext) -> Launch:
    arrays = map(pointer, (*ctx.inputs, *ctx.outputs))
    return call("layer_norm_grad", *arrays, *_rows(ctx.query))


def _gamma_bytes(query: KernelQuery) -> int:
    rows, columns = _rows(query)
    return aligned(sum_partitions(rows, columns) * columns * FLOAT_BYTES)


def _layer_norm_gamma_grad(ctx: BindContext) -> Launch:
    rows, columns = _rows(ctx.query)
    arrays = map(pointer, (*ctx.inputs, *ctx.outputs, ctx.workspace))
    parts = sum_partitions(rows, columns)
    return call("layer_norm_gamma_grad", *arrays, rows, columns, parts)


KERNELS: tuple[KernelSpec, ...] = (
    *(
        loop_kernel(row.type, _update, _is_updated, None if row.local else _norm_bytes)
        for row in TABLE
    ),
    loop_kernel("random_mask_like", _mask, _is_mask),
    # numpy sums with BLAS, whose threads keep spinning for tens of milliseconds beside OpenMP's
    upcast_loop_kernel("reduce_sum", _sum, _sums, _sum_bytes),
    upcast_loop_kernel("reduce_sum_like", _sum, _sums, _sum_bytes),
    _only_half(upcast_loop_kernel("reduce_mean", _mean, _sums, _sum_bytes)),  # else numpy's
    replace(loop_kernel("sparse_softmax_cross_entropy", _loss, _labeled), batchable=rowwise),
    replace(
        loop_kernel("sparse_softmax_cross_entropy_grad", _loss_grad, _labeled), batchable=rowwise
    ),
    *(
        loop_kernel(f"{name}_linear", partial(_levels, name), _one_grid)
        for name in ("quantize", "dequantize")
    ),
    loop_kernel("onednn_quantize", partial(_levels, "quantize_last"), lambda _: True),
    upcast_loop_kernel(
        "layer_norm",
        _layer_norm,
        _params_per_row,
        rows=RowLoop(lambda query: _rows(query)[0], 6, (0,), (3, 4, 5)),
    ),
    upcast_loop_kernel(
        "layer_norm_grad",
        _layer_norm_grad,
        rows=RowLoop(lambda query: _rows(query)[0], 5, (0, 1, 2, 3), (4,)),
    ),
    upcast_loop_kernel(
        "layer_norm_gamma_grad", _layer_norm_gamma_grad, _params_per_row, _gamma_bytes
    ),
)
