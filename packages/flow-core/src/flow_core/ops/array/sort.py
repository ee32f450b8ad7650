"""Ops that depend on the order of numbers along the last axis, and one_hot.

Equal numbers keep the order of their indices in both sorting directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype, int8, int32
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.array.index import checked_index
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.rules import any_partial, like_input, split_axes
from flow_core.plugins.specs import (
    REQUIRED,
    InferContext,
    LocalContext,
    OpSpec,
    Sample,
    SbpContext,
)
from flow_core.sharding.sbp import B, S, Signature, Signatures

DIRECTIONS = ("ASCENDING", "DESCENDING")


def _last_axis(ctx: InferContext) -> int:
    shape = ctx.inputs[0].shape
    ctx.check(shape and shape[-1] > 0, str(ctx.inputs[0]), "a nonempty last axis")
    return shape[-1]


def _check_direction(ctx: InferContext) -> None:
    direction = ctx.attrs["direction"]
    ctx.check(direction in DIRECTIONS, f"direction {direction!r}", " or ".join(DIRECTIONS))
    _last_axis(ctx)


def _sort_type(ctx: InferContext) -> tuple[TensorType, ...]:
    _check_direction(ctx)
    return like_input(ctx)


def _arg_sort_type(ctx: InferContext) -> tuple[TensorType, ...]:
    _check_direction(ctx)
    return (tensor_type(ctx.inputs[0].shape, int32),)


def _argmax_type(ctx: InferContext) -> tuple[TensorType, ...]:
    _last_axis(ctx)
    return (tensor_type(ctx.inputs[0].shape[:-1] or (1,), int32),)


def _top_k_type(ctx: InferContext) -> tuple[TensorType, ...]:
    size, k = _last_axis(ctx), ctx.attrs["k"]
    ctx.check(k >= 1, f"k {k}", "at least 1")
    return (tensor_type((*ctx.inputs[0].shape[:-1], min(k, size)), int32),)


def _in_top_k_type(ctx: InferContext) -> tuple[TensorType, ...]:
    targets, predictions = checked_index(ctx, 0), ctx.inputs[1]
    ctx.check(
        len(targets.shape) == 1 and predictions.shape[:-1] == targets.shape,
        f"targets {targets} and predictions {predictions}",
        "targets of shape (N,) and predictions of shape (N, classes)",
    )
    ctx.check(predictions.dtype.is_floating, str(predictions), "floating predictions")
    return (tensor_type(targets.shape, int8),)


def _one_hot_type(ctx: InferContext) -> tuple[TensorType, ...]:
    indices, depth = checked_index(ctx, 0), ctx.attrs["depth"]
    ctx.check(depth >= 1 or ctx.attrs["classes"], f"depth {depth}", "at least 1")
    return (tensor_type((*indices.shape, depth), as_dtype(ctx.attrs["dtype"])),)


def _leading(ctx: SbpContext) -> Signatures:
    return split_axes(ctx, range(len(ctx.inputs[0].shape) - 1))


def _sort_sbp(ctx: SbpContext) -> Signatures:
    """Split all axes but the last; pass every kind of P if the last axis has one element."""
    alone = ctx.inputs[0].shape[-1] == 1
    return (*_leading(ctx), *(any_partial(ctx, 0) if alone else ()))


def _one_hot_sbp(ctx: SbpContext) -> Signatures:
    """Split any axis of the indices, or the axis of the classes."""
    rank = len(ctx.inputs[0].shape)
    return (*split_axes(ctx, range(rank)), Signature((B,), (S(rank),)))


def _one_hot_part(ctx: LocalContext) -> Mapping[str, AttrValue]:
    low, high = ctx.outputs[0].region[-1]
    classes = ctx.attrs["classes"] or ctx.attrs["depth"]
    return {"depth": high - low, "first": ctx.attrs["first"] + low, "classes": classes}


def _first(_: SbpContext) -> Signatures:
    return (Signature((S(0), S(0)), (S(0),)),)


def _sort_gradient(g: GradContext) -> tuple[Sym]:
    """Emit a scatter of dy to the positions that the elements had before sorting."""
    order = g.one("arg_sort", g.x, direction=g.attrs["direction"])
    return (g.one("dim_scatter_add_like", g.x, g.dy, order, dim=len(g.x.shape) - 1),)


def stable_order(x: Array, descending: bool) -> Any:
    """Return the indices that sort the last axis; among equal numbers, lower indices come first.

    >>> stable_order(np.array([2, 7, 7, 1]), descending=True).tolist()
    [1, 2, 0, 3]
    """
    if not descending:
        return np.argsort(x, -1, kind="stable")
    return x.shape[-1] - 1 - np.argsort(x[..., ::-1], -1, kind="stable")[..., ::-1]


def _sort(x: Array, *, direction: str) -> Array:
    ordered = np.sort(x, -1)
    return ordered if direction == "ASCENDING" else ordered[..., ::-1]


def _arg_sort(x: Array, *, direction: str) -> Any:
    return stable_order(x, direction == "DESCENDING").astype(np.int32)


def _top_k(x: Array, *, k: int, sorted: bool) -> Any:
    return stable_order(x, True)[..., :k].astype(np.int32)


def _in_top_k(targets: Array, predictions: Array, *, k: int) -> Any:
    """Return the result for each row: 0 if the target is out of range or a prediction is not
    finite.
    """
    classes = predictions.shape[1]
    valid = (targets >= 0) & (targets < classes) & np.isfinite(predictions).all(1)
    chosen = predictions[np.arange(len(targets)), np.where(valid, targets, 0)]
    return (valid & ((predictions > chosen[:, None]).sum(1) < k)).astype(np.int8)


def one_hot_value(attrs: AttrValue, which: str) -> Any:
    """Return the "on" or "off" value of one_hot as a number that fits the output's element type."""
    kind = "floating" if as_dtype(attrs["dtype"]).is_floating else "integer"
    return attrs[f"{kind}_{which}_value"]


def _one_hot(indices: Array, **attrs: AttrValue) -> Any:
    hot = indices[..., None] == np.arange(attrs["depth"]) + attrs["first"]
    values = np.where(hot, one_hot_value(attrs, "on"), one_hot_value(attrs, "off"))
    return values.astype(as_dtype(attrs["dtype"]).numpy)


SHAPES = ((7,), (3, 5), (2, 1, 4), (3, 1))


def _distinct(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Return numbers that are distinct in every floating type."""
    count = int(np.prod(shape))
    return (rng.permutation(count).reshape(shape) - count // 2) * 0.3


def _ties(rng: np.random.Generator) -> Array:
    return rng.integers(-2, 2, (3, 9))


def _ordered_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SHAPES:
        for direction in DIRECTIONS:
            yield Sample((_distinct(rng, shape),), {"direction": direction})
    for direction in DIRECTIONS:
        for dtype in (np.float64, np.int64, np.int32, np.int8, np.uint8):
            numbers = abs(_ties(rng)) if dtype is np.uint8 else _ties(rng)
            yield Sample((numbers.astype(dtype),), {"direction": direction}, gradient=False)


def _argmax_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SHAPES:
        yield Sample((_distinct(rng, shape),))
    for dtype in (np.float64, np.int32, np.uint8):
        yield Sample((abs(_ties(rng)).astype(dtype),), note="ties")


def _top_k_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in _argmax_samples(rng):
        for k, ordered in ((1, True), (3, True), (99, True)):
            yield Sample(sample.inputs, {"k": k, "sorted": ordered})


def _in_top_k_samples(rng: np.random.Generator) -> Iterator[Sample]:
    predictions = _distinct(rng, (6, 5))
    for k in (1, 2, 5):
        targets = np.array([0, 4, 2, 5, -1, 1], np.int32)
        yield Sample((targets, predictions), {"k": k})
    broken = predictions.copy()
    broken[1, 3], broken[2, 2] = np.inf, -np.inf
    yield Sample((np.array([3, 3, 2, 1, 2, 4]), broken), {"k": 4}, note="not finite")


def _one_hot_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, depth, dtype in (((5,), 4, "float32"), ((2, 3), 2, "int32"), ((3,), 1, "float16"),
                                ((4,), 3, "int8"), ((0,), 3, "float64")):  # fmt: skip
        indices = rng.integers(0, depth, shape).astype(np.int32)
        yield Sample((indices,), {"depth": depth, "dtype": dtype})
    values: dict[str, float] = {"integer_on_value": 7, "integer_off_value": -2}
    yield Sample((np.array([1, 0], np.int64),), {"depth": 3, "dtype": "int32", **values})
    values = {"floating_on_value": 0.1, "floating_off_value": -1.7}
    yield Sample((np.array([1, 2], np.int64),), {"depth": 3, "dtype": "float64", **values})
    values = {"floating_on_value": 0.5, "floating_off_value": -1.1}
    yield Sample((np.array([1, 0], np.int64),), {"depth": 3, "dtype": "float32", **values})
    part = {"depth": 3, "dtype": "float32", "first": 2, "classes": 7}
    yield Sample((np.array([[4, 0, 6], [2, 3, 1]], np.int32),), part, note="a part")


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="sort",
        inputs=("in",),
        infer=_sort_type,
        attrs={"direction": "ASCENDING"},
        sbp=_sort_sbp,
        gradient=_sort_gradient,
        reference=_sort,
        samples=_ordered_samples,
    ),
    OpSpec(
        type="arg_sort",
        inputs=("in",),
        infer=_arg_sort_type,
        attrs={"direction": "ASCENDING"},
        sbp=_leading,
        reference=_arg_sort,
        samples=_ordered_samples,
    ),
    OpSpec(
        type="argmax",
        inputs=("in",),
        infer=_argmax_type,
        sbp=_leading,
        reference=lambda x: np.atleast_1d(np.argmax(x, -1)).astype(np.int32),
        samples=_argmax_samples,
    ),
    OpSpec(
        type="top_k",
        inputs=("in",),
        infer=_top_k_type,
        attrs={"k": 1, "sorted": True},
        sbp=_leading,
        reference=_top_k,
        samples=_top_k_samples,
        doc="The indices of the largest elements, always sorted.",
    ),
    OpSpec(
        type="in_top_k",
        inputs=("targets", "predictions"),
        infer=_in_top_k_type,
        attrs={"k": REQUIRED},
        sbp=_first,
        reference=_in_top_k,
        samples=_in_top_k_samples,
    ),
    OpSpec(
        type="one_hot",
        inputs=("indices",),
        infer=_one_hot_type,
        attrs={
            "depth": REQUIRED, "dtype": REQUIRED, "floating_on_value": 1.0, "integer_on_value": 1,
            "floating_off_value": 0.0, "integer_off_value": 0, "first": 0, "classes": None,
        },
        sbp=_one_hot_sbp,
        localize=_one_hot_part,
        reference=_one_hot,
        samples=_one_hot_samples,
        doc="On a device that has some of the ``classes`` only, ``first`` is the first of its"
        " ``depth`` ones.",
    ),
)  # fmt: skip
