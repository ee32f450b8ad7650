"""Ops whose result has a number of valid rows that is known only at run time.

Since a plan has fixed shapes, such a result has its maximum size: the valid rows come first, then
zeros.  The number of valid rows is a separate value, which the frontend keeps together with the
tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype, int32, int64
from flow_core.ir.graph import tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import any_partial, checked_axis, signatures
from flow_core.plugins.specs import InferContext, LocalContext, Sample, SbpContext
from flow_core.sharding.sbp import B, S, Signatures

INDEX = (int32, int64)


class Argwhere(OpDef):
    """The positions of all nonzero elements, one per row, and their number."""

    schema = "argwhere(input) -> output, output_size"
    attrs = {"dtype": "int32"}

    def infer(self, ctx: InferContext) -> Types:
        (x,) = ctx.inputs
        dtype = as_dtype(ctx.attrs["dtype"])
        ctx.check(dtype in INDEX, f"dtype {dtype}", "int32 or int64")
        ctx.check(x.shape, f"an input of type {x}", "rank 1 or more")
        return tensor_type((x.size, len(x.shape)), dtype), tensor_type((1,), dtype)

    def reference(self, x: Array, dtype: str) -> tuple[Array, Array]:
        found, index = np.argwhere(x), as_dtype(dtype).numpy
        rows = np.zeros((x.size, x.ndim), index)
        rows[: len(found)] = found
        return rows, np.array([len(found)], index)

    def samples(self, rng: Rng) -> Samples:
        for shape, dtype in (((9,), "int32"), ((4, 5), "int64"), ((2, 3, 4), "int32")):
            yield Sample((rng.integers(0, 2, shape).astype(np.float64),), {"dtype": dtype}, False)
            yield Sample((rng.integers(0, 3, shape).astype(np.int32),), {"dtype": dtype}, False)
        for value in (0, 1):
            yield Sample((np.full((3, 2), value, np.int8),), {}, False, "all alike")
        yield Sample((np.zeros((0, 2)),), {}, False, "no elements")


def valid_rows_of_part(first: int, rows: int, size: Any) -> int:
    """Return how many of the ``rows`` rows from ``first`` on are among the first ``size`` rows.

    >>> [valid_rows_of_part(first, 4, size) for first, size in ((4, 6), (0, 6), (8, 6), (0, -1))]
    [2, 4, 0, 0]
    """
    return max(0, min(rows, int(size) - first))


class SyncDynamicResize(OpDef):
    """The first rows of an axis, in a number known at run time; the others are zeros. ``first`` is
    the number of the first row of this part.
    """

    schema = "sync_dynamic_resize(in, size) -> out"
    attrs = {"axis": 0, "first": 0}
    inplace = (0,)

    def infer(self, ctx: InferContext) -> Types:
        x, size = ctx.inputs
        checked_axis(ctx, ctx.attrs["axis"], len(x.shape))
        ctx.check(size.dtype in INDEX and size.shape in ((), (1,)), f"a size {size}", "int32[1]")
        return (x,)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split any axis, since a part has the index of its first row; any P keeps zeros."""
        splits = (((S(i), B), S(i)) for i in range(len(ctx.inputs[0].shape)))
        return signatures(*splits, *any_partial(ctx, 0))

    def localize(self, ctx: LocalContext) -> Attributes:
        return {"first": ctx.attrs["first"] + ctx.inputs[0].region[ctx.attrs["axis"]][0]}

    def gradient(self, g: GradContext) -> Gradients:
        return g.one("sync_dynamic_resize", g.dy, g.inputs[1], **dict(g.attrs)), None

    def reference(self, x: Array, size: Any, axis: int, first: int) -> Array:
        y = np.zeros_like(x)
        kept = valid_rows_of_part(first, x.shape[axis], size.reshape(-1)[0])
        where = (slice(None),) * axis + (slice(kept),)
        y[where] = x[where]
        return y

    def samples(self, rng: Rng) -> Samples:
        for shape, size, axis in (
            ((7,), 3, 0), ((6, 2), 6, 0), ((3, 5), 2, 1), ((4, 2, 3), 1, 0), ((5, 2), 0, 0),
        ):  # fmt: skip
            yield Sample((rng.uniform(-3, 3, shape), np.array([size], np.int32)), {"axis": axis})
        yield Sample((rng.integers(-9, 9, (8, 3)), np.array([5], np.int64)), {"first": 2})


OPS = specs(Argwhere, SyncDynamicResize)
