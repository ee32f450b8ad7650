"""Ops that read or write elements at indices along one axis: gathers and segment sums.

A read at an index out of range returns zeros, and a write has no effect.  The attribute ``first``
is the index of the table's first row: if a table is split on the indexed axis, each device reads or
writes only its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.shapes import Shape
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import Row, signatures
from flow_core.plugins.specs import REQUIRED, InferContext, LocalContext, Part, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, S, Signatures, Split

INDEX_DTYPES = ("int32", "int64", "int8", "uint8")


def checked_index(ctx: InferContext, position: int) -> TensorType:
    """Return the type of an index input, which must be integers with at least one axis."""
    index = ctx.inputs[position]
    ok = index.dtype.name in INDEX_DTYPES and len(index.shape) > 0
    ctx.check(ok, f"indices {index}", f"indices of {', '.join(INDEX_DTYPES)} with axes")
    return index


def _in_range(index: Array, size: int) -> tuple[Array, Array]:
    """Return the mask of valid indices, and the indices with invalid ones replaced by 0."""
    valid = (index >= 0) & (index < size)
    return valid, np.where(valid, index, 0)


def from_row(
    table: Callable[[LocalContext], Part], axis: Callable[[LocalContext], int]
) -> Callable[[LocalContext], Attributes]:
    """Adapt ``first`` (and ``num_segments``) to the device's part of the table along an axis."""

    def localize(ctx: LocalContext) -> Attributes:
        low, high = table(ctx).region[axis(ctx)]
        found = {"first": ctx.attrs["first"] + low}
        return {**found, "num_segments": high - low} if "num_segments" in ctx.attrs else found

    return localize


def first_input(ctx: LocalContext) -> Part:
    """Return the device's part of the table, for an op that reads from the table."""
    return ctx.inputs[0]


def first_output(ctx: LocalContext) -> Part:
    """Return the device's part of the table, for an op that adds to a table of zeros."""
    return ctx.outputs[0]


def _by_attr(name: str) -> Callable[[LocalContext], int]:
    return lambda ctx: int(ctx.attrs[name])


def _after_batch(ctx: LocalContext) -> int:
    return len(ctx.inputs[1].region) - 1


MOVED = tuple([((p, B), p) for p in (P, *EXTREMES)])
"""Pass every kind of P, since the op only reads elements, and reads 0 out of range on all devices.
"""


def with_like(rules: Signatures, position: int) -> Signatures:
    """Extend SBP rules by an input of which only the shape is read.

    The input is split like the output; if the output is not split, the input may have any SBP that
    is not a split.
    """
    found = []
    for rule in rules:
        split = isinstance(rule.outputs[0], Split)
        for like in (rule.outputs[0],) if split else (B, P):
            inputs = (*rule.inputs[:position], like, *rule.inputs[position:])
            found.append((inputs, rule.outputs))
    rest = (B,) * len(rules[0].inputs)
    return signatures(*found, ((*rest[:position], P, *rest[position:]), B))


# ------------------------------------------------------------------- along an axis of the table


def _gather(x: Array, index: Array, *, axis: int, first: int = 0) -> Array:
    if x.shape[axis] == 0:
        return np.zeros(x.shape[:axis] + index.shape + x.shape[axis + 1 :], x.dtype)
    valid, index = _in_range(index.astype(np.int64) - first, x.shape[axis])
    mask = valid.reshape(valid.shape + (1,) * (x.ndim - axis - 1))
    return np.where(mask, np.take(x, index, axis), 0).astype(x.dtype)


class Gather(OpDef):
    schema = "gather(in, indices) -> out"
    attrs = {"axis": REQUIRED, "first": 0}
    localize = staticmethod(from_row(first_input, _by_attr("axis")))
    reference = staticmethod(_gather)

    def infer(self, ctx: InferContext) -> Types:
        x, index, axis = ctx.inputs[0], checked_index(ctx, 1), ctx.attrs["axis"]
        rank = len(x.shape)
        ctx.check(0 <= axis < rank, f"axis {axis} of {x}", f"0 <= axis < {rank}")
        return (tensor_type(x.shape[:axis] + index.shape + x.shape[axis + 1 :], x.dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        (x, index), axis = ctx.inputs, ctx.attrs["axis"]
        inserted = len(index.shape)
        others = (i for i in range(len(x.shape)) if i != axis)
        return signatures(
            *(((B, S(i)), S(axis + i)) for i in range(inserted)),
            *(((S(i), B), S(i if i < axis else i + inserted - 1)) for i in others),
            ((S(axis), B), P),
            *MOVED,
        )

    def gradient(self, g: GradContext) -> Gradients:
        count = g.x.shape[g.attrs["axis"]]
        dx = g.one("unsorted_segment_sum", g.dy, g.inputs[1], num_segments=count, **g.attrs)
        return dx, None

    def samples(self, rng: Rng) -> Samples:
        for shape, index, axis, dtype in (
            ((5, 3), (4,), 0, np.int32), ((2, 6, 3), (2, 2), 1, np.int64),
            ((3, 4), (5,), 1, np.int8), ((4,), (3, 2), 0, np.int32), ((6, 1), (0,), 0, np.int32),
        ):  # fmt: skip
            indices = rng.integers(0, shape[axis], index).astype(dtype)
            yield Sample((rng.uniform(-3, 3, shape), indices), {"axis": axis})
        outside = np.array([[0, -1], [3, 2]], np.int32)
        yield Sample((rng.uniform(-3, 3, (3, 2)), outside), {"axis": 0}, note="out of range")
        yield Sample((rng.integers(0, 99, (3, 2)), outside), {"axis": 1})
        yield Sample((rng.uniform(-3, 3, (3, 2)), outside), {"axis": 0, "first": 2}, note="a part")


def _check_segments(ctx: InferContext) -> tuple[Shape, Shape]:
    """Return the sizes of the axes of data before and after those that the segment ids index."""
    data, ids, axis = ctx.inputs[0], checked_index(ctx, 1), ctx.attrs["axis"]
    end = axis + len(ids.shape)
    ctx.check(
        axis >= 0 and data.shape[axis:end] == ids.shape,
        f"segment ids {ids} for axis {axis} of {data}",
        "ids of the shape of data's axes from axis on",
    )
    return data.shape[:axis], data.shape[end:]


def _segment_sum(data: Any, ids: Array, *, axis: int, num_segments: int, first: int = 0) -> Array:
    before, after = data.shape[:axis], data.shape[axis + ids.ndim :]
    out = np.zeros((prod(before), num_segments, prod(after)), data.dtype)
    rows = data.reshape(prod(before), ids.size, prod(after))
    for i, segment in enumerate(ids.ravel()):
        at = int(segment) - first
        if 0 <= at < num_segments:
            out[:, at] += rows[:, i]
    return out.reshape(*before, num_segments, *after)


class Segments(OpDef):
    """Sums of the rows with the same segment id, with a row for each segment."""

    localize = staticmethod(from_row(first_output, _by_attr("axis")))

    def sbp(self, ctx: SbpContext) -> Signatures:
        (data, ids), axis = ctx.inputs[:2], ctx.attrs["axis"]
        merged = len(ids.shape)
        others = (i for i in range(len(data.shape)) if not axis <= i < axis + merged)
        return signatures(
            *(((S(axis + i), S(i)), P) for i in range(merged)),
            *(((S(i), B), S(i if i < axis else i - merged + 1)) for i in others),
            ((B, B), S(axis)),
            ((P, B), P),
        )

    def gradient(self, g: GradContext) -> Gradients:
        attrs = {key: g.attrs[key] for key in ("axis", "first")}
        dx = g.one("gather", g.dy, g.inputs[1], **attrs)
        return (dx, *(None for _ in g.inputs[1:]))

    def samples(self, rng: Rng) -> Samples:
        for shape, ids, axis, count, dtype in (
            ((6, 3), (6,), 0, 4, np.int32), ((2, 5, 2), (5,), 1, 3, np.int64),
            ((2, 3, 4), (2, 3), 0, 2, np.int32), ((3, 4), (4,), 1, 5, np.int8),
            ((9, 130), (9,), 0, 3, np.int32), ((7,), (7,), 0, 2, np.int32),
        ):  # fmt: skip
            segments = rng.integers(-1, count + 1, ids).astype(dtype)
            attrs = {"axis": axis, "num_segments": count}
            yield Sample((rng.uniform(-3, 3, shape), segments), attrs, note="some ids out of range")
        whole = (rng.integers(-9, 9, (4, 2)).astype(np.int32), np.array([1, 1, 0, 1], np.int32))
        yield Sample(whole, {"axis": 0, "num_segments": 2})
        some = np.array([5, 3, 0, 4, -1], np.int64)
        part = {"axis": 0, "num_segments": 2, "first": 3}
        yield Sample((rng.uniform(-3, 3, (5, 4)), some), part, note="a part")


class UnsortedSegmentSum(Segments):
    schema = "unsorted_segment_sum(data, segment_ids) -> out"
    attrs = {"axis": REQUIRED, "num_segments": REQUIRED, "first": 0}
    reference = staticmethod(_segment_sum)

    def infer(self, ctx: InferContext) -> Types:
        before, after = _check_segments(ctx)
        count = ctx.attrs["num_segments"]
        ctx.check(count >= 1 or ctx.attrs["first"], f"num_segments {count}", "at least 1")
        return (tensor_type((*before, count, *after), ctx.inputs[0].dtype),)


def _segment_sum_like(data: Any, ids: Array, like: Array, *, axis: int, first: int) -> Array:
    return _segment_sum(data, ids, axis=axis, num_segments=like.shape[axis], first=first)


class UnsortedSegmentSumLike(Segments):
    schema = "unsorted_segment_sum_like(data, segment_ids, like) -> out"
    attrs = {"axis": REQUIRED, "first": 0}
    reference = staticmethod(_segment_sum_like)

    def infer(self, ctx: InferContext) -> Types:
        before, after = _check_segments(ctx)
        data, like, axis = ctx.inputs[0], ctx.inputs[2], ctx.attrs["axis"]
        fits = like.shape == (*before, *like.shape[axis : axis + 1], *after)
        ctx.check(
            fits and len(like.shape) == len(before) + 1 + len(after),
            f"{data} like {like}",
            f"like of shape ({', '.join(map(str, (*before, 'segments', *after)))})",
        )
        return (tensor_type(like.shape, data.dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        return with_like(super().sbp(ctx), 2)

    def samples(self, rng: Rng) -> Samples:
        for sample in super().samples(rng):
            like = np.zeros(np.shape(_segment_sum(*sample.inputs, **sample.attrs)))
            attrs = {"axis": sample.attrs["axis"], "first": sample.attrs.get("first", 0)}
            yield Sample((*sample.inputs, like), attrs)


# -------------------------------------------------------- ops with leading batch axes


def _batched(ctx: InferContext) -> tuple[TensorType, TensorType, int]:
    """Return the types of data and index, and the data axis that the last index axis addresses."""
    x, index = ctx.inputs[0], checked_index(ctx, 1)
    lead = len(index.shape) - 1
    fits = lead < len(x.shape) and x.shape[:lead] == index.shape[:-1]
    ctx.check(fits, f"indices {index} for {x}", "equal leading sizes, all but the indices' last")
    return x, index, lead


def _batch_sbp(ctx: SbpContext, *along: Row) -> Signatures:
    lead, rank = len(ctx.inputs[1].shape) - 1, len(ctx.inputs[0].shape)
    return signatures(
        *(((S(i), S(i)), S(i)) for i in range(lead)),
        *along,
        *(((S(i), B), S(i)) for i in range(lead + 1, rank)),
    )


def _per_batch(x: Array, index: Array) -> Iterator[tuple[Array, Array]]:
    lead = index.ndim - 1
    flat = x.reshape(-1, *x.shape[lead:])
    return zip(flat, index.reshape(-1, index.shape[-1]), strict=True)


class BatchGather(OpDef):
    schema = "batch_gather(in, indices) -> out"
    attrs = {"first": 0}
    localize = staticmethod(from_row(first_input, _after_batch))

    def infer(self, ctx: InferContext) -> Types:
        x, index, lead = _batched(ctx)
        return (tensor_type(index.shape + x.shape[lead + 1 :], x.dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        lead = len(ctx.inputs[1].shape) - 1
        return _batch_sbp(ctx, ((B, S(lead)), S(lead)), ((S(lead), B), P), *MOVED)

    def gradient(self, g: GradContext) -> Gradients:
        count = g.x.shape[len(g.inputs[1].shape) - 1]
        attrs = {"num_segments": count, "first": g.attrs["first"]}
        return g.one("unsorted_batch_segment_sum", g.dy, g.inputs[1], **attrs), None

    def reference(self, x: Array, index: Array, *, first: int) -> Array:
        rows = [_gather(part, ids, axis=0, first=first) for part, ids in _per_batch(x, index)]
        return np.array(rows, x.dtype).reshape(index.shape + x.shape[index.ndim :])

    def samples(self, rng: Rng) -> Samples:
        cases = ((2, 5), (2, 3)), ((2, 3, 4, 2), (2, 3, 6)), ((4, 3), (5,)), ((1, 2), (1, 1))
        for x, index in cases:
            indices = rng.integers(-1, x[len(index) - 1] + 1, index).astype(np.int32)
            yield Sample((rng.uniform(-3, 3, x), indices))
        indices = rng.integers(-1, 9, (2, 6)).astype(np.int32)
        yield Sample((rng.uniform(-3, 3, (2, 4, 3)), indices), {"first": 3}, note="a part")


class UnsortedBatchSegmentSum(OpDef):
    schema = "unsorted_batch_segment_sum(data, segment_ids) -> out"
    attrs = {"num_segments": REQUIRED, "first": 0}
    localize = staticmethod(from_row(first_output, _after_batch))

    def infer(self, ctx: InferContext) -> Types:
        x, index, lead = _batched(ctx)
        count = ctx.attrs["num_segments"]
        ctx.check(x.shape[lead] == index.shape[-1], f"ids {index} for {x}", "as many ids as rows")
        ctx.check(count >= 1 or ctx.attrs["first"], f"num_segments {count}", "at least 1")
        return (tensor_type((*x.shape[:lead], count, *x.shape[lead + 1 :]), x.dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        lead = len(ctx.inputs[1].shape) - 1
        return _batch_sbp(ctx, ((S(lead), S(lead)), P), ((B, B), S(lead)), ((P, B), P))

    def gradient(self, g: GradContext) -> Gradients:
        return g.one("batch_gather", g.dy, g.inputs[1], first=g.attrs["first"]), None

    def reference(self, data: Any, ids: Array, *, num_segments: int, first: int) -> Array:
        rows = [
            _segment_sum(part, segments, axis=0, num_segments=num_segments, first=first)
            for part, segments in _per_batch(data, ids)
        ]
        lead = ids.ndim - 1
        shape = (*data.shape[:lead], num_segments, *data.shape[lead + 1 :])
        return np.array(rows, data.dtype).reshape(shape)

    def samples(self, rng: Rng) -> Samples:
        for x, ids, count in (((3, 4), (3, 4), 2), ((2, 3, 4, 2), (2, 3, 4), 3), ((5, 2), (5,), 4)):
            segments = rng.integers(-1, count + 1, ids).astype(np.int64)
            attrs = {"num_segments": count, "first": count // 3}
            yield Sample((rng.uniform(-3, 3, x), segments), attrs)


# -------------------------------------------------------- ops with one index per element


def _check_dim(ctx: InferContext, x: TensorType, index: TensorType) -> None:
    dim, rank = ctx.attrs["dim"], len(x.shape)
    ctx.check(0 <= dim < rank, f"dim {dim} of {x}", f"0 <= dim < {rank}")
    fits = len(index.shape) == rank and all(
        n == m for i, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)) if i != dim
    )
    ctx.check(fits, f"index {index} for {x}", f"equal sizes except on axis {dim}")


def _dim_sbp(ctx: SbpContext, *along: Row) -> Signatures:
    others = (i for i in range(len(ctx.inputs[0].shape)) if i != ctx.attrs["dim"])
    return signatures(*(((S(i), S(i)), S(i)) for i in others), *along)


DIM_CASES: tuple[tuple[Shape, int, int], ...] = (((3, 4), 1, 2), ((4, 2, 3), 0, 5), ((5,), 0, 3))


class DimGather(OpDef):
    schema = "dim_gather(input, index) -> output"
    attrs = {"dim": REQUIRED, "first": 0}
    localize = staticmethod(from_row(first_input, _by_attr("dim")))

    def infer(self, ctx: InferContext) -> Types:
        x, index = ctx.inputs[0], checked_index(ctx, 1)
        _check_dim(ctx, x, index)
        return (tensor_type(index.shape, x.dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        dim = ctx.attrs["dim"]
        return _dim_sbp(ctx, ((B, S(dim)), S(dim)), ((S(dim), B), P), *MOVED)

    def gradient(self, g: GradContext) -> Gradients:
        x, index = g.inputs
        return g.one("dim_scatter_add_like", x, g.dy, index, **g.attrs), None

    def reference(self, x: Array, index: Array, *, dim: int, first: int) -> Array:
        valid, index = _in_range(index.astype(np.int64) - first, x.shape[dim])
        return np.where(valid, np.take_along_axis(x, index, dim), 0).astype(x.dtype)

    def samples(self, rng: Rng) -> Samples:
        for shape, dim, count in DIM_CASES:
            index = rng.integers(-1, shape[dim] + 1, (*shape[:dim], count, *shape[dim + 1 :]))
            for first in (0, 1):
                attrs = {"dim": dim, "first": first}
                yield Sample((rng.uniform(-3, 3, shape), index.astype(np.int32)), attrs)


class DimScatterAddLike(OpDef):
    schema = "dim_scatter_add_like(like, input, index) -> output"
    attrs = {"dim": REQUIRED, "first": 0}
    localize = staticmethod(from_row(first_output, _by_attr("dim")))

    def infer(self, ctx: InferContext) -> Types:
        like, x, index = ctx.inputs[0], ctx.inputs[1], checked_index(ctx, 2)
        _check_dim(ctx, like, index)
        ctx.check(x.shape == index.shape, f"{x} at indices {index}", "as many numbers as indices")
        return (tensor_type(like.shape, x.dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        dim = ctx.attrs["dim"]
        added = ((S(dim), S(dim)), P), ((B, B), S(dim)), ((P, B), P)
        return with_like(_dim_sbp(ctx, *added), 0)

    def gradient(self, g: GradContext) -> Gradients:
        return None, g.one("dim_gather", g.dy, g.inputs[2], **g.attrs), None

    def reference(self, like: Array, x: Array, index: Array, *, dim: int, first: int) -> Array:
        out = np.zeros(like.shape, x.dtype)
        for place in np.ndindex(*index.shape):
            at = int(index[place]) - first
            if 0 <= at < like.shape[dim]:
                out[(*place[:dim], at, *place[dim + 1 :])] += x[place]
        return out

    def samples(self, rng: Rng) -> Samples:
        for sample in DimGather().samples(rng):
            x, index = sample.inputs
            yield Sample((x, rng.uniform(-3, 3, index.shape), index), sample.attrs)


OPS = specs(
    Gather, UnsortedSegmentSum, UnsortedSegmentSumLike, BatchGather, UnsortedBatchSegmentSum,
    DimGather, DimScatterAddLike,
)  # fmt: skip
