"""Kernels of reductions over axes and of whole tensors, and of sums along an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec, tensor_type
from flow_core.base.dtypes import DType
from flow_cuda.codegen.elementwise import AXES
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import Read, Struct, call, space, strides
from flow_cuda.kernels.binding import aligned, c_type, collect_launches, kernel
from flow_cuda.kernels.columns import Matrix, column_sums, leading_matrix

HEADER = "reduce.h"
WIDE = 128
"""The minimum number of elements per result with which one block computes each result."""
PART = 4096
MOST_PARTS = 512

SUM = ("Sum", "Plain")
REDUCTIONS = {
    "reduce_sum": SUM,
    "reduce_sum_like": SUM,
    "reduce_mean": SUM,
    "reduce_prod": ("Product", "Plain"),
    "reduce_max": ("Largest", "Plain"),
    "reduce_min": ("Least", "Plain"),
    "reduce_all": ("All", "NotZero"),
    "reduce_any": ("Any", "NotZero"),
}
"""The C++ functors of each op: the combination, and the map applied to elements before it."""


def _axes(query: KernelQuery) -> tuple[int, ...]:
    axes: Any = query.attrs["axis"]
    rank = len(query.inputs[0].shape)
    if axes is None:
        return tuple(range(rank))
    return tuple(sorted({a % rank for a in ((axes,) if isinstance(axes, int) else axes)}))


def _rank_fits(query: KernelQuery) -> bool:
    return len(query.inputs[0].shape) <= AXES


def _spaces(query: KernelQuery) -> tuple[Any, ...]:
    """Return the space and strides of the kept axes and of the reduced axes."""
    shape, gone = query.inputs[0].shape, _axes(query)
    steps = [prod(shape[i + 1 :]) for i in range(len(shape))]
    kept = [i for i in range(len(shape)) if i not in gone]
    return tuple(
        struct
        for axes in (kept, gone)
        for struct in (
            Struct("Space", space([shape[i] for i in axes])),
            Struct("Strides", strides([steps[i] for i in axes])),
        )
    )


def _columns(query: KernelQuery) -> Matrix | None:
    """Return the matrix whose columns are summed in two steps; None if one step is enough."""
    found = leading_matrix(query.inputs[0], _axes(query)) if REDUCTIONS[query.op] == SUM else None
    return found if found is not None and found.tall else None


def _columns_bytes(query: KernelQuery) -> int:
    matrix = _columns(query)
    return 0 if matrix is None else aligned(matrix.nbytes)


def _reduce(ctx: BindContext) -> Sequence[Launch]:
    query = ctx.query
    type_ = query.outputs[0]
    return tuple(_reduced(query, ctx.inputs[0], ctx.outputs[0], type_.dtype, ctx.workspace))


def _reduced(
    query: KernelQuery, x: DeviceArray, y: DeviceArray, dtype: DType, workspace: DeviceArray
) -> Iterator[Launch]:
    """Yield launches that write the reduction of ``x`` to ``y``, of element type ``dtype``."""
    matrix = _columns(query)
    if matrix is not None:
        out = (y, tensor_type(query.outputs[0].shape, dtype))
        yield from column_sums("Own", matrix, (x,), out, workspace)
        return
    spaces = _spaces(query)
    wide = int(spaces[2].packed[0]) >= WIDE
    kinds = [c_type(query.inputs[0]), c_type(dtype)]
    if query.op == "reduce_mean":
        kinds.append(c_type(dtype))
    yield call(
        "reduce_wide" if wide else "reduce",
        HEADER,
        (*REDUCTIONS[query.op], *kinds),
        Read(x),
        y,
        *spaces,
        items=int(spaces[0].packed[0]),
        blocks=wide,
    )


def _mean(ctx: BindContext) -> Iterator[Launch]:
    query, type_ = ctx.query, ctx.query.outputs[0]
    given: Any = query.attrs["count"]
    count = given or prod(query.inputs[0].shape[i] for i in _axes(query))
    workspace: DeviceArray = ctx.workspace
    wide = type_.dtype.accumulate
    sums = workspace.part(_columns_bytes(query), type_.shape, wide.numpy)
    yield from _reduced(query, ctx.inputs[0], sums, wide, workspace)
    yield call(
        "quotients", HEADER, (c_type(wide), c_type(type_)), Read(sums), ctx.outputs[0],
        type_.size, count, items=type_.size,
    )  # fmt: skip


def _mean_bytes(query: KernelQuery) -> int:
    y = query.outputs[0]
    wide = y.dtype.accumulate
    return _columns_bytes(query) + aligned(y.size * wide.itemsize)


def _mean_fits(query: KernelQuery) -> bool:
    return query.outputs[0].dtype.is_floating and _rank_fits(query)


def part_count(size: int) -> int:
    """Return the number of parts of a sum of ``size`` elements; it is the same on every device."""
    return max(1, min(-(-size // PART), MOST_PARTS))


def _sums(how: str, ctx: BindContext) -> Sequence[Launch]:
    return tuple(_each_sum(how, ctx))


def _each_sum(how: str, ctx: BindContext) -> Iterator[Launch]:
    """Yield launches that write partial sums of each input to the workspace, then add these."""
    wide = ctx.query.outputs[0].dtype.accumulate
    kind, done = c_type(wide), 0
    workspace: DeviceArray = ctx.workspace
    for x, type_ in zip(ctx.inputs, ctx.query.inputs, strict=True):
        parts = part_count(type_.size)
        sums = workspace.part(done * wide.itemsize, (parts,), wide.numpy)
        yield call(
            "partial_sums", HEADER, (how, c_type(type_), kind),
            Read(x), sums, type_.size, parts, items=parts, blocks=True,
        )  # fmt: skip
        done += parts
    sums = workspace.part(0, (done,), wide.numpy)
    result = c_type(ctx.query.outputs[0])
    yield call(
        "total", HEADER, (kind, result), Read(sums), ctx.outputs[0], done, items=1, blocks=True
    )


def _sum_workspace(query: KernelQuery) -> int:
    count = sum(part_count(t.size) for t in query.inputs)
    return aligned(count * query.outputs[0].dtype.accumulate.itemsize)


SUMS = {"square_sum": "Squared", "multi_square_sum": "Squared", "count_not_finite": "NotFinite"}

KERNELS: tuple[KernelSpec, ...] = (
    *(kernel(op, _reduce, _rank_fits, _columns_bytes) for op in REDUCTIONS if op != "reduce_mean"),
    kernel("reduce_mean", collect_launches(_mean), _mean_fits, _mean_bytes),
    *(kernel(op, partial(_sums, how), None, _sum_workspace) for op, how in SUMS.items()),
)
