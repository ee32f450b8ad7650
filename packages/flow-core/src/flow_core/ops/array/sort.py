"""Ops that depend on the order of numbers along the last axis, and one_hot.

Equal numbers keep the order of their indices in both sorting directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype, int8, int32
from flow_core.ir.graph import AttrValue, tensor_type
from flow_core.ops.array.index import checked_index
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import any_partial, like_input, signatures, split_axes, split_leading_axes
from flow_core.plugins.specs import REQUIRED, InferContext, LocalContext, Sample, SbpContext
from flow_core.sharding.sbp import B, S, Signatures

DIRECTIONS = ("ASCENDING", "DESCENDING")


def _last_axis(ctx: InferContext) -> int:
    shape = ctx.inputs[0].shape
    ctx.check(shape and shape[-1] > 0, str(ctx.inputs[0]), "a nonempty last axis")
    return shape[-1]


def _check_direction(ctx: InferContext) -> None:
    direction = ctx.attrs["direction"]
    ctx.check(direction in DIRECTIONS, f"direction {direction!r}", " or ".join(DIRECTIONS))
    _last_axis(ctx)


def stable_order(x: Array, descending: bool) -> Any:
    """Return the indices that sort the last axis; among equal numbers, lower indices come first.

    >>> stable_order(np.array([2, 7, 7, 1]), descending=True).tolist()
    [1, 2, 0, 3]
    """
    if not descending:
        return np.argsort(x, -1, kind="stable")
    return x.shape[-1] - 1 - np.argsort(x[..., ::-1], -1, kind="stable")[..., ::-1]


def one_hot_value(attrs: AttrValue, which: str) -> Any:
    """Return the "on" or "off" value of one_hot as a number that fits the output's element type."""
    kind = "floating" if as_dtype(attrs["dtype"]).is_floating else "integer"
    return attrs[f"{kind}_{which}_value"]


SHAPES = ((7,), (3, 5), (2, 1, 4), (3, 1))


def _distinct(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Return numbers that are distinct in every floating type."""
    count = int(np.prod(shape))
    return (rng.permutation(count).reshape(shape) - count // 2) * 0.3


def _ties(rng: np.random.Generator) -> Array:
    return rng.integers(-2, 2, (3, 9))


class Ordering(OpDef):
    """An op on the order along the last axis, which is not split."""

    attrs = {"direction": "ASCENDING"}

    def samples(self, rng: Rng) -> Samples:
        for shape, direction in product(SHAPES, DIRECTIONS):
            yield Sample((_distinct(rng, shape),), {"direction": direction})
        dtypes = np.float64, np.int64, np.int32, np.int8, np.uint8
        for direction, dtype in product(DIRECTIONS, dtypes):
            numbers = abs(_ties(rng)) if dtype is np.uint8 else _ties(rng)
            yield Sample((numbers.astype(dtype),), {"direction": direction}, gradient=False)


class Sort(Ordering):
    schema = "sort(in) -> out"

    def infer(self, ctx: InferContext) -> Types:
        _check_direction(ctx)
        return like_input(ctx)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split all axes but the last; pass every kind of P if the last axis has one element."""
        alone = ctx.inputs[0].shape[-1] == 1
        return (*split_leading_axes(ctx), *(any_partial(ctx, 0) if alone else ()))

    def gradient(self, g: GradContext) -> Gradients:
        """Emit a scatter of dy to the positions that the elements had before sorting."""
        order = g.one("arg_sort", g.x, direction=g.attrs["direction"])
        return (g.one("dim_scatter_add_like", g.x, g.dy, order, dim=len(g.x.shape) - 1),)

    def reference(self, x: Array, *, direction: str) -> Array:
        ordered = np.sort(x, -1)
        return ordered if direction == "ASCENDING" else ordered[..., ::-1]


class ArgSort(Ordering):
    schema = "arg_sort(in) -> out"
    sbp = staticmethod(split_leading_axes)

    def infer(self, ctx: InferContext) -> Types:
        _check_direction(ctx)
        return (tensor_type(ctx.inputs[0].shape, int32),)

    def reference(self, x: Array, *, direction: str) -> Any:
        return stable_order(x, direction == "DESCENDING").astype(np.int32)


def _argmax_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SHAPES:
        yield Sample((_distinct(rng, shape),))
    for dtype in (np.float64, np.int32, np.uint8):
        yield Sample((abs(_ties(rng)).astype(dtype),), note="ties")


class Argmax(OpDef):
    schema = "argmax(in) -> out"
    sbp = staticmethod(split_leading_axes)
    samples = staticmethod(_argmax_samples)
    reference = staticmethod(lambda x: np.atleast_1d(np.argmax(x, -1)).astype(np.int32))

    def infer(self, ctx: InferContext) -> Types:
        _last_axis(ctx)
        return (tensor_type(ctx.inputs[0].shape[:-1] or (1,), int32),)


class TopK(OpDef):
    """The indices of the largest elements, always sorted."""

    schema = "top_k(in) -> out"
    attrs = {"k": 1, "sorted": True}
    sbp = staticmethod(split_leading_axes)

    def infer(self, ctx: InferContext) -> Types:
        size, k = _last_axis(ctx), ctx.attrs["k"]
        ctx.check(k >= 1, f"k {k}", "at least 1")
        return (tensor_type((*ctx.inputs[0].shape[:-1], min(k, size)), int32),)

    def reference(self, x: Array, *, k: int, sorted: bool) -> Any:
        return stable_order(x, True)[..., :k].astype(np.int32)

    def samples(self, rng: Rng) -> Samples:
        for sample in _argmax_samples(rng):
            for k, ordered in ((1, True), (3, True), (99, True)):
                yield Sample(sample.inputs, {"k": k, "sorted": ordered})


class InTopK(OpDef):
    schema = "in_top_k(targets, predictions) -> out"
    attrs = {"k": REQUIRED}
    sbp = staticmethod(lambda _: signatures(((S(0), S(0)), S(0))))

    def infer(self, ctx: InferContext) -> Types:
        targets, predictions = checked_index(ctx, 0), ctx.inputs[1]
        ctx.check(
            len(targets.shape) == 1 and predictions.shape[:-1] == targets.shape,
            f"targets {targets} and predictions {predictions}",
            "targets of shape (N,) and predictions of shape (N, classes)",
        )
        ctx.check(predictions.dtype.is_floating, str(predictions), "floating predictions")
        return (tensor_type(targets.shape, int8),)

    def reference(self, targets: Array, predictions: Array, *, k: int) -> Any:
        """Return the result for each row: 0 if the target is out of range or a prediction is not
        finite.
        """
        classes = predictions.shape[1]
        valid = (targets >= 0) & (targets < classes) & np.isfinite(predictions).all(1)
        chosen = predictions[np.arange(len(targets)), np.where(valid, targets, 0)]
        return (valid & ((predictions > chosen[:, None]).sum(1) < k)).astype(np.int8)

    def samples(self, rng: Rng) -> Samples:
        predictions = _distinct(rng, (6, 5))
        for k in (1, 2, 5):
            targets = np.array([0, 4, 2, 5, -1, 1], np.int32)
            yield Sample((targets, predictions), {"k": k})
        broken = predictions.copy()
        broken[1, 3], broken[2, 2] = np.inf, -np.inf
        yield Sample((np.array([3, 3, 2, 1, 2, 4]), broken), {"k": 4}, note="not finite")


class OneHot(OpDef):
    """On a device that has some of the ``classes`` only, ``first`` is the first of its ``depth``
    ones.
    """

    schema = "one_hot(indices) -> out"
    attrs = {
        "depth": REQUIRED, "dtype": REQUIRED, "floating_on_value": 1.0, "integer_on_value": 1,
        "floating_off_value": 0.0, "integer_off_value": 0, "first": 0, "classes": None,
    }  # fmt: skip

    def infer(self, ctx: InferContext) -> Types:
        indices, depth = checked_index(ctx, 0), ctx.attrs["depth"]
        ctx.check(depth >= 1 or ctx.attrs["classes"], f"depth {depth}", "at least 1")
        return (tensor_type((*indices.shape, depth), as_dtype(ctx.attrs["dtype"])),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split any axis of the indices, or the axis of the classes."""
        rank = len(ctx.inputs[0].shape)
        return signatures(*split_axes(ctx, range(rank)), (B, S(rank)))

    def localize(self, ctx: LocalContext) -> Attributes:
        low, high = ctx.outputs[0].region[-1]
        classes = ctx.attrs["classes"] or ctx.attrs["depth"]
        return {"depth": high - low, "first": ctx.attrs["first"] + low, "classes": classes}

    def reference(self, indices: Array, **attrs: AttrValue) -> Any:
        hot = indices[..., None] == np.arange(attrs["depth"]) + attrs["first"]
        values = np.where(hot, one_hot_value(attrs, "on"), one_hot_value(attrs, "off"))
        return values.astype(as_dtype(attrs["dtype"]).numpy)

    def samples(self, rng: Rng) -> Samples:
        for shape, depth, dtype in (
            ((5,), 4, "float32"), ((2, 3), 2, "int32"), ((3,), 1, "float16"), ((4,), 3, "int8"),
            ((0,), 3, "float64"),
        ):  # fmt: skip
            indices = rng.integers(0, depth, shape).astype(np.int32)
            yield Sample((indices,), {"depth": depth, "dtype": dtype})
        for index, dtype, kind, on, off in (
            ((1, 0), "int32", "integer", 7, -2), ((1, 2), "float64", "floating", 0.1, -1.7),
            ((1, 0), "float32", "floating", 0.5, -1.1),
        ):  # fmt: skip
            values = {f"{kind}_on_value": on, f"{kind}_off_value": off}
            yield Sample((np.array(index, np.int64),), {"depth": 3, "dtype": dtype, **values})
        part = {"depth": 3, "dtype": "float32", "first": 2, "classes": 7}
        yield Sample((np.array([[4, 0, 6], [2, 3, 1]], np.int32),), part, note="a part")


OPS = specs(Sort, ArgSort, Argmax, TopK, InTopK, OneHot)
