"""Max and average pooling over one, two and three axes of space, and their gradients.

``padding`` is "valid", "same" or "same_upper" (with one element more after the input if the padding
is odd), "same_lower" (with one element more before it), or "customized", which uses
``padding_before`` and ``padding_after``.  With "customized", ``ceil_mode`` keeps windows that
extend beyond the end.  Maxima and averages ignore padding.  If several elements of a window are the
largest, the first one receives the gradient.  NaN counts as larger than all numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import bool_
from flow_core.base.shapes import same_padding
from flow_core.ir.graph import AttrValue, TensorType
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.math.reduce import lowest
from flow_core.ops.nn.windows import (
    Ints,
    channel_axis,
    check_data_format,
    check_per_axis,
    check_rank,
    from_first,
    pointwise_axes,
    space_axes,
    taps,
    to_first,
    with_space,
)
from flow_core.ops.rules import nondecreasing, signatures, split_axes, with_rows
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, Partial, Signatures

PADDINGS = ("valid", "same", "same_upper", "same_lower", "customized")


def pool_window(attrs: Mapping[str, AttrValue], axis: int, size: int) -> tuple[int, int]:
    """Return the padding before the input and the number of windows on one spatial axis.

    >>> attrs = {"padding": "same", "pool_size": (2,), "strides": (2,)}
    >>> pool_window(attrs, 0, 7)
    (0, 4)
    """
    kernel, stride, padding = attrs["pool_size"][axis], attrs["strides"][axis], attrs["padding"]
    if padding == "valid":
        return 0, (size - kernel) // stride + 1
    if padding != "customized":
        before, _ = same_padding(size, kernel, stride, 1, padding == "same_lower")
        return before, -(-size // stride)
    before, after = attrs["padding_before"][axis], attrs["padding_after"][axis]
    spare = stride - 1 if attrs["ceil_mode"] else 0
    return before, (size + before + after - kernel + spare) // stride + 1


def pool_windows(attrs: Mapping[str, AttrValue], size: Ints) -> tuple[Ints, Ints]:
    """Return the padding before the input and the number of windows, per spatial axis."""
    pairs = [pool_window(attrs, i, n) for i, n in enumerate(size)]
    return tuple(b for b, _ in pairs), tuple(o for _, o in pairs)


def window_counts(attrs: Mapping[str, AttrValue], size: Ints) -> list[Array]:
    """Return the number of tensor elements in each window, as one vector per spatial axis.

    >>> attrs = {"padding": "same", "pool_size": (3,), "strides": (2,)}
    >>> window_counts(attrs, (5,))
    [array([2, 3, 2])]
    """
    counts = []
    for axis, n in enumerate(size):
        before, out = pool_window(attrs, axis, n)
        starts = np.arange(out) * attrs["strides"][axis] - before
        stops = np.minimum(starts + attrs["pool_size"][axis], n)
        counts.append(stops - np.maximum(starts, 0))
    return counts


def _space(type_: TensorType, data_format: str) -> Ints:
    return tuple(type_.shape[i] for i in space_axes(len(type_.shape), data_format))


def _check_within(ctx: InferContext, axis: int, size: int) -> None:
    """Fail if the first or the last window of an axis contains only padding.

    OneFlow computes the lowest number of the element type, or a mean of 0 / 0, for such windows.
    Omitting the last one, as other frameworks do, would change OneFlow's shapes.
    """
    (before, out), attrs = pool_window(ctx.attrs, axis, size), ctx.attrs
    kernel, stride = attrs["pool_size"][axis], attrs["strides"][axis]
    first, last = kernel - before, (out - 1) * stride - before
    spare = last + kernel - stride - size  # padding that remains after without the last window
    hint = "reduce the padding before" if first <= 0 else "reduce the padding after"
    if first > 0 and attrs["ceil_mode"] and spare >= 0:
        hint = f"padding {before, spare} on that axis omits that window"
    elif first > 0 and pool_window({**attrs, "ceil_mode": False}, axis, size)[1] < out:
        hint = "ceil_mode=False omits that window"
    ctx.check(
        first > 0 and last < size,
        f"{out} windows over the {size} elements of axis {axis} of space, of which the "
        f"{'first' if first <= 0 else 'last'} has padding only",
        "windows with at least one element each",
        hint,
    )


def _check(ctx: InferContext, dims: int, floating: bool) -> None:
    check_data_format(ctx)
    check_rank(ctx, dims)
    check_per_axis(ctx, dims, pool_size=1, strides=1)
    padding = ctx.attrs["padding"]
    ctx.check(padding in PADDINGS, f"padding={padding!r}", ", ".join(PADDINGS))
    if padding == "customized":
        check_per_axis(ctx, dims, padding_before=0, padding_after=0)
    space, dtype = _space(ctx.inputs[0], ctx.attrs["data_format"]), ctx.inputs[0].dtype
    ctx.check(min(space) > 0, f"input {ctx.inputs[0]}", "at least one element per axis of space")
    ctx.check(
        dtype.is_floating or not (floating or dtype is bool_),
        f"input {ctx.inputs[0]}",
        "a floating point tensor" if floating else "a tensor of numbers",
    )


def _splits(ctx: SbpContext) -> Signatures:
    """Split the batch, the channels, or axes whose windows are single elements."""
    x, attrs = ctx.inputs[0], ctx.attrs
    y = ctx.outputs[0] if len(ctx.inputs) == 1 else ctx.inputs[1]
    before = pool_windows(attrs, _space(x, attrs["data_format"]))[0]
    local = pointwise_axes(ctx, attrs["pool_size"], before, x, y)
    return split_axes(ctx, (0, channel_axis(len(x.shape), attrs["data_format"]), *local))


def _padded(x: Array, attrs: Mapping[str, AttrValue], fill: Any) -> tuple[Array, Ints, Ints]:
    """Return x, channels first and padded, and for each axis the padding before and the window
    count.
    """
    before, out = pool_windows(attrs, x.shape[2:])
    columns = zip(before, out, attrs["strides"], attrs["pool_size"], x.shape[2:], strict=True)
    widths = [(b, max(0, (o - 1) * s + k - b - n)) for b, o, s, k, n in columns]
    padded = np.pad(x, [(0, 0), (0, 0), *widths], constant_values=fill)
    return padded, before, out


def _taps(attrs: Mapping[str, Any], out: Ints) -> Iterator[tuple[Any, ...]]:
    steps = (1,) * len(out)
    for _, space in taps(attrs["pool_size"], out, attrs["strides"], steps):
        yield (slice(None), slice(None), *space)


def _counts(attrs: Mapping[str, AttrValue], size: Ints) -> Array:
    grids = np.ix_(*window_counts(attrs, size))
    return prod(grids[1:], start=grids[0])


def _crop(padded: Any, before: Ints, size: Ints) -> Any:
    return padded[(..., *(slice(b, b + n) for b, n in zip(before, size, strict=True)))]


def _matching(
    x: Array, y: Array, dy: Array, attrs: Mapping[str, AttrValue]
) -> tuple[Array, Array, Array]:
    """Return the arrays with channels first; fail unless y and dy have the pooled shape."""
    x, y, dy = (to_first(a, attrs["data_format"]) for a in (x, y, dy))
    shape = (*x.shape[:2], *pool_windows(attrs, x.shape[2:])[1])
    if not y.shape == dy.shape == shape:
        raise ValueError(f"y {y.shape} and dy {dy.shape} for x {x.shape}, not {shape}")
    return x, y, dy


def _cases(dims: int) -> Iterator[tuple[Ints, dict[str, Any]]]:
    """Yield spatial sizes and attributes, with all paddings, overlaps, gaps and one-element
    windows.
    """
    size, pair, one = ((7,), (6, 5), (4, 5, 4))[dims - 1], (2,) * dims, (1,) * dims
    for padding, kernel, strides in (
        ("valid", pair, pair),
        ("same", (3, 2, 3)[:dims], (2, 2, 1)[:dims]),
        ("same_upper", pair, (3, 1, 2)[:dims]),
        ("same_lower", (2, 3, 2)[:dims], (1, 2, 3)[:dims]),
        ("valid", (3, 1, 1)[:dims], one),
        ("valid", one, one),
        ("valid", one, pair),
    ):
        yield size, {"padding": padding, "pool_size": kernel, "strides": strides}
    wide = {"padding": "customized", "pool_size": (3,) * dims, "strides": pair}
    edges = {"padding_before": (1, 2, 0)[:dims], "padding_after": (0, 1, 1)[:dims]}
    for ceil_mode in (False, True):
        yield size, wide | edges | {"ceil_mode": ceil_mode}


FIRST, LAST = {"data_format": "channels_first"}, {"data_format": "channels_last"}


def _distinct(rng: np.random.Generator, shape: Ints) -> Array:
    """Return random numbers with gaps between them, so that no maximum is close to a tie."""
    return (rng.permutation(prod(shape)).reshape(shape) - prod(shape) / 2) / 7


_ATTRS = {
    "padding": REQUIRED, "padding_before": None, "padding_after": None, "data_format": REQUIRED,
    "pool_size": REQUIRED, "strides": REQUIRED, "ceil_mode": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pool(OpDef):
    """A row for a number of axes of space."""

    type: str
    dims: int
    schema = "(x) -> y"
    attrs = _ATTRS
    floating: ClassVar[bool] = False

    def infer(self, ctx: InferContext) -> Types:
        _check(ctx, self.dims, self.floating)
        (x,), attrs, form = ctx.inputs, ctx.attrs, ctx.attrs["data_format"]
        size = _space(x, form)
        out = pool_windows(attrs, size)[1]
        ctx.check(min(out) >= 1, f"{out} windows on input {x}", "at least one window per axis")
        for axis, n in enumerate(size):
            _check_within(ctx, axis, n)
        return (with_space(x, form, x.shape[channel_axis(self.dims + 2, form)], out),)

    def gradient(self, g: GradContext) -> Gradients:
        return (g.one(f"{self.type}_grad", g.x, g.y, g.dy, **g.attrs),)

    def samples(self, rng: Rng) -> Samples:
        for size, attrs in _cases(self.dims):
            yield Sample((_distinct(rng, (2, 2, *size)),), attrs | FIRST)
            yield Sample((_distinct(rng, (1, *size, 3)),), attrs | LAST)
        ties = rng.integers(0, 2, (2, 3, *(6, 5, 4)[: self.dims])).astype(float)
        overlapping = {"pool_size": (3,) * self.dims, "strides": (2,) * self.dims}
        yield Sample((ties,), {"padding": "same"} | overlapping | FIRST, False, "ties")


class MaxPool(Pool):
    def sbp(self, ctx: SbpContext) -> Signatures:
        selects = set(ctx.attrs["pool_size"]) == {1}
        kinds = (P, *EXTREMES) if selects else (Partial("max"),)
        return signatures(*_splits(ctx), *((kind, kind) for kind in kinds))

    def reference(self, x: Array, **attrs: AttrValue) -> Array:
        x = to_first(x, attrs["data_format"])
        padded, _, out = _padded(x, attrs, lowest(x.dtype))
        parts = [padded[window] for window in _taps(attrs, out)]
        return from_first(np.maximum.reduce(parts), attrs["data_format"])


class AvgPool(Pool):
    floating = True

    def sbp(self, ctx: SbpContext) -> Signatures:
        selects = set(ctx.attrs["pool_size"]) == {1}
        return signatures(*_splits(ctx), (P, P), *(nondecreasing(ctx, 0) if selects else ()))

    def reference(self, x: Array, **attrs: AttrValue) -> Array:
        x = to_first(x, attrs["data_format"])
        padded, _, out = _padded(x, attrs, 0)
        total = np.add.reduce([padded[window] for window in _taps(attrs, out)])
        return from_first(total / _counts(attrs, x.shape[2:]), attrs["data_format"])


@dataclass(frozen=True, slots=True)
class PoolGrad(OpDef):
    """The gradient op of a row."""

    type: str
    pool: MaxPool | AvgPool
    schema = "(x, y, dy) -> dx"
    attrs = _ATTRS

    def infer(self, ctx: InferContext) -> Types:
        _check(ctx, self.pool.dims, True)
        x, y, dy = ctx.inputs
        ctx.check(y == dy, f"y {y}, dy {dy}", "y and dy of one type")
        out = pool_windows(ctx.attrs, _space(x, ctx.attrs["data_format"]))[1]
        ctx.check(
            _space(dy, ctx.attrs["data_format"]) == out and dy.dtype is x.dtype,
            f"x {x}, dy {dy}",
            f"dy of {out} windows, of x's element type",
        )
        return (x,)

    def samples(self, rng: Rng) -> Samples:
        for sample in self.pool.samples(rng):
            (x,), attrs = sample.inputs, {"ceil_mode": False, **sample.attrs}
            y = self.pool.reference(x, **attrs)
            dy = rng.uniform(-2, 2, y.shape)
            yield Sample((x, y, dy), attrs, gradient=self.pool.floating, note=sample.note)


class MaxPoolGrad(PoolGrad):
    sbp = staticmethod(with_rows(_splits, ((B, B, P), P)))

    def reference(self, x: Array, y: Array, dy: Array, **attrs: AttrValue) -> Array:
        form = attrs["data_format"]
        x, y, dy = _matching(x, y, dy, attrs)
        padded, before, out = _padded(x, attrs, -np.inf)
        grad, free = np.zeros_like(padded), np.ones(y.shape, bool)
        within, _, _ = _padded(np.ones(x.shape, bool), attrs, False)
        for window in _taps(attrs, out):
            both_nan = np.isnan(padded[window]) & np.isnan(y)
            hit = free & within[window] & ((padded[window] == y) | both_nan)
            grad[window] += np.where(hit, dy, 0)
            free &= ~hit
        return from_first(_crop(grad, before, x.shape[2:]), form)


class AvgPoolGrad(PoolGrad):
    sbp = staticmethod(
        with_rows(
            _splits,
            # only the shapes of x and y are read
            *(((x, y, P), P) for x in (B, P) for y in (B, P)),
            *(((x, y, B), B) for x, y in ((B, P), (P, B), (P, P))),
        )
    )

    def gradient(self, g: GradContext) -> Gradients:
        return None, None, g.one(self.pool.type, g.dy, **g.attrs)

    def reference(self, x: Array, y: Array, dy: Array, **attrs: AttrValue) -> Array:
        form = attrs["data_format"]
        x, _, dy = _matching(x, y, dy, attrs)
        padded, before, out = _padded(np.zeros(x.shape, dy.dtype), attrs, 0)
        shares = dy / _counts(attrs, x.shape[2:])
        for window in _taps(attrs, out):
            padded[window] += shares
        return from_first(_crop(padded, before, x.shape[2:]), form)


MAX = tuple(MaxPool(f"max_pool_{dims}d", dims) for dims in (1, 2, 3))
AVG = tuple(AvgPool(f"avg_pool_{dims}d", dims) for dims in (1, 2, 3))

OPS = specs(
    *MAX, *(MaxPoolGrad(f"{row.type}_grad", row) for row in MAX),
    *AVG, *(AvgPoolGrad(f"{row.type}_grad", row) for row in AVG),
)  # fmt: skip
