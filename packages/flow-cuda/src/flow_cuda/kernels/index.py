"""Kernels for gather, scatter and segment sums.

Sums are accumulated with atomic additions: in the element type if it has them, otherwise in
float32. The device decides the order of these additions, so that with repeated indices the last
bits may differ from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec, TensorType
from flow_core.base.dtypes import DType, float32, int32
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import Read, Struct, Write, ZeroLaunch, call, space, strides
from flow_cuda.kernels.binding import (
    BufferSpec,
    aligned,
    buffer_bytes,
    c_type,
    collect_launches,
    kernel,
    split_workspace,
)
from flow_cuda.kernels.move import UNSIGNED, contiguous, copy_array, fill_array

HEADER = "index.h"
ADDED = ("float32", "float64", "int32", "int64")
"""Element types with atomic addition."""


def _sum_type(dtype: DType) -> DType:
    """Return the accumulation type."""
    if dtype.name in ADDED:
        return dtype
    return float32 if dtype.is_floating else int32


def _sum_bytes(query: KernelQuery) -> int:
    """Return the workspace size for sums in a type without atomic addition."""
    out = query.outputs[0]
    wide = _sum_type(out.dtype)
    return 0 if wide is out.dtype else aligned(out.size * wide.itemsize)


def _sums(ctx: BindContext) -> DeviceArray:
    """Return the array in which sums are accumulated: the output or the workspace."""
    out, wide = ctx.outputs[0], _sum_type(ctx.query.outputs[0].dtype)
    found: DeviceArray = out
    if wide is not ctx.query.outputs[0].dtype:
        found = ctx.workspace.part(0, out.shape, wide.numpy)
    return found


def _narrow_sums(ctx: BindContext, sums: DeviceArray) -> Iterator[Launch]:
    out, type_ = ctx.outputs[0], ctx.query.outputs[0]
    if sums is not out and out.size:
        types = (c_type(_sum_type(type_.dtype)), c_type(type_))
        yield call("narrow", HEADER, types, Read(sums), out, out.size, items=out.size)


def _clear(sums: DeviceArray) -> Iterator[Launch]:
    if sums.nbytes:
        yield ZeroLaunch(sums.hardware, sums)


def _extent(ctx: BindContext, batched: bool, table: TensorType) -> tuple[int, ...]:
    """Return the kernel's sizes.

    These are the product of the sizes before the axis, the size of the axis, the product of the
    sizes after it, the number of indices, the first row on this device, and whether the indices
    are batched.
    """
    index = ctx.query.inputs[1].shape
    axis: Any = len(index) - 1 if batched else ctx.attrs["axis"]
    shape = table.shape
    axis %= len(shape)
    count = index[-1] if batched else prod(index)
    first: Any = ctx.attrs["first"]
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]), count, first, int(batched)


def _gather(batched: bool, ctx: BindContext) -> Iterator[Launch]:
    (x, index), (y,) = ctx.inputs, ctx.outputs
    extent = _extent(ctx, batched, ctx.query.inputs[0])
    kind = UNSIGNED[x.itemsize]
    types = (kind, c_type(ctx.query.inputs[1]))
    if y.size:
        values = (Read(x, kind), Read(index), Write(y, kind), *extent)
        yield call("gather", HEADER, types, *values, items=y.size)


def _segments(batched: bool, ctx: BindContext) -> Iterator[Launch]:
    x, index = ctx.inputs[:2]
    extent = _extent(ctx, batched, ctx.query.outputs[0])
    yield from _add_elements(ctx, "segment_sum", x, index, 1, *extent)


def _add_elements(
    ctx: BindContext, function: str, x: DeviceArray, index: DeviceArray, at: int, *rest: Any
) -> Iterator[Launch]:
    """Yield launches that set the sums to zero and add the elements of ``x``.

    ``at`` is the position of the index among the inputs.
    """
    sums = _sums(ctx)
    yield from _clear(sums)
    yield from _adding_kernel(ctx, function, sums, x, index, at, *rest)
    yield from _narrow_sums(ctx, sums)


def _adding_kernel(
    ctx: BindContext,
    function: str,
    sums: DeviceArray,
    x: DeviceArray,
    index: DeviceArray,
    at: int,
    *rest: Any,
) -> Iterator[Launch]:
    out = ctx.query.outputs[0].dtype
    types = (c_type(out), c_type(ctx.query.inputs[at]), c_type(_sum_type(out)))
    if x.size and sums.size:
        values = (Read(x), Read(index), sums, *rest)
        yield call(function, HEADER, types, *values, items=x.size)


def _dim(ctx: BindContext, table: TensorType, index: TensorType) -> tuple[Any, ...]:
    """Return the index space, the table's strides with 0 for the axis, and the axis's arguments."""
    dim: Any = ctx.attrs["dim"]
    steps = contiguous(table.shape)
    others = [0 if i == dim else s for i, s in enumerate(steps)]
    return (
        Struct("Space", space(index.shape)), Struct("Strides", strides(others)),
        steps[dim], table.shape[dim], ctx.attrs["first"],
    )  # fmt: skip


def _dim_gather(ctx: BindContext) -> Iterator[Launch]:
    (x, index), (y,) = ctx.inputs, ctx.outputs
    kind = UNSIGNED[x.itemsize]
    types = (kind, c_type(ctx.query.inputs[1]))
    values = (Read(x, kind), Read(index), Write(y, kind), *_dim(ctx, *ctx.query.inputs))
    yield call("dim_gather", HEADER, types, *values, items=y.size)


def _dim_scatter(ctx: BindContext) -> Iterator[Launch]:
    _, x, index = ctx.inputs
    rest = _dim(ctx, ctx.query.outputs[0], ctx.query.inputs[2])
    yield from _add_elements(ctx, "dim_scatter", x, index, 2, *rest)


def _nd(ctx: BindContext, table: TensorType, index: TensorType) -> tuple[Any, ...]:
    """Return the number of index tuples, the elements per slice, and the indexed axes."""
    depth = index.shape[-1]
    first: Any = ctx.attrs["first"]
    return (
        prod(index.shape[:-1]), prod(table.shape[depth:]),
        Struct("Space", space(table.shape[:depth])),
        Struct("Strides", strides(contiguous(table.shape)[:depth])),
        Struct("Strides", strides((first or (0,) * depth)[:depth])),
    )  # fmt: skip


def _gather_nd(ctx: BindContext) -> Iterator[Launch]:
    (x, index), (y,) = ctx.inputs, ctx.outputs
    kind = UNSIGNED[x.itemsize]
    types = (kind, c_type(ctx.query.inputs[1]))
    if y.size:
        values = (Read(x, kind), Read(index), Write(y, kind), *_nd(ctx, *ctx.query.inputs))
        yield call("gather_nd", HEADER, types, *values, items=y.size)


def _scatter_nd(at: int, ctx: BindContext) -> Iterator[Launch]:
    index, updates = ctx.inputs[at : at + 2]
    rest = _nd(ctx, ctx.query.outputs[0], ctx.query.inputs[at])
    yield from _add_elements(ctx, "scatter_nd_add", updates, index, at, *rest)


def _scatter_add(ctx: BindContext) -> Iterator[Launch]:
    (table, updates, index), (out,) = ctx.inputs, ctx.outputs
    rest = _nd(ctx, ctx.query.outputs[0], ctx.query.inputs[2])
    sums = _sums(ctx)
    if sums is out:
        yield from copy_array(table, out)
    elif out.size:
        type_ = ctx.query.outputs[0].dtype
        types = (c_type(type_), c_type(_sum_type(type_)))
        yield call("widen", HEADER, types, Read(table), sums, out.size, items=out.size)
    yield from _adding_kernel(ctx, "scatter_nd_add", sums, updates, index, 2, *rest)
    yield from _narrow_sums(ctx, sums)


def _winners(query: KernelQuery) -> tuple[BufferSpec]:
    """Return the array with the number of the last update of each slice of the table."""
    table, _, index = query.inputs
    return ((table.shape[: index.shape[-1]], np.int32),)


def _scatter_update(ctx: BindContext) -> Iterator[Launch]:
    (table, updates, index), (out,) = ctx.inputs, ctx.outputs
    kind = UNSIGNED[out.itemsize]
    yield from copy_array(table, out)
    if updates.size and out.size:
        (winners,) = split_workspace(ctx.workspace, _winners(ctx.query))
        rest = _nd(ctx, ctx.query.outputs[0], ctx.query.inputs[2])
        count, inner, *_ = rest
        yield from fill_array(winners, -1)
        types = (c_type(ctx.query.inputs[2]),)
        yield call("scatter_nd_claim", HEADER, types, Read(index), winners, *rest, items=count)
        values = (Read(updates, kind), Read(winners), Write(out, kind), out.size, inner)
        yield call("scatter_nd_write", HEADER, (kind,), *values, items=out.size)


SUMS: dict[str, Callable[[BindContext], Iterator[Launch]]] = {
    "unsorted_segment_sum": partial(_segments, False),
    "unsorted_segment_sum_like": partial(_segments, False),
    "unsorted_batch_segment_sum": partial(_segments, True),
    "dim_scatter_add_like": _dim_scatter,
    "scatter_nd": partial(_scatter_nd, 0),
    "scatter_nd_like": partial(_scatter_nd, 1),
    "tensor_scatter_nd_add": _scatter_add,
}
MOVES: dict[str, Callable[[BindContext], Iterator[Launch]]] = {
    "gather": partial(_gather, False),
    "batch_gather": partial(_gather, True),
    "dim_gather": _dim_gather,
    "gather_nd": _gather_nd,
}

KERNELS: tuple[KernelSpec, ...] = (
    *(kernel(op, collect_launches(bind), None, _sum_bytes) for op, bind in SUMS.items()),
    *(kernel(op, collect_launches(bind)) for op, bind in MOVES.items()),
    kernel(
        "tensor_scatter_nd_update", collect_launches(_scatter_update), None,
        lambda query: buffer_bytes(_winners(query)),
    ),
)  # fmt: skip
