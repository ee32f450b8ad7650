"""Kernels of the reductions.

Adjacent axes that are both kept or both reduced are merged first, so that nearly all reductions
have one of a few patterns of (k)ept and (r)educed axes.  Floating-point sums are computed as
products with a vector of ones where BLAS is faster than NumPy's loops; long sums are split into
blocks, so that float32 sums stay accurate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import groupby
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.alignment import ALIGNMENT, aligned
from flow_core.base.arrays import Array, NumpyType
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes, kernel
from flow_core.builtin.numpy_kernels.widening import widened
from flow_core.device import Launch
from flow_core.ops.math.reduce import highest, lowest, mean_count, normal_axes
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

DOT_LIMIT = 65536
"""Maximum length of sums computed as dot products; NumPy sums longer arrays more accurately."""
ROW_LIMIT = 8192
"""Maximum row length for which row sums are computed as matrix-vector products."""
BLOCK = 4096
"""Number of rows summed in one call."""
BATCH_MINIMUM = 1024
"""Minimum elements per matrix for a sum over a middle axis as a batched product."""

Groups = tuple[tuple[int, bool], ...]


def grouped(shape: Sequence[int], axes: Sequence[int]) -> Groups:
    """Merge runs of axes that are all kept (False) or all reduced (True); drop axes of size 1.

    >>> grouped((2, 3, 4, 1, 5), (1, 2))
    ((2, False), (12, True), (5, False))
    """
    sized = ((n, i in axes) for i, n in enumerate(shape) if n != 1)
    return tuple((prod(n for n, _ in run), fate) for fate, run in groupby(sized, lambda g: g[1]))


def _groups(query: KernelQuery) -> Groups:
    x = query.inputs[0].shape
    return grouped(x, normal_axes(query.attrs["axis"], len(x)))


def _views(ctx: BindContext) -> tuple[Any, Any, str, tuple[int, ...]]:
    """Return views of input and output with merged axes, the pattern, and the axes to reduce."""
    groups = _groups(ctx.query)
    x = ctx.inputs[0].reshape([n for n, _ in groups])
    out = ctx.outputs[0].reshape([n for n, fate in groups if not fate])
    pattern = "".join("r" if fate else "k" for _, fate in groups)
    return x, out, pattern, tuple(i for i, (_, fate) in enumerate(groups) if fate)


@lru_cache(maxsize=8)
def _longest_ones(dtype: DTypeLike) -> Array:
    ones = np.ones(DOT_LIMIT, dtype)
    ones.flags.writeable = False
    return ones


def _ones(n: int, dtype: NumpyType) -> Array:
    return _longest_ones(dtype)[:n]


def ufunc_reduce(
    function: Any, x: Array, axes: tuple[int, ...], out: Array, *initial: Any
) -> Sequence[Launch]:
    """Return a launch of a ufunc's ``reduce`` that computes in the element type of ``x``."""
    return (partial(function.reduce, x, axes, x.dtype, out, False, *initial),)


def _sum(ctx: BindContext) -> Sequence[Launch]:
    x, out, pattern, axes = _views(ctx)
    if x.size == 0:
        return (partial(out.fill, 0),)
    if not axes:
        return (partial(np.copyto, out, x),)
    rule = _SUMS.get(pattern) if x.dtype.kind == "f" else None
    launches = rule(x, out, ctx.workspace) if rule else None
    return launches or ufunc_reduce(np.add, x, axes, out)


def _sum_all(x: Array, out: Array, _: Array) -> Sequence[Launch] | None:
    return (partial(np.dot, x, _ones(x.size, x.dtype), out),) if x.size <= DOT_LIMIT else None


def _sum_leading(x: Array, out: Array, workspace: Array) -> Sequence[Launch]:
    rows, columns = x.shape
    if rows <= BLOCK:
        return (partial(np.dot, _ones(rows, x.dtype), x, out),)
    blocks, rest = divmod(rows, BLOCK)
    sums = _typed(workspace, x.dtype, (blocks + bool(rest), columns))
    whole = x[: blocks * BLOCK].reshape(blocks, BLOCK, columns)
    launches = [partial(np.matmul, _ones(BLOCK, x.dtype), whole, sums[:blocks])]
    if rest:
        launches.append(partial(np.dot, _ones(rest, x.dtype), x[-rest:], sums[blocks]))
    return (*launches, *ufunc_reduce(np.add, sums, (0,), out))


def _sum_trailing(x: Array, out: Array, _: Any) -> Sequence[Launch] | None:
    columns = x.shape[1]
    if columns > ROW_LIMIT:
        return None
    return (partial(np.dot, x, _ones(columns, x.dtype), out),)


def _sum_both_ends(x: Array, out: Array, workspace: Array) -> Sequence[Launch] | None:
    """Return launches that sum over the last axis and then over the first of three axes.

    A bias gradient over channels-first images is such a sum.
    """
    first, kept, last = x.shape
    sums = _typed(workspace, x.dtype, (first * kept,))
    rows = _sum_trailing(x.reshape(-1, last), sums, None)
    used = aligned(sums.nbytes)
    return rows and (*rows, *_sum_leading(sums.reshape(first, kept), out, workspace[used:]))


def _sum_middle(x: Array, out: Array, _: Array) -> Sequence[Launch] | None:
    rows = x.shape[1]
    if rows > BLOCK or rows * x.shape[2] < BATCH_MINIMUM:
        return None
    return (partial(np.matmul, _ones(rows, x.dtype), x, out),)


_SUMS: dict[str, Callable[[Any, Any, Any], Sequence[Launch] | None]] = {
    "r": _sum_all, "rk": _sum_leading, "kr": _sum_trailing, "rkr": _sum_both_ends,
    "krk": _sum_middle,
}  # fmt: skip


def _typed(workspace: Any, dtype: NumpyType, shape: tuple[int, ...]) -> Any:
    return workspace[: prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _sum_workspace(query: KernelQuery) -> int:
    """Return the workspace size in bytes for sums of blocks and, for "rkr", also for row sums.

    The pattern "rkr" means that the first and the last axis are reduced.
    """
    groups = _groups(query)
    sizes = [n for n, _ in groups]
    pattern = "".join("r" if fate else "k" for _, fate in groups)
    size = query.inputs[0].dtype.itemsize
    if pattern not in ("rk", "rkr"):
        return 0
    blocks = (sizes[0] // BLOCK + 1) * sizes[1] * size
    return blocks + (sizes[0] * sizes[1] * size + ALIGNMENT if pattern == "rkr" else 0)


def _mean(ctx: BindContext) -> Sequence[Launch]:
    x, out, _, axes = _views(ctx)
    count = mean_count(ctx.attrs, ctx.query.inputs[0].shape)
    if x.dtype.kind != "f":
        return _integer_mean(x, axes, np.array(max(count, 1)), out, ctx.workspace)
    if count == 0:
        return (partial(out.fill, np.nan),)
    return (*_sum(ctx), call(np.divide, out, np.array(count, x.dtype), out=out))


def _integer_mean(
    x: Array, axes: tuple[int, ...], count: Array, out: Array, workspace: Array
) -> Sequence[Launch]:
    """Return launches that write truncated means; sums of quotients and rests do not overflow."""
    shapes = (x.shape, x.shape, out.shape, out.shape, out.shape)
    each, rest, mean, left, carry = carve(workspace, *((s, np.dtype(np.int64)) for s in shapes))
    return (
        partial(np.copyto, each, x),
        partial(np.divmod, each, count, each, rest),
        partial(np.add.reduce, each, axes, np.int64, mean),
        partial(np.add.reduce, rest, axes, np.int64, left),
        partial(np.divmod, left, count, carry, left),
        call(np.add, mean, carry, out=mean),  # rounded down; 1 more if negative and not exact
        call(np.minimum, left, np.array(1), out=left),
        call(np.right_shift, mean, np.array(63), out=carry),
        call(np.multiply, carry, left, out=carry),
        call(np.subtract, mean, carry, out=mean),
        partial(np.copyto, out, mean, casting="unsafe"),
    )


def _mean_workspace(query: KernelQuery) -> int:
    x, y = query.inputs[0], query.outputs[0]
    if x.dtype.is_floating:
        return _sum_workspace(query)
    shapes = ((x.size,), (x.size,), (y.size,), (y.size,), (y.size,))
    return carved_bytes(*((s, np.dtype(np.int64)) for s in shapes))


def _extreme(function: Any, identity: Callable[[Any], Any]) -> Callable[[BindContext], Any]:
    def bind(ctx: BindContext) -> Sequence[Launch]:
        x, out, _, axes = _views(ctx)
        if not axes:
            return (partial(np.copyto, out, x),)
        return ufunc_reduce(function, x, axes, out, identity(x.dtype))

    return bind


def _prod(ctx: BindContext) -> Sequence[Launch]:
    x, out, _, axes = _views(ctx)
    return ufunc_reduce(np.multiply, x, axes, out) if axes else (partial(np.copyto, out, x),)


def _is_bytes(query: KernelQuery) -> bool:
    return query.inputs[0].dtype.itemsize == 1


def _truth(function: Any, identity: int) -> Callable[[BindContext], Sequence[Launch]]:
    """Return a bind function that reduces truth values, stored as bytes, by minimum or maximum.

    This is faster than NumPy's logical reductions; the byte 0 is false.
    """

    def bind(ctx: BindContext) -> Sequence[Launch]:
        x, out, _, axes = _views(ctx)
        found = out.view(np.uint8)
        last = call(np.not_equal, found, np.array(0, np.uint8), out=out.view(np.bool_))
        if _is_bytes(ctx.query):
            source, first = x.view(np.uint8), []
        else:
            source = ctx.workspace[: x.size].reshape(x.shape)
            mask = source.view(np.bool_)
            first = [call(np.not_equal, x, np.array(0).astype(x.dtype), out=mask)]
        middle = ufunc_reduce(function, source, axes, found, identity)
        return (*first, *(middle if axes else (partial(np.copyto, found, source),)), last)

    return bind


def _truth_workspace(query: KernelQuery) -> int:
    return 0 if _is_bytes(query) else query.inputs[0].size


def _prod_grad(ctx: BindContext) -> Sequence[Launch]:
    """Return launches that, for each element, multiply the products of those before and after it.

    Unlike dividing the product of all elements by each element, this is valid for zeros.
    """
    (x, dy), (dx,) = ctx.inputs, ctx.outputs
    axes = normal_axes(ctx.attrs["axis"], x.ndim)
    order = (*axes, *(i for i in range(x.ndim) if i not in axes))
    seen = x.transpose(order)
    shape = (prod(seen.shape[: len(axes)]), prod(seen.shape[len(axes) :]))
    rows, left, right = _typed(ctx.workspace, x.dtype, (3, *shape))
    return (
        partial(np.copyto, rows.reshape(seen.shape), seen),
        partial(left[:1].fill, 1),
        partial(right[-1:].fill, 1),
        partial(np.multiply.accumulate, rows[:-1], 0, None, left[1:]),
        partial(np.multiply.accumulate, rows[:0:-1], 0, None, right[-2::-1]),
        call(np.multiply, left, right, out=left),
        call(np.multiply, left, dy.reshape(1, shape[1]), out=left),
        partial(np.copyto, dx.transpose(order), left.reshape(seen.shape)),
    )


KERNELS: tuple[KernelSpec, ...] = (
    widened("reduce_sum", _sum, workspace=_sum_workspace),
    widened("reduce_mean", _mean, workspace=_mean_workspace),
    widened("reduce_sum_like", _sum, workspace=_sum_workspace),
    widened("reduce_max", _extreme(np.maximum, lowest)),
    widened("reduce_min", _extreme(np.minimum, highest)),
    widened("reduce_prod", _prod),
    kernel("reduce_any", _truth(np.maximum, 0), workspace=_truth_workspace),
    kernel("reduce_all", _truth(np.minimum, 255), workspace=_truth_workspace),
    widened("reduce_prod_grad", _prod_grad, workspace=lambda q: 3 * q.inputs[0].nbytes),
)
