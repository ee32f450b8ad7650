"""Ops that change the shape of a tensor without changing its elements.

All but `transpose` and the broadcasts are aliases of their input (``alias=0``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.shapes import (
    Shape,
    balanced_split,
    broadcast_shapes,
    normal_axis,
    resolve_reshape,
)
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import (
    any_partial,
    checked_axis,
    like_input,
    linear,
    signatures,
    with_nondecreasing,
)
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, S, Sbp, Signatures

MOVED_LIKE = signatures(
    *(((kind, like), kind) for kind in (P, *EXTREMES) for like in (B, P)), ((B, P), B)
)
"""Rules without splits of an op that moves elements, and reads only the shape of its second input.
"""


def split_map(before: Shape, after: Shape, parts: int | None = None) -> list[tuple[int, int]]:
    """Return pairs (i, j) such that S(i) of a tensor is S(j) of its reshaped form.

    These pairs are valid for any number of parts; with ``parts``, include pairs that are valid only
    for that number.

    >>> split_map((4, 2, 3), (4, 6)), split_map((4, 2, 3), (8, 3))
    ([(0, 0)], [(2, 1)])
    >>> split_map((4, 2, 3), (8, 3), parts=2), split_map((1, 5), (5, 1, 1))
    ([(0, 0), (2, 1)], [(0, 1), (0, 2), (1, 0)])
    """
    if 0 in before:
        return []
    return [
        (i, j)
        for i in range(len(before))
        for j in range(len(after))
        if _maps(before, i, after, j, parts)
    ]


def _maps(before: Shape, i: int, after: Shape, j: int, parts: int | None) -> bool:
    """Return whether S(i) before the reshape is S(j) after it, as defined by `split_map`."""
    m, n = before[i], after[j]
    if m == n == 1:
        return True
    if prod(before[:i]) != prod(after[:j]):
        return False
    if m == n:
        return True
    inner, inner_after = prod(before[i + 1 :]), prod(after[j + 1 :])
    return parts is not None and [k * inner for k in balanced_split(m, parts)] == [
        k * inner_after for k in balanced_split(n, parts)
    ]


def _resolved(ctx: InferContext, shape: Sequence[int]) -> tuple[TensorType, ...]:
    x = ctx.inputs[0]
    ctx.check(all(n >= -1 for n in shape), f"shape {tuple(shape)}", "sizes of at least 0, one -1")
    try:
        return (tensor_type(resolve_reshape(x.shape, shape), x.dtype),)
    except ValueError as error:
        ctx.fail(str(error), "a shape with as many elements, at most one size -1")


def _flatten_type(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = ctx.inputs[0].shape
    start = checked_axis(ctx, ctx.attrs["start_dim"], len(shape))
    end = checked_axis(ctx, ctx.attrs["end_dim"], len(shape))
    ctx.check(start <= end, f"start_dim {start} after end_dim {end}", "start_dim <= end_dim")
    return _resolved(ctx, (*shape[:start], prod(shape[start : end + 1]), *shape[end + 1 :]))


def _squeeze_type(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = ctx.inputs[0].shape
    axes = {checked_axis(ctx, axis, len(shape)) for axis in ctx.attrs["axes"]}
    large = [i for i in sorted(axes) if shape[i] != 1]
    ctx.check(not large, f"axes {large} of {ctx.inputs[0]}", "axes of size 1")
    return _resolved(ctx, tuple(n for i, n in enumerate(shape) if i not in axes) or (1,))


def _expand_dims_type(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = ctx.inputs[0].shape
    axis = checked_axis(ctx, ctx.attrs["axis"], len(shape) + 1)
    return _resolved(ctx, (*shape[:axis], 1, *shape[axis:]))


def _flatten(x: Array, *, start_dim: int, end_dim: int) -> Array:
    start, end = normal_axis(start_dim, x.ndim), normal_axis(end_dim, x.ndim)
    return x.reshape(*x.shape[:start], prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


@dataclass(frozen=True, slots=True)
class Reshaping(OpDef):
    """A row of the table of ops that only change the shape.

    Attributes:
        cases: samples, each given as (shapes of the inputs, attributes).
    """

    type: str
    infer: Callable[[InferContext], Types]
    reference: Callable[..., Any]
    attrs: Attributes
    cases: tuple[tuple[tuple[Shape, ...], Attributes], ...]
    inputs: tuple[str, ...] = ("in",)
    alias = 0

    def sbp(self, ctx: SbpContext) -> Signatures:
        pairs = split_map(ctx.inputs[0].shape, ctx.outputs[0].shape, ctx.parts)
        if len(ctx.inputs) == 1:
            return signatures(*((S(i), S(j)) for i, j in pairs), *any_partial(ctx, 0))
        return signatures(*(((S(i), S(j)), S(j)) for i, j in pairs), *MOVED_LIKE)

    def gradient(self, g: GradContext) -> Gradients:
        return (g.one("reshape", g.dy, shape=g.x.shape), *(None for _ in g.inputs[1:]))

    def samples(self, rng: Rng) -> Samples:
        for shapes, attrs in self.cases:
            yield Sample(tuple(rng.uniform(-3, 3, s) for s in shapes), attrs)
        shapes, attrs = self.cases[0]
        yield Sample(tuple(rng.integers(-9, 9, s).astype(np.int32) for s in shapes), attrs)


TABLE: tuple[Reshaping, ...] = (
    Reshaping(
        "reshape", lambda ctx: _resolved(ctx, ctx.attrs["shape"]),
        lambda x, *, shape: x.reshape(shape), {"shape": REQUIRED},
        ((((2, 6),), {"shape": (3, -1)}), (((4, 1, 3),), {"shape": (4, 3)}),
         (((0, 3),), {"shape": (3, 0)}), (((1, 1),), {"shape": (1,)})),
    ),
    Reshaping(
        "reshape_like", lambda ctx: _resolved(ctx, ctx.inputs[1].shape),
        lambda x, like: x.reshape(like.shape), {},
        ((((2, 6), (3, 4)), {}), (((5,), (5, 1)), {})), ("in", "like"),
    ),
    Reshaping(
        "flatten", _flatten_type, _flatten, {"start_dim": 0, "end_dim": -1},
        ((((2, 3, 2),), {"start_dim": 1}), (((2, 3),), {}), (((3, 1, 2, 2),), {"end_dim": 2})),
    ),
    Reshaping(
        "squeeze", _squeeze_type, lambda x, *, axes: np.atleast_1d(np.squeeze(x, axes)),
        {"axes": REQUIRED},
        ((((2, 1, 3, 1),), {"axes": (1,)}), (((1, 3, 1),), {"axes": (0, -1)}),
         (((1, 1),), {"axes": (0, 1)})),
    ),
    Reshaping(
        "expand_dims", _expand_dims_type, lambda x, *, axis: np.expand_dims(x, axis),
        {"axis": REQUIRED},
        ((((2, 3),), {"axis": 0}), (((2, 3),), {"axis": -1}), (((5,),), {"axis": 1})),
    ),
)  # fmt: skip


class Identity(OpDef):
    schema = "identity(in) -> out"
    alias = 0
    infer = staticmethod(like_input)
    sbp = staticmethod(with_nondecreasing(linear))
    gradient = staticmethod(lambda g: (g.dy,))
    reference = staticmethod(lambda x: x)

    def samples(self, rng: Rng) -> Samples:
        for shape in ((7,), (3, 1, 2), (0, 2)):
            yield Sample((rng.uniform(-3, 3, shape),))
        yield Sample((rng.integers(-9, 9, (2, 3)),))


class AmpWhiteIdentity(Identity):
    schema = "amp_white_identity(in) -> out"


class CastToStaticShape(Identity):
    schema = "cast_to_static_shape(input) -> output"


class TupleIdentity(OpDef):
    schema = "tuple_identity(in*) -> out*"
    infer = staticmethod(lambda ctx: ctx.inputs)
    gradient = staticmethod(lambda g: g.grads)
    reference = staticmethod(lambda *xs: xs)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Give all inputs the same SBP, and give each output the SBP of its input."""
        n, rank = len(ctx.inputs), min(len(t.shape) for t in ctx.inputs)
        kinds: tuple[Sbp, ...] = (*map(S, range(rank)), P, *EXTREMES)
        return signatures(*(((kind,) * n, (kind,) * n) for kind in kinds))

    def samples(self, rng: Rng) -> Samples:
        yield Sample((rng.uniform(-3, 3, (2, 3)), rng.uniform(-3, 3, (4,))))
        yield Sample((rng.uniform(-3, 3, (3,)),))


class Transpose(OpDef):
    schema = "transpose(input) -> output"
    attrs = {"perm": REQUIRED, "batch_axis_non_change": False}
    reference = staticmethod(lambda x, *, perm, batch_axis_non_change: x.transpose(perm))

    def infer(self, ctx: InferContext) -> Types:
        x, perm, rank = ctx.inputs[0], tuple(ctx.attrs["perm"]), len(ctx.inputs[0].shape)
        ok = sorted(perm) == list(range(rank))
        ctx.check(ok, f"perm {perm} for {x}", f"a permutation of 0 ... {rank - 1}")
        return (tensor_type(tuple(x.shape[i] for i in perm), x.dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        splits = ((S(i), S(j)) for j, i in enumerate(ctx.attrs["perm"]))
        return signatures(*splits, *any_partial(ctx, 0))

    def gradient(self, g: GradContext) -> Gradients:
        perm = g.attrs["perm"]
        inverse = tuple(sorted(range(len(perm)), key=perm.__getitem__))
        keep = g.attrs["batch_axis_non_change"]
        return (g.one("transpose", g.dy, perm=inverse, batch_axis_non_change=keep),)

    def samples(self, rng: Rng) -> Samples:
        for shape, perm in (
            ((3, 5), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((2, 1, 3, 2), (0, 2, 3, 1)),
            ((4,), (0,)), ((0, 3), (1, 0)),
        ):  # fmt: skip
            yield Sample((rng.uniform(-3, 3, shape),), {"perm": perm})
        yield Sample((rng.integers(0, 9, (3, 4)),), {"perm": (1, 0)})


def _inserted_axes(x: Shape, out: Shape, axes: Sequence[int]) -> tuple[int, ...]:
    """Return the axes of ``out`` that ``x`` lacks: ``axes`` if they fit, otherwise leading axes."""
    dropped = tuple(sorted({axis % len(out) for axis in axes}))
    if len(x) < len(out) and x == tuple(n for i, n in enumerate(out) if i not in dropped):
        return dropped
    return tuple(range(len(out) - len(x)))


def expanded_shape(x: Shape, out: Shape, axes: Sequence[int] = ()) -> Shape:
    """Return the shape of ``x`` with axes of size 1 inserted to match the rank of ``out``.

    If ``axes`` are given and ``x`` is ``out`` without these axes, insert them; otherwise align
    ``x`` to the right.

    >>> expanded_shape((4, 3), (4, 5, 3), (1,)), expanded_shape((3,), (4, 3))
    ((4, 1, 3), (1, 3))
    """
    expanded = list(x)
    for axis in _inserted_axes(x, out, axes):
        expanded.insert(axis, 1)
    return tuple(expanded)


def _broadcast_type(ctx: InferContext, out: Shape, axes: Sequence[int] = ()) -> TensorType:
    x = ctx.inputs[0]
    for axis in axes:
        checked_axis(ctx, axis, len(out))
    try:
        fits = broadcast_shapes(expanded_shape(x.shape, out, axes), out) == out
    except ValueError:
        fits = False
    ctx.check(fits, f"{x} for shape {out}", "a shape that broadcasts to the other as in numpy")
    return tensor_type(out, x.dtype)


def _sources(x: Shape, out: Shape, axes: Sequence[int]) -> list[int | None]:
    """Return for each axis of ``out`` the axis of ``x`` that it copies; None if it is repeated."""
    own: list[int | None] = list(range(len(x)))
    for axis in _inserted_axes(x, out, axes):
        own.insert(axis, None)
    return [i if i is not None and x[i] == n else None for i, n in zip(own, out, strict=True)]


class Broadcasting(OpDef):
    """An op that repeats a tensor along axes, and may read the shape from another one."""

    def sbp(self, ctx: SbpContext) -> Signatures:
        x, out = ctx.inputs[0].shape, ctx.outputs[0].shape
        likes = len(ctx.inputs) - 1
        sources = _sources(x, out, ctx.attrs.get("broadcast_axes", ()))
        splits = (
            ((B if own is None else S(own), *(S(i),) * likes), S(i))
            for i, own in enumerate(sources)
        )
        return signatures(*splits, *(MOVED_LIKE if likes else any_partial(ctx, 0)))

    def gradient(self, g: GradContext) -> Gradients:
        expanded = expanded_shape(g.x.shape, g.y.shape, g.attrs.get("broadcast_axes", ()))
        axes = tuple(i for i, n in enumerate(expanded) if n != g.y.shape[i])
        summed = g.one("reduce_sum", g.dy, axis=axes, keepdims=True) if axes else g.dy
        dx = summed if summed.shape == g.x.shape else g.one("reshape", summed, shape=g.x.shape)
        return (dx, *(None for _ in g.inputs[1:]))


class BroadcastTo(Broadcasting):
    schema = "broadcast_to(x) -> y"
    attrs = {"shape": REQUIRED}
    infer = staticmethod(lambda ctx: (_broadcast_type(ctx, tuple(ctx.attrs["shape"])),))
    reference = staticmethod(lambda x, *, shape: np.broadcast_to(x, shape))

    def samples(self, rng: Rng) -> Samples:
        for x, out in (((3, 1), (3, 4)), ((4,), (2, 3, 4)), ((1, 1), (2, 3)), ((2, 3), (2, 3))):
            yield Sample((rng.uniform(-3, 3, x),), {"shape": out})


class BroadcastLike(Broadcasting):
    schema = "broadcast_like(x, like) -> y"
    attrs = {"broadcast_axes": ()}

    def infer(self, ctx: InferContext) -> Types:
        return (_broadcast_type(ctx, ctx.inputs[1].shape, ctx.attrs["broadcast_axes"]),)

    def reference(self, x: Array, like: Array, *, broadcast_axes: tuple[int, ...]) -> Array:
        expanded = x.reshape(expanded_shape(x.shape, like.shape, broadcast_axes))
        return np.broadcast_to(expanded, like.shape)

    def samples(self, rng: Rng) -> Samples:
        for x, like, axes in (
            ((3, 1), (3, 4), (1,)), ((3, 4), (3, 2, 4), (1,)), ((1,), (2, 3), (0, 1)),
            ((5,), (2, 5), ()), ((2, 1, 2), (2, 3, 2), (1,)),
        ):  # fmt: skip
            arrays = rng.uniform(-3, 3, x), rng.uniform(-3, 3, like)
            yield Sample(arrays, {"broadcast_axes": axes})


OPS = specs(
    *TABLE, Identity, AmpWhiteIdentity, CastToStaticShape, TupleIdentity, Transpose, BroadcastTo,
    BroadcastLike,
)  # fmt: skip
