"""Conversions of element types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flow_core.base.dtypes import ALL, FLOATS, DType, as_dtype
from flow_core.ir.graph import tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import signatures, split_all_axes
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, S, Sbp, Signatures


def _kept(ctx: SbpContext) -> tuple[Sbp, ...]:
    """Return the kinds of P that a cast preserves: sums, order, or both."""
    source, target = ctx.inputs[0].dtype, ctx.outputs[0].dtype
    if "b" in (source.kind, target.kind):
        return ()
    sums = (P,) if _keeps_sums(source, target) else ()
    if _keeps_order(source, target):
        return (*sums, *EXTREMES)
    return EXTREMES[:1] if _saturates_low(source, target) else sums


def _keeps_sums(source: DType, target: DType) -> bool:
    """Return whether a cast preserves sums; a cast of integers does unless it widens them."""
    if source.is_floating or target.is_floating:
        return source.is_floating and target.is_floating
    return target.numpy.itemsize <= source.numpy.itemsize


def _saturates_low(source: DType, target: DType) -> bool:
    """Return whether numbers below the target's range convert to the least integer.

    They do so on all known processors.  Numbers above the range convert to the least or the
    greatest integer, so the cast does not preserve a minimum of parts.
    """
    return source.is_floating and target.name in ("int32", "int64")


def _keeps_order(source: DType, target: DType) -> bool:
    """Return whether a cast preserves order: floats overflow to infinity, integers wrap around."""
    return target.is_floating or (source.is_integer and np.can_cast(source.numpy, target.numpy))


def _gradient(g: GradContext) -> Sequence[Sym | None]:
    """Emit a cast of the gradient to x's type, also for integers, as in OneFlow; not for bool."""
    dtype = g.x.dtype
    flows = "b" not in (dtype.kind, g.y.dtype.kind)
    dx = g.one("cast", g.dy, dtype=dtype.name) if flows else None
    return (dx, *(None for _ in g.inputs[1:]))


def _samples(rng: np.random.Generator) -> Iterator[tuple[Any, DType]]:
    for dtype in ALL:
        for source in (np.float64, np.int32, np.int8, np.bool_):
            yield rng.uniform(0, 9, (3, 5)).astype(source), dtype
    yield rng.uniform(-9, 9, (2, 1, 3)), FLOATS[-1]
    yield rng.uniform(0, 9, (0, 3)), FLOATS[-1]


class Cast(OpDef):
    schema = "cast(in) -> out"
    attrs = {"dtype": REQUIRED}
    elementwise = True
    gradient = staticmethod(_gradient)
    sbp = staticmethod(lambda ctx: signatures(*split_all_axes(ctx), *((p, p) for p in _kept(ctx))))
    reference = staticmethod(lambda x, dtype: x.astype(as_dtype(dtype).numpy))

    def infer(self, ctx: InferContext) -> Types:
        name = ctx.attrs["dtype"]
        known = ", ".join(d.name for d in ALL)
        ctx.check(isinstance(name, str), f"element type {name!r}", f"the name of one: {known}")
        return (tensor_type(ctx.inputs[0].shape, as_dtype(name)),)

    def samples(self, rng: Rng) -> Samples:
        for x, dtype in _samples(rng):
            smooth = x.dtype.kind == "f" and dtype.name == "float64"
            yield Sample((x,), {"dtype": dtype.name}, gradient=smooth)


class CastLike(OpDef):
    schema = "cast_like(in, dtype_like) -> out"
    gradient = staticmethod(_gradient)
    infer = staticmethod(lambda ctx: (tensor_type(ctx.inputs[0].shape, ctx.inputs[1].dtype),))
    reference = staticmethod(lambda x, like: x.astype(like.dtype))

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Allow any SBP of the second input, of which only the type is read."""
        shape, like = (t.shape for t in ctx.inputs)
        any_like: tuple[Sbp, ...] = (B, P, *(S(i) for i in range(len(like))))
        splits = (((S(i), other), S(i)) for i in range(len(shape)) for other in any_like)
        sums = (((p, other), p) for p in _kept(ctx) for other in any_like)
        return signatures(*splits, *sums, *(((B, other), B) for other in any_like[1:]))

    def samples(self, rng: Rng) -> Samples:
        for x, dtype in _samples(rng):
            if not dtype.is_floating or dtype.name == "float64":
                smooth = x.dtype.kind == "f" and dtype.is_floating
                yield Sample((x, np.zeros(2, dtype.numpy)), gradient=smooth)


class FusedCastScale(OpDef):
    """x in the type of a one-element scalar, times the scalar."""

    schema = "fused_cast_scale(x, scalar) -> y"
    elementwise = True
    reference = staticmethod(lambda x, scalar: x.astype(scalar.dtype) * scalar.reshape(()))

    def infer(self, ctx: InferContext) -> Types:
        x, scalar = ctx.inputs
        both = x.dtype.is_floating and scalar.dtype.is_floating
        ctx.check(both, f"{x} times {scalar}", "floating types")
        fits = scalar.size == 1 and len(scalar.shape) <= max(1, len(x.shape))
        found = f"a scalar of shape {scalar.shape} for {x}"
        ctx.check(fits, found, "one element, such as shape (1,)")
        return (tensor_type(x.shape, scalar.dtype),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        splits = (((S(i), B), S(i)) for i in range(len(ctx.inputs[0].shape)))
        return signatures(*splits, ((P, B), P), ((B, P), P))

    def gradient(self, g: GradContext) -> Gradients:
        x, scalar = g.inputs
        dx, dscalar = None, None
        if g.needed[0]:
            dx = g.one("cast", g.one("fused_cast_scale", g.dy, scalar), dtype=x.dtype.name)
        if g.needed[1]:
            wide = g.one("cast", x, dtype=scalar.dtype.name)
            total = g.one("reduce_sum", g.dy * wide, axis=tuple(range(len(x.shape))))
            dscalar = g.one("reshape", total, shape=scalar.shape)
        return dx, dscalar

    def samples(self, rng: Rng) -> Samples:
        for shape in ((7,), (3, 5), (2, 1, 3), (), (0, 3)):
            yield Sample((rng.uniform(-2, 2, shape), rng.uniform(-2, 2, 1)))


OPS = specs(Cast, CastLike, FusedCastScale)
