"""Ops that read or write at n-dimensional positions, which the indices hold on their last axis.

A read at a position out of range returns zeros, and a write has no effect.  The attribute ``first``
is the position of the table's first element, where () means the origin: if a table is split on
indexed axes, each device reads or writes only its own part.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.shapes import Shape
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.array.index import MOVED, checked_index, with_like
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import floating, nondecreasing, signatures
from flow_core.plugins.specs import REQUIRED, InferContext, LocalContext, Part, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, S, Signatures


def _nd_parts(ctx: InferContext, table: Shape, position: int) -> tuple[Shape, Shape]:
    """Return the batch sizes of the indices, and the sizes of the slices that indices address."""
    index = checked_index(ctx, position)
    depth = index.shape[-1]
    allowed = f"between 1 and {len(table)} numbers per position"
    ctx.check(1 <= depth <= len(table), f"indices {index} into shape {table}", allowed)
    return index.shape[:-1], table[depth:]


def _scattered(ctx: InferContext, table: Shape, index: int, updates: int) -> tuple[TensorType, ...]:
    found = ctx.inputs[updates]
    batch, inner = _nd_parts(ctx, table, index)
    ctx.check(found.shape == batch + inner, f"updates {found}", f"shape {batch + inner}")
    return (tensor_type(table, found.dtype),)


def _nd_axes(index: TensorType, table: TensorType) -> tuple[range, list[tuple[int, int]]]:
    """Return the batch axes of the indices, and a pair (table axis, slice axis) for each other
    axis.
    """
    batch, depth = len(index.shape) - 1, index.shape[-1]
    return range(batch), [(i, i - depth + batch) for i in range(depth, len(table.shape))]


def _first(ctx: LocalContext, table: Part) -> Attributes:
    """Adapt ``first`` to the device's part of the table."""
    outer = ctx.attrs["first"] or (0,) * len(table.region)
    return {"first": tuple(a + low for a, (low, _) in zip(outer, table.region, strict=True))}


def _scatter_nd_rules(index: TensorType, out: TensorType) -> Signatures:
    """Return the SBP rules for the inputs (indices, updates)."""
    batch, inner = _nd_axes(index, out)
    return signatures(
        *(((S(i), S(i)), P) for i in batch),
        *(((B, S(j)), S(i)) for i, j in inner),
        *(((B, B), S(i)) for i in range(index.shape[-1])),
        ((B, P), P),
    )


def _positions(
    index: Array, table: Shape, first: Shape = ()
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (batch position, table position) for each index that is in range."""
    depth = index.shape[-1]
    low = np.array(first[:depth] or (0,) * depth, np.int64)
    for place in np.ndindex(*index.shape[:-1]):
        at = tuple(map(int, index[place] - low))
        if all(0 <= i < n for i, n in zip(at, table, strict=False)):
            yield place, at


def _tensor_scatter_add(params: Array, updates: Array, index: Array, *, first: Shape) -> Array:
    out = params.copy()
    for place, at in _positions(index, params.shape, first):
        out[at] += updates[place]
    return out


def _scatter_nd(index: Array, updates: Array, *, shape: Shape, first: Shape) -> Array:
    return _tensor_scatter_add(np.zeros(shape, updates.dtype), updates, index, first=first)


def _nd_cases(rng: np.random.Generator) -> Iterator[tuple[Array, Array, Array]]:
    """Yield a table, distinct positions (some out of range), and slices for these positions."""
    for table, index in (
        ((4, 3), [[1], [3], [4]]), ((3, 4), [[0, 1], [2, 3], [-1, 0], [1, 1]]),
        ((2, 3, 2), [[[0, 1], [1, 2]], [[0, 0], [1, 0]]]), ((5,), [[4], [2]]),
    ):  # fmt: skip
        places = np.array(index, np.int32)
        slices = rng.uniform(-3, 3, places.shape[:-1] + table[places.shape[-1] :])
        yield rng.uniform(-3, 3, table), places, slices


class GatherNd(OpDef):
    schema = "gather_nd(params, indices) -> out"
    attrs = {"first": ()}
    localize = staticmethod(lambda ctx: _first(ctx, ctx.inputs[0]))

    def infer(self, ctx: InferContext) -> Types:
        params = ctx.inputs[0]
        batch, inner = _nd_parts(ctx, params.shape, 1)
        return (tensor_type(batch + inner, params.dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        params, index = ctx.inputs
        batch, inner = _nd_axes(index, params)
        return signatures(
            *(((B, S(i)), S(i)) for i in batch),
            *(((S(i), B), S(j)) for i, j in inner),
            *(((S(i), B), P) for i in range(index.shape[-1])),
            *MOVED,
        )

    def gradient(self, g: GradContext) -> Gradients:
        return g.one("scatter_nd", g.inputs[1], g.dy, shape=g.x.shape, **g.attrs), None

    def reference(self, params: Array, index: Array, *, first: Shape) -> Array:
        out = np.zeros(index.shape[:-1] + params.shape[index.shape[-1] :], params.dtype)
        for place, at in _positions(index, params.shape, first):
            out[place] = params[at]
        return out

    def samples(self, rng: Rng) -> Samples:
        for table, index, _ in _nd_cases(rng):
            yield Sample((table, index))
            yield Sample((table, index), {"first": (1,) * table.ndim}, note="a part")


class Scatter(OpDef):
    """An op that writes to a table, which is its output."""

    attrs = {"first": ()}
    localize = staticmethod(lambda ctx: _first(ctx, ctx.outputs[0]))

    def gradient(self, g: GradContext) -> Gradients:
        dx = g.one("gather_nd", g.dy, g.inputs[-2], first=g.attrs["first"])
        return (*(None for _ in g.inputs[1:]), dx)


class ScatterNd(Scatter):
    schema = "scatter_nd(indices, updates) -> out"
    attrs = {"shape": REQUIRED, "first": ()}
    reference = staticmethod(_scatter_nd)
    infer = staticmethod(lambda ctx: _scattered(ctx, tuple(ctx.attrs["shape"]), 0, 1))
    sbp = staticmethod(lambda ctx: _scatter_nd_rules(ctx.inputs[0], ctx.outputs[0]))

    def localize(self, ctx: LocalContext) -> Attributes:
        return {**super().localize(ctx), "shape": ctx.outputs[0].shape}

    def samples(self, rng: Rng) -> Samples:
        for table, index, slices in _nd_cases(rng):
            yield Sample((index, slices), {"shape": table.shape})
        twice = np.array([[1], [1], [0]], np.int64)
        yield Sample((twice, rng.uniform(-3, 3, (3, 2))), {"shape": (3, 2)}, note="added twice")
        attrs = {"shape": (2, 2), "first": (1, 0)}
        yield Sample((twice, rng.uniform(-3, 3, (3, 2))), attrs, note="a part")


class ScatterNdLike(Scatter):
    schema = "scatter_nd_like(like, indices, updates) -> out"
    infer = staticmethod(lambda ctx: _scattered(ctx, ctx.inputs[0].shape, 1, 2))
    sbp = staticmethod(lambda ctx: with_like(_scatter_nd_rules(ctx.inputs[1], ctx.outputs[0]), 0))

    def reference(self, like: Array, index: Array, updates: Array, *, first: Shape) -> Array:
        return _scatter_nd(index, updates, shape=like.shape, first=first)

    def samples(self, rng: Rng) -> Samples:
        for table, index, slices in _nd_cases(rng):
            yield Sample((table, index, slices))
            yield Sample((table, index, slices), {"first": (1,) * table.ndim}, note="a part")


class TensorScatter(Scatter):
    """An op whose output is a copy of a table, with updates at some positions."""

    inplace = (0,)

    def infer(self, ctx: InferContext) -> Types:
        params, updates = ctx.inputs[:2]
        ctx.check(params.dtype is updates.dtype, f"{params} and {updates}", "one element type")
        return _scattered(ctx, params.shape, 2, 1)

    def sbp(self, ctx: SbpContext) -> Signatures:
        _, inner = _nd_axes(ctx.inputs[2], ctx.outputs[0])
        indexed = range(ctx.inputs[2].shape[-1])
        return signatures(
            *(((S(i), S(j), B), S(i)) for i, j in inner),
            *(((S(i), B, B), S(i)) for i in indexed),
            *(((kind, kind, B), kind) for kind in (P, *EXTREMES)),
        )

    def gradient(self, g: GradContext) -> Gradients:
        (_, updates, index), (to_params, to_updates, _) = g.inputs, g.needed
        kept: Sym | None = g.dy
        if g.op.type == "tensor_scatter_nd_update" and to_params:
            zeros = g.one("zero_like", updates)
            kept = g.one("tensor_scatter_nd_update", g.dy, zeros, index, **g.attrs)
        return kept, g.one("gather_nd", g.dy, index, **g.attrs) if to_updates else None, None

    def samples(self, rng: Rng) -> Samples:
        for table, index, slices in _nd_cases(rng):
            yield Sample((table, slices, index))
            yield Sample((table, slices, index), {"first": (1,) * table.ndim}, note="a part")


class TensorScatterNdUpdate(TensorScatter):
    schema = "tensor_scatter_nd_update(params, updates, indices) -> out"

    def reference(self, params: Array, updates: Array, index: Array, *, first: Shape) -> Array:
        out = params.copy()
        for place, at in _positions(index, params.shape, first):
            out[at] = updates[place]
        return out


class TensorScatterNdAdd(TensorScatter):
    schema = "tensor_scatter_nd_add(params, updates, indices) -> out"
    reference = staticmethod(_tensor_scatter_add)

    def sbp(self, ctx: SbpContext) -> Signatures:
        batch, _ = _nd_axes(ctx.inputs[2], ctx.outputs[0])
        added = signatures(*(((P, S(i), S(i)), P) for i in batch))
        splits = (r for r in super().sbp(ctx) if r.inputs[0] not in EXTREMES)
        return (*added, *splits, *(nondecreasing(ctx, 0) if floating(ctx) else ()))


OPS = specs(GatherNd, ScatterNd, ScatterNdLike, TensorScatterNdUpdate, TensorScatterNdAdd)
