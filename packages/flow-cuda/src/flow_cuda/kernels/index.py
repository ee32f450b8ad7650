"""Kernels for gather and segment sums.

Sums are accumulated with atomic additions: in the element type if it has them, otherwise in
float32. The device decides the order of these additions, so that with repeated indices the last
bits may differ from run to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec, TensorType
from flow_core.base.dtypes import DType, float32, int32
from flow_cuda.device.launch import Read, Write, ZeroLaunch, call
from flow_cuda.kernels.binding import aligned, c_type, collect_launches, kernel
from flow_cuda.kernels.move import UNSIGNED

HEADER = "index.h"
ADDED = ("float32", "float64", "int32", "int64")
"""Element types with atomic addition."""


def _sum_type(dtype: DType) -> DType:
    if dtype.name in ADDED:
        return dtype
    return float32 if dtype.is_floating else int32


def _sum_bytes(query: KernelQuery) -> int:
    """Return the workspace size for sums in a type without atomic addition."""
    out = query.outputs[0]
    wide = _sum_type(out.dtype)
    return 0 if wide is out.dtype else aligned(out.size * wide.itemsize)


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
    """Yield launches that set the sums to zero, add the elements, and round the sums if needed."""
    (x, index), (out,), type_ = ctx.inputs[:2], ctx.outputs, ctx.query.outputs[0]
    if not out.size:
        return
    wide, sums = _sum_type(type_.dtype), out
    if wide is not type_.dtype:
        sums = ctx.workspace.part(0, out.shape, wide.numpy)
    yield ZeroLaunch(sums.hardware, sums)
    if x.size:
        types = (c_type(type_), c_type(ctx.query.inputs[1]), c_type(wide))
        values = (Read(x), Read(index), sums, *_extent(ctx, batched, type_))
        yield call("segment_sum", HEADER, types, *values, items=x.size)
    if sums is not out:
        kinds = (c_type(wide), c_type(type_))
        yield call("narrow", HEADER, kinds, Read(sums), out, out.size, items=out.size)


KERNELS: tuple[KernelSpec, ...] = (
    *(
        kernel(op, collect_launches(partial(_segments, batched)), None, _sum_bytes)
        for op, batched in (
            ("unsorted_segment_sum", False),
            ("unsorted_segment_sum_like", False),
            ("unsorted_batch_segment_sum", True),
        )
    ),
    *(
        kernel(op, collect_launches(partial(_gather, batched)))
        for op, batched in (("gather", False), ("batch_gather", True))
    ),
)
