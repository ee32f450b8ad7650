"""Rules for type inference and SBP that the op families share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod, sqrt

from flow_core.base.shapes import broadcast_shapes, normal_axis
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.plugins.specs import InferContext, LocalContext, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, S, Sbp, Signature, Signatures

Row = tuple[Sbp | tuple[Sbp, ...], Sbp | tuple[Sbp, ...]]


def signatures(*rows: Row | Signature) -> Signatures:
    """Return the signatures of rows, which have the SBPs of the inputs and those of the outputs.

    An SBP stands for that of a single input or output.  Signatures are returned unchanged.

    >>> print(*signatures((P, P), ((S(0), B), S(1))), sep=", ")
    (P) -> P, (S(0), B) -> S(1)
    """
    return tuple(
        [row if isinstance(row, Signature) else Signature(*map(_as_tuple, row)) for row in rows]
    )


def _as_tuple(sbp: Sbp | tuple[Sbp, ...]) -> tuple[Sbp, ...]:
    return sbp if isinstance(sbp, tuple) else (sbp,)


def with_rows(
    sbp: Callable[[SbpContext], Signatures], *rows: Row
) -> Callable[[SbpContext], Signatures]:
    """Extend rules by rows that hold for all shapes and attributes."""
    added = signatures(*rows)
    return lambda ctx: (*sbp(ctx), *added)


def like_input(ctx: InferContext) -> tuple[TensorType, ...]:
    """Infer one output of the first input's type."""
    return (ctx.inputs[0],)


def floating_like_input(ctx: InferContext) -> tuple[TensorType, ...]:
    """Infer one output of the first input's type, which must be floating."""
    ctx.check(
        ctx.inputs[0].dtype.is_floating,
        f"input of type {ctx.inputs[0]}",
        "float16, bfloat16, float32 or float64",
        "cast it first: flow.cast(x, flow.float)",
    )
    return (ctx.inputs[0],)


def same_inputs(ctx: InferContext) -> tuple[TensorType, ...]:
    """Infer one output of the type that all inputs share."""
    first = ctx.inputs[0]
    if any(t != first for t in ctx.inputs):
        ctx.fail(", ".join(map(str, ctx.inputs)), "inputs of one shape and element type")
    return (first,)


def broadcast_type(ctx: InferContext) -> TensorType:
    """Infer the numpy broadcast of all inputs, which must have the same element type."""
    dtype = ctx.inputs[0].dtype
    if any(t.dtype is not dtype for t in ctx.inputs):
        ctx.fail(", ".join(map(str, ctx.inputs)), "one element type", "flow.cast one of the inputs")
    try:
        return tensor_type(broadcast_shapes(*[t.shape for t in ctx.inputs]), dtype)
    except ValueError as error:
        ctx.fail(str(error), "shapes that broadcast as in numpy")


def checked_axis(ctx: InferContext, axis: int, rank: int) -> int:
    """Return an axis as a non-negative number; fail at the user's line if it is out of range."""
    try:
        return normal_axis(axis, rank)
    except ValueError as error:
        ctx.fail(str(error), f"-{rank} <= axis < {rank}")


def split_all_axes(ctx: SbpContext) -> Signatures:
    """Map S(i) to S(i) on every axis, for inputs and outputs of one shape."""
    return split_axes(ctx, range(len(ctx.outputs[0].shape)))


def split_axes(ctx: SbpContext, axes: Iterable[int]) -> Signatures:
    """Map S(i) to S(i) for some axes."""
    n_in, n_out = len(ctx.inputs), len(ctx.outputs)
    return tuple(Signature((S(i),) * n_in, (S(i),) * n_out) for i in axes)


def split_other_axes(ctx: SbpContext) -> Signatures:
    """Map S(i) to S(i) for all axes but that in the attribute ``axis``."""
    rank = len(ctx.inputs[0].shape)
    return split_axes(ctx, (i for i in range(rank) if i != ctx.attrs["axis"] % rank))


def split_leading_axes(ctx: SbpContext) -> Signatures:
    """Map S(i) to S(i) for all axes but the last one of the first input."""
    return split_axes(ctx, range(len(ctx.inputs[0].shape) - 1))


def linear(ctx: SbpContext) -> Signatures:
    """Split all axes, and map P to P, for ops that are jointly linear in all inputs."""
    n_in, n_out = len(ctx.inputs), len(ctx.outputs)
    return (*split_all_axes(ctx), Signature((P,) * n_in, (P,) * n_out))


def floating(ctx: SbpContext) -> bool:
    """Return whether the first input is floating; sums of integers wrap around, and lose their
    order.
    """
    return ctx.inputs[0].dtype.is_floating


def nondecreasing(ctx: SbpContext, *together: int) -> Signatures:
    """Pass P(max) and P(min) through an op that is nondecreasing in some inputs together."""
    return tuple(_extreme(ctx, together, kind, kind) for kind in EXTREMES)


def nonincreasing(ctx: SbpContext, *together: int) -> Signatures:
    """Exchange P(max) and P(min) in an op that is nonincreasing in some inputs."""
    pairs = zip(EXTREMES, reversed(EXTREMES), strict=True)
    return tuple(_extreme(ctx, together, kind, other) for kind, other in pairs)


def _extreme(ctx: SbpContext, which: Iterable[int], kind: Sbp, result: Sbp) -> Signature:
    which = set(which)
    inputs = tuple(kind if i in which else B for i in range(len(ctx.inputs)))
    return Signature(inputs, (result,) * len(ctx.outputs))


def any_partial(ctx: SbpContext, *together: int) -> Signatures:
    """Pass every kind of P through an op that only moves the elements of some inputs."""
    return tuple(_extreme(ctx, together, kind, kind) for kind in (P, *EXTREMES))


def with_nondecreasing(
    sbp: Callable[[SbpContext], Signatures],
) -> Callable[[SbpContext], Signatures]:
    """Extend the rules of an op that is nondecreasing in its first input."""
    return lambda ctx: (*sbp(ctx), *nondecreasing(ctx, 0))


def with_nonincreasing(
    sbp: Callable[[SbpContext], Signatures],
) -> Callable[[SbpContext], Signatures]:
    """Extend the rules of an op that is nonincreasing in its first input."""
    return lambda ctx: (*sbp(ctx), *nonincreasing(ctx, 0))


def broadcast_sbp(ctx: SbpContext) -> Signatures:
    """Split an elementwise op whose inputs broadcast; an input repeated along the split axis stays
    B.
    """
    out = ctx.outputs[0].shape
    return tuple(
        Signature(tuple(_input_split(t.shape, i, out) for t in ctx.inputs), (S(i),))
        for i in range(len(out))
    )


def _input_split(shape: tuple[int, ...], axis: int, out: tuple[int, ...]) -> Sbp:
    own = axis - (len(out) - len(shape))
    return S(own) if own >= 0 and shape[own] == out[axis] else B


def check_place(ctx: InferContext, shape: tuple[int, ...]) -> None:
    """Fail unless a box of the given shape fits at the position in the attribute ``place``."""
    place = ctx.attrs["place"]
    if place is not None:
        rows = zip(shape, *place, strict=False)
        fits = len(shape) == len(place[0]) and all(0 <= low <= n - size for size, n, low in rows)
        ctx.check(fits, f"a part of shape {shape} at {place}", "a box within the logical tensor")


def with_place(ctx: LocalContext) -> Mapping[str, AttrValue]:
    """Return the attribute ``place``, a `base.philox.Place`, for a device's part of a random op."""
    out = ctx.outputs[0]
    outer = ctx.attrs["place"] or (out.type.shape, (0,) * len(out.region))
    low = tuple(a + start for a, (start, _) in zip(outer[1], out.region, strict=True))
    return {"place": (outer[0], low)}


def product_work(a: TensorType, b: TensorType, c: TensorType) -> float:
    """Return the floating-point operations of a product of matrices, or of batches of matrices.

    The three types may be given in any order.

    >>> from flow_core.base.dtypes import float32
    >>> product_work(*(TensorType(shape, float32) for shape in ((2, 3), (3, 5), (2, 5))))
    60.0
    """
    return 2.0 * sqrt(a.size * b.size * c.size / max(prod(c.shape[:-2]), 1))


def conv_work(y: TensorType, weight: TensorType) -> float:
    """Return the floating-point operations of a convolution, or of a gradient with ``y``.

    Args:
        y: the side on which the filters are channels.
        weight: the filters, along axis 0.
    """
    return 2.0 * y.size * weight.size / max(weight.shape[0], 1)
