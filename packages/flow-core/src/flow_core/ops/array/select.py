"""Ops that select regions of tensors or concatenate them: concat, split, slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.shapes import Shape, slice_range
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import signatures
from flow_core.plugins.specs import REQUIRED, InferContext, LocalContext, Part, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, S, Sbp, Signatures

LAST = 2**63 - 1
"""The start or stop of a slice that means the end of the axis, whatever the size of the axis."""


# ---------------------------------------------------------------------------- concat and split


def offsets(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the starts of consecutive regions of the given sizes.

    >>> offsets((3, 1, 2))
    (0, 3, 4)
    """
    return tuple(accumulate(sizes, initial=0))[:-1]


def _resized(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _axis_of(ctx: InferContext) -> int:
    axis, x = ctx.attrs["axis"], ctx.inputs[0]
    ctx.check(0 <= axis < len(x.shape), f"axis {axis} of {x}", f"0 <= axis < {len(x.shape)}")
    return int(axis)


def _but_axis(ctx: SbpContext) -> Signatures:
    """Allow P, and S(i) on all axes but the op's axis; on that axis, too, for a single part."""
    n, m, axis = len(ctx.inputs), len(ctx.outputs), ctx.attrs["axis"]
    splits = (S(i) for i in range(len(ctx.inputs[0].shape)) if i != axis or n == m == 1)
    kinds: tuple[Sbp, ...] = (*splits, P, *EXTREMES)
    return signatures(*(((s,) * n, (s,) * m) for s in kinds))


def _region(g: GradContext, axis: int, start: int, size: int) -> Sym:
    rank = len(g.dy.shape)
    first, last = _resized((0,) * rank, axis, start), _resized((LAST,) * rank, axis, start + size)
    return g.one("slice", g.dy, start=first, stop=last, step=(1,) * rank)


class Concat(OpDef):
    schema = "concat(in*) -> out"
    attrs = {"axis": REQUIRED, "max_dim_size": None}
    sbp = staticmethod(_but_axis)
    reference = staticmethod(lambda *xs, axis, max_dim_size: np.concatenate(xs, axis))

    def infer(self, ctx: InferContext) -> Types:
        first, axis = ctx.inputs[0], _axis_of(ctx)
        for x in ctx.inputs:
            same = len(x.shape) == len(first.shape) and (
                _resized(x.shape, axis, 0) == _resized(first.shape, axis, 0)
            )
            ctx.check(
                same and x.dtype is first.dtype,
                ", ".join(map(str, ctx.inputs)),
                f"one element type, and equal sizes except on axis {axis}",
            )
        total, limit = sum(x.shape[axis] for x in ctx.inputs), ctx.attrs["max_dim_size"]
        ctx.check(limit is None or limit >= total, f"max_dim_size {limit}", f"at least {total}")
        return (tensor_type(_resized(first.shape, axis, total), first.dtype),)

    def gradient(self, g: GradContext) -> Gradients:
        axis = g.attrs["axis"]
        sizes = tuple(x.shape[axis] for x in g.inputs)
        if all(g.needed):
            return g.all("split", g.dy, axis=axis, sizes=sizes)
        return [
            _region(g, axis, start, size) if needed else None
            for start, size, needed in zip(offsets(sizes), sizes, g.needed, strict=True)
        ]

    def samples(self, rng: Rng) -> Samples:
        for shapes, axis in (
            (((2, 3), (2, 1)), 1), (((2, 3), (4, 3), (1, 3)), 0), (((2, 2, 2), (2, 2, 2)), 1),
            (((3,), (0,)), 0), (((2, 3),), 0),
        ):  # fmt: skip
            yield Sample(tuple(rng.uniform(-3, 3, s) for s in shapes), {"axis": axis})
        yield Sample((rng.integers(0, 9, (2, 1)), rng.integers(0, 9, (2, 2))), {"axis": 1})


def _split_gradient(g: GradContext) -> tuple[Sym | None, ...]:
    parts = (
        g.one("zero_like", y) if dy is None else dy
        for y, dy in zip(g.outputs, g.grads, strict=True)
    )
    dx = g.one("concat", *parts, axis=g.attrs["axis"])
    return (dx, *(None for _ in g.inputs[1:]))


def _split(x: Array, *, axis: int, sizes: tuple[int, ...]) -> tuple[Array, ...]:
    return tuple(np.split(x, offsets(sizes)[1:], axis))


class Split(OpDef):
    schema = "split(in) -> out*"
    attrs = {"axis": REQUIRED, "sizes": REQUIRED}
    sbp = staticmethod(_but_axis)
    gradient = staticmethod(_split_gradient)
    reference = staticmethod(_split)

    def infer(self, ctx: InferContext) -> Types:
        x, axis, sizes = ctx.inputs[0], _axis_of(ctx), ctx.attrs["sizes"]
        ctx.check(
            sum(sizes) == x.shape[axis] and min(sizes, default=-1) >= 0,
            f"sizes {sizes} for axis {axis} of {x}",
            f"sizes that add up to {x.shape[axis]}",
        )
        return tuple(tensor_type(_resized(x.shape, axis, n), x.dtype) for n in sizes)

    def localize(self, ctx: LocalContext) -> Attributes:
        return {"sizes": tuple(p.shape[ctx.attrs["axis"]] for p in ctx.outputs)}

    def samples(self, rng: Rng) -> Samples:
        for shape, axis, sizes in (((5, 3), 0, (2, 3)), ((2, 6), 1, (1, 0, 5)), ((3, 2), 1, (2,))):
            yield Sample((rng.uniform(-3, 3, shape),), {"axis": axis, "sizes": sizes})


class SplitLike(OpDef):
    schema = "split_like(in, like*) -> out*"
    attrs = {"axis": REQUIRED}
    gradient = staticmethod(_split_gradient)

    def infer(self, ctx: InferContext) -> Types:
        x, *likes = ctx.inputs
        axis, rank = _axis_of(ctx), len(likes[0].shape) if likes else 0
        fits = axis < rank and all(
            len(t.shape) == rank and _resized(t.shape, axis, 0) == _resized(x.shape[:rank], axis, 0)
            for t in likes
        )
        ctx.check(
            fits and sum(t.shape[axis] for t in likes) == x.shape[axis],
            f"{x} like {', '.join(map(str, likes))}",
            f"shapes that add up to the input's along axis {axis}",
        )
        return tuple(tensor_type(t.shape + x.shape[rank:], x.dtype) for t in likes)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Give all inputs ``like`` the same SBP, to avoid 2^n rules; only their shapes are read."""
        n, axis = len(ctx.outputs), ctx.attrs["axis"]
        rank, like_rank = len(ctx.inputs[0].shape), len(ctx.inputs[1].shape)
        led = (((S(i),) * (n + 1), (S(i),) * n) for i in range(like_rank) if i != axis)
        others: tuple[Sbp, ...] = (*map(S, range(like_rank, rank)), P, *EXTREMES)
        rest = (((s, *(like,) * n), (s,) * n) for s in others for like in (B, P))
        return signatures(*led, *rest, ((B, *(P,) * n), (B,) * n))

    def reference(self, x: Array, *likes: Array, axis: int) -> tuple[Array, ...]:
        return _split(x, axis=axis, sizes=tuple(t.shape[axis] for t in likes))

    def samples(self, rng: Rng) -> Samples:
        for shapes, axis in ((((5, 3), (2, 3), (3, 3)), 0), (((2, 5, 2), (2, 1), (2, 4)), 1)):
            yield Sample(tuple(rng.uniform(-3, 3, s) for s in shapes), {"axis": axis})


# --------------------------------------------------------------------------------------- slices


def whole_shape(shape: Shape, attrs: Mapping[str, AttrValue]) -> Shape:
    """Return the sizes to which a slice op's attributes refer: those of the logical tensor.

    For each axis, the attribute ``window`` holds (start, stop, size of the axis) of a device's
    part.
    """
    window = attrs["window"]
    return shape if window is None else tuple(size for _, _, size in window)


def slice_ranges(shape: Shape, attrs: Mapping[str, AttrValue]) -> tuple[range, ...]:
    """Return `slice_range` of every axis of the logical tensor."""
    sizes = whole_shape(shape, attrs)
    rows = zip(sizes, attrs["start"], attrs["stop"], attrs["step"], strict=True)
    return tuple(slice_range(*row) for row in rows)


def regions(
    shape: Shape, attrs: Mapping[str, AttrValue]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return, for the elements of a slice on a device, their indices in its part and the slice."""
    ranges = slice_ranges(shape, attrs)
    window = attrs["window"] or [(0, n, n) for n in shape]
    pairs = [_intersection(r, low, high) for r, (low, high, _) in zip(ranges, window, strict=True)]
    return tuple(own for own, _ in pairs), tuple(part for _, part in pairs)


def _intersection(taken: range, low: int, high: int) -> tuple[slice, slice]:
    """Return the selected elements in a part of an axis, and their positions in the selection.

    >>> _intersection(range(1, 9, 3), 3, 6)
    (slice(1, 4, 3), slice(1, 2, None))
    """
    forward = taken.step > 0
    ends = (low, high) if forward else (high - 1, low - 1)
    first, last = (min(len(range(taken.start, end, taken.step)), len(taken)) for end in ends)
    own = range(taken.start - low, taken.stop - low, taken.step)[first:last]
    if not own:
        return slice(0, 0), slice(0, 0)
    return slice(own.start, None if own.stop < 0 else own.stop, own.step), slice(first, last)


def _sliced_shape(ctx: InferContext, whole: TensorType) -> Shape:
    rank, window = len(whole.shape), ctx.attrs["window"]
    rows = tuple(ctx.attrs[key] for key in ("start", "stop", "step"))
    ctx.check(all(len(row) == rank for row in rows), f"{rows} for {whole}", f"{rank} of each")
    ctx.check(all(rows[2]), f"step {rows[2]}", "steps other than 0")
    fits = window is None or tuple(high - low for low, high, _ in window) == whole.shape
    ctx.check(fits, f"window {window} for {whole}", "a window of the tensor's size")
    sizes = whole_shape(whole.shape, ctx.attrs)
    shape = tuple(map(len, slice_ranges(whole.shape, ctx.attrs)))
    empty = [i for i, n in enumerate(shape) if n == 0 and sizes[i]]
    found = f"start {rows[0]}, stop {rows[1]}, step {rows[2]} of {whole}"
    ctx.check(not empty, found, f"a slice that selects something of axes {empty}")
    return shape


def _full_axes(shape: Shape, attrs: Mapping[str, AttrValue]) -> list[int]:
    """Return the axes that a slice keeps whole: on these, the attributes apply to any part."""
    ranges, sizes = slice_ranges(shape, attrs), whole_shape(shape, attrs)
    steps = attrs["step"]
    return [i for i, r in enumerate(ranges) if r == range(sizes[i]) and steps[i] == 1]


def _cut_axes(shape: Shape, attrs: Mapping[str, AttrValue]) -> list[int]:
    full = _full_axes(shape, attrs)
    return [i for i in range(len(shape)) if i not in full]


def _resized_window(
    outer: Sequence[tuple[int, int, int]], part: Part, cut: Sequence[int]
) -> tuple[tuple[int, int, int], ...]:
    """Return the window of a part of an outer window; on axes that are not cut, it is the whole
    part.
    """
    found = []
    for i, ((base, _, size), (low, high)) in enumerate(zip(outer, part.region, strict=True)):
        whole = 0, high - low, high - low
        found.append((base + low, base + high, size) if i in cut else whole)
    return tuple(found)


def _attrs_of_slice(g: GradContext) -> dict[str, AttrValue]:
    return {key: g.attrs[key] for key in ("start", "stop", "step", "window")}


SLICES: tuple[tuple[Shape, ...], ...] = (
    ((5, 4), (1, 0), (4, LAST), (1, 1)),
    ((5, 4), (-2, LAST), (LAST, -LAST, ), (1, -1)),
    ((7,), (0,), (LAST,), (3,)),
    ((3, 6, 2), (0, 5, -2), (LAST, 0, LAST), (1, -2, 1)),
    ((0, 3), (0, 1), (LAST, 2), (1, 1)),
)  # fmt: skip


class Slicing(OpDef):
    """An op on a region of a tensor."""

    attrs = {"start": REQUIRED, "stop": REQUIRED, "step": REQUIRED, "window": None}
    whole: int = 0  # the input that is the tensor
    parts: tuple[bool, ...] = (False, True)  # whether each input has the shape of the region

    def localize(self, ctx: LocalContext) -> Attributes:
        """Adapt ``window`` to the device's part of the tensor."""
        part = ctx.inputs[self.whole]
        shape = part.type.shape
        cut = _cut_axes(shape, ctx.attrs)
        outer = ctx.attrs["window"] or tuple((0, n, n) for n in shape)
        if ctx.attrs["window"] is None and all(part.is_whole(i) for i in cut):
            return {}
        return {"window": _resized_window(outer, part, cut)}

    def samples(self, rng: Rng) -> Samples:
        for shape, start, stop, step in SLICES:
            attrs: dict[str, Any] = {"start": start, "stop": stop, "step": step, "window": None}
            part = tuple(map(len, slice_ranges(shape, attrs)))
            yield Sample(tuple(rng.uniform(-3, 3, part if p else shape) for p in self.parts), attrs)
        attrs = {"start": (1, 8), "stop": (LAST, 0), "step": (2, -3)}
        attrs["window"] = ((3, 6, 7), (2, 6, 9))
        arrays = tuple(rng.uniform(-3, 3, (3, 3) if part else (3, 4)) for part in self.parts)
        yield Sample(arrays, attrs, note="a part")


class Slice(Slicing):
    schema = "slice(x) -> y"
    parts = (False,)

    def infer(self, ctx: InferContext) -> Types:
        return (tensor_type(_sliced_shape(ctx, ctx.inputs[0]), ctx.inputs[0].dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Map a split of a sliced axis to P(sum), since each device writes its part into zeros."""
        shape = ctx.inputs[0].shape
        kinds: tuple[Sbp, ...] = (*map(S, _full_axes(shape, ctx.attrs)), P, *EXTREMES)
        parts = ((S(i), P) for i in _cut_axes(shape, ctx.attrs))
        return signatures(*((s, s) for s in kinds), *parts)

    def gradient(self, g: GradContext) -> Gradients:
        """Emit a pad if all steps are 1, since a pad needs only dy; otherwise emit `slice_grad`."""
        if any(step != 1 for step in g.attrs["step"]) or g.attrs["window"]:
            return (g.one("slice_grad", g.dy, g.x, **_attrs_of_slice(g)),)
        ranges = slice_ranges(g.x.shape, g.attrs)
        before = tuple(r.start for r in ranges)
        after = tuple(n - r.stop for n, r in zip(g.x.shape, ranges, strict=True))
        return (g.one("pad", g.dy, padding_before=before, padding_after=after),)

    def reference(self, x: Array, **attrs: AttrValue) -> Array:
        own, part = regions(x.shape, attrs)
        out = np.zeros(tuple(map(len, slice_ranges(x.shape, attrs))), x.dtype)
        out[part] = x[own]
        return out


class LogicalSlice(Slice):
    schema = "logical_slice(x) -> y"


class SliceGrad(Slicing):
    schema = "slice_grad(dy, like) -> dx"
    whole = 1
    parts = (True, False)
    gradient = staticmethod(lambda g: (g.one("slice", g.dy, **_attrs_of_slice(g)), None))

    def infer(self, ctx: InferContext) -> Types:
        dy, like = ctx.inputs
        shape = _sliced_shape(ctx, like)
        ctx.check(dy.shape == shape, f"gradient of shape {dy.shape}", f"shape {shape}")
        return (tensor_type(like.shape, dy.dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        shape = ctx.inputs[1].shape
        return signatures(
            *(((S(i), S(i)), S(i)) for i in _full_axes(shape, ctx.attrs)),
            *(((B, S(i)), S(i)) for i in _cut_axes(shape, ctx.attrs)),
            *(((P, like), P) for like in (B, P)),
            ((B, P), B),
        )

    def reference(self, dy: Array, like: Array, **attrs: AttrValue) -> Array:
        own, part = regions(like.shape, attrs)
        dx = np.zeros(like.shape, dy.dtype)
        dx[own] = dy[part]
        return dx


class Update(Slicing):
    """An op that replaces a region of a tensor."""

    def infer(self, ctx: InferContext) -> Types:
        x, update = ctx.inputs
        shape = _sliced_shape(ctx, x)
        allowed = tensor_type(shape, x.dtype)
        ctx.check(update == allowed, f"update of type {update}", str(allowed))
        return (x,)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Require a broadcast update if a sliced axis is split: each device reads its part of the
        update.
        """
        shape, m = ctx.inputs[0].shape, len(ctx.outputs)
        kinds: tuple[Sbp, ...] = (*map(S, _full_axes(shape, ctx.attrs)), P, *EXTREMES)
        parts = (((S(i), B), (S(i),) * m) for i in _cut_axes(shape, ctx.attrs))
        return signatures(*(((s, s), (s,) * m) for s in kinds), *parts)

    def reference(self, x: Array, update: Array, **attrs: AttrValue) -> Array:
        own, part = regions(x.shape, attrs)
        y = x.copy()
        y[own] = update[part]
        return y


class SliceUpdate(Update):
    schema = "slice_update(x, update) -> y"
    inplace = (0,)

    def gradient(self, g: GradContext) -> Gradients:
        attrs, (to_x, to_update) = _attrs_of_slice(g), g.needed
        zeros = g.one("zero_like", g.inputs[1]) if to_x else None
        return (
            g.one("slice_update", g.dy, zeros, **attrs) if zeros else None,
            g.one("slice", g.dy, **attrs) if to_update else None,
        )


class LogicalSliceAssign(Update):
    schema = "logical_slice_assign(ref, value)"
    mutates = (0,)
    effect = True

    def infer(self, ctx: InferContext) -> Types:
        return super().infer(ctx)[1:]


OPS = specs(
    Concat, Split, SplitLike, Slice, LogicalSlice, SliceGrad, SliceUpdate, LogicalSliceAssign,
)  # fmt: skip
