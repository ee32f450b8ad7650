"""Ops that reduce tensors over sets of axes.

As in OneFlow, the result of a reduction over all axes without ``keepdims`` has shape (1,), and
truth values are int8.  The API composes variances and norms from these ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.base.dtypes import int8
from flow_core.base.shapes import Shape
from flow_core.ir.graph import tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.math.broadcasting import check_kinds
from flow_core.ops.rules import checked_axis, floating, signatures
from flow_core.plugins.specs import REQUIRED, InferContext, LocalContext, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, Partial, S, Sbp, Signatures


def normal_axes(axes: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    """Return the axes as sorted non-negative numbers.

    >>> normal_axes((-1, 0), 3)
    (0, 2)
    """
    axes = (axes,) if isinstance(axes, int) else axes
    return tuple(sorted({axis % rank for axis in axes})) if rank else ()


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """Return the shape of a reduction over non-negative axes.

    >>> reduced_shape((2, 3), (0,), False), reduced_shape((2, 3), (0, 1), False)
    ((3,), (1,))
    """
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes) or (1,) * bool(shape)


def _axes(ctx: InferContext | SbpContext | GradContext) -> tuple[int, ...]:
    return normal_axes(ctx.attrs["axis"], len(ctx.inputs[0].shape))


def _check_axes(ctx: InferContext, rank: int) -> None:
    for axis in ctx.attrs["axis"] if isinstance(ctx.attrs["axis"], tuple) else (ctx.attrs["axis"],):
        checked_axis(ctx, axis, rank)


def _splits(ctx: SbpContext, partial: Sbp | None) -> Iterator[tuple[Sbp, Sbp]]:
    """Map splits of kept axes to splits, and splits of reduced axes to ``partial``."""
    axes = _axes(ctx)
    for i in range(len(ctx.inputs[0].shape)):
        before = 0 if ctx.attrs["keepdims"] else sum(a < i for a in axes)
        result = partial if i in axes else S(i - before)
        if result is not None:
            yield S(i), result


def _spread(g: GradContext, value: Sym) -> Sym:
    """Emit the broadcast of a value of the reduced shape to the input's shape."""
    axes = _axes(g)
    return g.one("broadcast_like", value, g.x, broadcast_axes=axes) if axes else value


def _extreme_gradient(g: GradContext) -> Gradients:
    """Divide the gradient equally among the elements that tie for the extreme value."""
    chosen = g.one("cast_like", g.one("broadcast_equal", g.x, _spread(g, g.y)), g.x)
    count = g.one("reduce_sum", chosen, axis=_axes(g), keepdims=g.attrs["keepdims"])
    return (chosen * _spread(g, g.dy / count),)


def _prod_gradient(g: GradContext) -> Gradients:
    return (g.one("reduce_prod_grad", g.x, g.dy, axis=_axes(g), keepdims=g.attrs["keepdims"]),)


def lowest(dtype: DTypeLike) -> Any:
    """Return the identity of max: the lowest value of a numpy type."""
    return -np.inf if np.dtype(dtype).kind not in "iu" else np.iinfo(dtype).min


def highest(dtype: DTypeLike) -> Any:
    """Return the identity of min: the highest value of a numpy type."""
    return np.inf if np.dtype(dtype).kind not in "iu" else np.iinfo(dtype).max


CASES = (
    ((7,), (0,), False), ((3, 5), (0,), False), ((3, 5), (1,), True), ((2, 3, 4), (0, 2), False),
    ((2, 3, 4), (-2,), False), ((2, 3, 4), (0, 1, 2), True), ((2, 3, 4), (0, 1, 2), False),
    ((3, 1), (1,), False), ((2, 3, 1, 2, 2), (1, 3), True), ((4, 0), (0,), False),
    ((2, 3), (), False), ((33, 40), (0,), False), ((40, 33), (-1,), True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reduction(OpDef):
    """A row of the table of reductions."""

    type: str
    # Numpy semantics ``reduced(x, axes, keepdims)``, for non-negative axes.
    reduced: Callable[..., Any]
    gradient: Callable[[GradContext], Gradients] | None = None
    # SBP of the result if a reduced axis is split; None if such an axis must not be split.
    partial: Sbp | None = None
    passes: bool = False  # whether ``partial`` inputs give ``partial`` results
    logical: bool = False  # whether the result is int8 for any input type
    schema = "(input_tensor) -> output_tensor"
    attrs = {"axis": REQUIRED, "keepdims": False}

    def infer(self, ctx: InferContext) -> Types:
        x = ctx.inputs[0]
        check_kinds(ctx, "fiub" if self.logical else "fiu")
        _check_axes(ctx, len(x.shape))
        shape = reduced_shape(x.shape, _axes(ctx), ctx.attrs["keepdims"])
        return (tensor_type(shape, int8 if self.logical else x.dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        none = not self.logical and all(ctx.inputs[0].shape[axis] == 1 for axis in _axes(ctx))
        sums = (self.partial,) if self.passes and self.partial else ()
        passes = (P, *EXTREMES) if none else sums
        return signatures(*_splits(ctx, self.partial), *((kind, kind) for kind in passes))

    def reference(self, x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
        axes = normal_axes(axis, x.ndim)
        result = np.asarray(self.reduced(x, axes, keepdims=keepdims))
        result = result.reshape(reduced_shape(x.shape, axes, keepdims))
        return result.astype(np.int8) if self.logical else result

    def samples(self, rng: Rng) -> Samples:
        for shape, axis, keepdims in CASES:
            attrs = {"axis": axis, "keepdims": keepdims}
            size = prod(shape)
            # distinct values, so that extremes do not tie, near 1, so that products stay small
            x = 0.7 + 0.6 * rng.permutation(size).reshape(shape) / max(size, 1)
            smooth = self.gradient is not None and size <= 64
            yield Sample((x * rng.choice((-1, 1), shape),), attrs, gradient=smooth)
        for dtype in (np.int8, np.int32, np.int64, np.uint8):
            x = rng.integers(0, 3, (3, 4, 2)).astype(dtype)
            yield Sample((x,), {"axis": (1,)}, gradient=False, note=str(x.dtype))
        if self.logical:
            truths = rng.integers(0, 4, (5, 3, 4)) > 0
            yield Sample((truths,), {"axis": (0, 2)}, gradient=False, note="bool")


def _max(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    return np.max(x, axes, keepdims=keepdims, initial=lowest(x.dtype))


def _min(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    return np.min(x, axes, keepdims=keepdims, initial=highest(x.dtype))


TABLE: tuple[Reduction, ...] = (
    Reduction(
        "reduce_sum", lambda x, axes, keepdims: np.sum(x, axes, x.dtype, keepdims=keepdims),
        lambda g: (_spread(g, g.dy),), P, passes=True,
    ),
    Reduction("reduce_max", _max, _extreme_gradient, Partial("max"), passes=True),
    Reduction("reduce_min", _min, _extreme_gradient, Partial("min"), passes=True),
    Reduction(
        "reduce_prod", lambda x, axes, keepdims: np.prod(x, axes, x.dtype, keepdims=keepdims),
        _prod_gradient,
    ),
    Reduction("reduce_any", np.any, partial=Partial("max"), logical=True),
    Reduction("reduce_all", np.all, partial=Partial("min"), logical=True),
)  # fmt: skip


def mean_count(attrs: Mapping[str, Any], shape: Shape) -> int:
    """Return the number of elements by which the mean of a tensor of some shape divides.

    It follows from the shape, except for one device's part of a tensor, whose attribute ``count``
    is the number of elements of all devices.

    >>> mean_count({"axis": (0, -1), "count": 0}, (2, 3, 4)), mean_count({"count": 6}, (2,))
    (8, 6)
    """
    own = attrs["count"] or prod(shape[i] for i in normal_axes(attrs["axis"], len(shape)))
    return int(own)


def _mean_gradient(g: GradContext) -> Gradients:
    return (_spread(g, g.dy / max(1, prod(g.x.shape[i] for i in _axes(g)))),)


def _mean(x: Array, axis: tuple[int, ...], keepdims: bool, count: int = 0) -> Array:
    axes = normal_axes(axis, x.ndim)
    n = mean_count({"axis": axes, "count": count}, x.shape)
    exact = x.dtype.kind in "iu"
    total = np.sum(x.astype(object) if exact else x, axes, keepdims=True)
    if exact:  # Python's integers do not overflow; the quotient is truncated
        total = np.abs(total) // max(n, 1) * np.sign(total)
    else:
        total = total / n if n else np.full_like(total, np.nan)
    return np.asarray(total, x.dtype).reshape(reduced_shape(x.shape, axes, keepdims))


class Mean(Reduction):
    attrs = {"axis": REQUIRED, "keepdims": False, "count": 0}
    reference = staticmethod(_mean)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Return the SBP rules of sums; truncated means of integers do not add up."""
        return Reduction.sbp(self if floating(ctx) else replace(self, partial=None), ctx)

    def localize(self, ctx: LocalContext) -> Attributes:
        """Return the number of elements of all devices; the sum of their results is the mean."""
        return {"count": mean_count(ctx.attrs, ctx.inputs[0].type.shape)}

    def samples(self, rng: Rng) -> Samples:
        yield from Reduction.samples(self, rng)
        long = rng.uniform(90, 110, (2, 4096))
        yield Sample((long,), {"axis": (1,)}, gradient=False, note="long")
        yield Sample((long[:, :3],), {"axis": (0,), "count": 8}, gradient=False, note="a part")
        for dtype in (np.int8, np.uint8, np.int32, np.int64):
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            x = np.array([[high] * 4, [low] * 4, [low, 3, 0, high]], dtype)
            for axis in ((1,), (0,), (-1, 0)):
                yield Sample((x,), {"axis": axis}, gradient=False, note=f"limits of {x.dtype}")


REDUCE_MEAN = Mean("reduce_mean", np.mean, _mean_gradient, P, passes=True)


def like_axes(x: Shape, like: Shape, axes: Sequence[int]) -> dict[int, int]:
    """Return the axis of ``like`` for each kept axis of ``x``.

    ``like`` has the rank of ``x``, or lacks the summed axes, or lacks some leading axes.

    >>> like_axes((4, 2, 3), (2, 1), (0, 2)), like_axes((4, 2, 3), (4, 3), (1,))
    ({1: 0}, {0: 0, 2: 1})
    """
    kept = [i for i in range(len(x)) if i not in axes]
    if len(like) < len(x) and like == tuple(x[i] for i in kept):
        return {i: j for j, i in enumerate(kept)}
    lead = len(x) - len(like)
    return {i: i - lead for i in kept if i >= lead}


class ReduceSumLike(OpDef):
    schema = "reduce_sum_like(x, like) -> y"
    attrs = {"axis": REQUIRED}
    gradient = staticmethod(lambda g: (_spread(g, g.dy), None))
    reference = staticmethod(lambda x, like, axis: np.sum(x, axis, x.dtype).reshape(like.shape))

    def infer(self, ctx: InferContext) -> Types:
        x, like = ctx.inputs
        _check_axes(ctx, len(x.shape))
        check_kinds(ctx, "fiu")
        axes = _axes(ctx)
        kept = [n for i, n in enumerate(x.shape) if i not in axes and n != 1]
        if x.dtype is not like.dtype or kept != [n for n in like.shape if n != 1]:
            ctx.fail(
                f"{x} summed over axes {axes}, like {like}",
                f"a value like {x.dtype}{reduced_shape(x.shape, axes, True)}",
            )
        return (like,)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Allow any SBP of ``like``, whose values are never read."""
        x, like = (t.shape for t in ctx.inputs)
        axes = _axes(ctx)
        kinds = (P,) if axes else (P, *EXTREMES)
        kept = like_axes(x, like, axes)
        return signatures(
            *(((S(i), S(j)), S(j)) for i, j in kept.items() if x[i] == like[j]),
            *(((S(i), other), P) for i in axes for other in (B, P)),
            *(((kind, like), kind) for kind in kinds for like in (B, P)),
            ((B, P), B),
        )

    def samples(self, rng: Rng) -> Samples:
        for x, like, axes in (
            ((7,), (7,), ()), ((3, 5), (5,), (0,)), ((4, 2, 3), (2, 1), (0, 2)),
            ((3, 5), (1,), (0, 1)), ((3, 5), (), (0, 1)), ((2, 3, 4), (2, 1, 4), (1,)),
            ((2, 3, 4), (2, 4), (-2,)), ((0, 3), (3,), (0,)), ((2, 1, 5), (1, 5), (0,)),
        ):  # fmt: skip
            yield Sample((rng.uniform(-2, 2, x), rng.uniform(-2, 2, like)), {"axis": axes})
        integers = rng.integers(-9, 9, (3, 4))
        yield Sample((integers, integers[0]), {"axis": (0,)}, gradient=False)


class ReduceProdGrad(OpDef):
    schema = "reduce_prod_grad(x, dy) -> dx"
    attrs = {"axis": REQUIRED, "keepdims": False}

    def infer(self, ctx: InferContext) -> Types:
        x, dy = ctx.inputs
        expected = tensor_type(reduced_shape(x.shape, _axes(ctx), ctx.attrs["keepdims"]), x.dtype)
        ctx.check(dy == expected, f"gradient of type {dy}", str(expected))
        return (x,)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split kept axes; if only one element is reduced, dy may have any kind of P."""
        splits = (((x, dy), x) for x, dy in _splits(ctx, None))
        alone = all(ctx.inputs[0].shape[axis] == 1 for axis in _axes(ctx))
        unread = (((P, kind), kind) for kind in (B, P)) if alone else ()
        return signatures(*splits, ((B, P), P), *unread)

    def reference(self, x: Array, dy: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
        """Return dy times the product of the others, without division since some may be 0."""
        axes = normal_axes(axis, x.ndim)
        kept = [i for i in range(x.ndim) if i not in axes]
        order = (*axes, *kept)
        rows = x.transpose(order).reshape(prod(x.shape[i] for i in axes), -1)
        one = np.ones_like(rows[:1])
        before = np.cumprod(np.concatenate((one, rows[:-1])), 0)
        others = before * np.cumprod(np.concatenate((one, rows[:0:-1])), 0)[::-1]
        spread = others.reshape([x.shape[i] for i in order]).transpose(np.argsort(order))
        return spread * dy.reshape(reduced_shape(x.shape, axes, True))

    def samples(self, rng: Rng) -> Samples:
        for shape, axis, keepdims in CASES:
            if prod(shape) == 0 or axis == ():
                continue
            dy = rng.uniform(-1, 1, reduced_shape(shape, normal_axes(axis, len(shape)), keepdims))
            x = rng.uniform(0.7, 1.3, shape) * (rng.uniform(0, 1, shape) > 0.05)
            yield Sample((x, dy), {"axis": axis, "keepdims": keepdims}, gradient=False)


OPS = specs(*TABLE, REDUCE_MEAN, ReduceSumLike, ReduceProdGrad)
