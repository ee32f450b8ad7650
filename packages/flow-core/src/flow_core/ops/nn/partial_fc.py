"""Sampling of the classes of a very wide classifier: all labels, and some other classes.

The classes are divided into equal ranges, one for each device that the placement has when the op is
defined.  Each range has an equal share of the sample, so that a device samples only its own rows of
the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flow_core.base import philox
from flow_core.base.arrays import Array
from flow_core.base.dtypes import int32, int64
from flow_core.base.errors import DataError
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import signatures
from flow_core.plugins.specs import REQUIRED, InferContext, LocalContext, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, S, Sbp, Signatures

RANGES: Mapping[str, AttrValue] = {"parts": 1, "classes": None, "first": 0}
"""Attributes for the number of ranges, the number of classes, and the first class of a device."""


def _classes(attrs: Mapping[str, AttrValue], rows: int) -> int:
    return int(rows if attrs["classes"] is None else attrs["classes"])


def _sampled_rows(ctx: InferContext, weight: TensorType) -> int:
    """Return how many classes a device samples from its rows of the weights."""
    ctx.check(weight.shape, f"weights {weight}", "a row per class")
    rows, number = weight.shape[0], ctx.attrs["num_sample"]
    parts, classes = ctx.attrs["parts"], _classes(ctx.attrs, rows)
    fits = parts > 0 and classes % parts == 0 and number % parts == 0
    what = f"{number} samples of {classes} classes in {parts} parts"
    ctx.check(fits, what, "multiples of the number of parts")
    whole = min(classes, rows) > 0 and rows % (classes // parts) == 0 and number <= classes
    ctx.check(whole, f"{what}, {rows} rows here", "whole ranges, and no more samples than classes")
    return int(number * rows // classes)


def ranges_hold(ctx: SbpContext, rows: int) -> bool:
    """Return whether a split of the rows gives every device only whole ranges."""
    ranges = ctx.attrs["parts"] * rows // max(1, _classes(ctx.attrs, rows))
    return ctx.parts is not None and ranges % ctx.parts == 0


def _part(ctx: LocalContext) -> Attributes:
    weight = ctx.inputs[-1] if len(ctx.inputs) == 3 else ctx.inputs[0]
    rows = weight.type.shape[0]
    return {"classes": _classes(ctx.attrs, rows), "first": ctx.attrs["first"] + weight.region[0][0]}


def mapped(label: Array, classes: int, parts: int, number: int) -> Any:
    """Return the positions of the labels in the sample: in each range, sorted labels come first."""
    size, share = classes // parts, number // parts
    distinct, inverse = np.unique(label, return_inverse=True)
    if len(distinct) and not 0 <= distinct[0] <= distinct[-1] < classes:
        raise DataError(
            "sampling classes for labels",
            found=f"labels from {distinct[0]} to {distinct[-1]}",
            allowed=f"0 <= label < {classes}, the number of classes",
        )
    ranges = distinct // size
    starts = np.searchsorted(ranges, np.arange(parts))
    rank = np.arange(len(distinct)) - starts[ranges]
    if len(rank) and rank.max() >= share:
        raise DataError(
            "sampling classes for labels",
            found=f"{rank.max() + 1} distinct labels in one of {parts} parts",
            allowed=f"at most {share} distinct labels per part, since {number} classes are sampled",
            hint="pass a larger num_sample",
        )
    return (ranges * share + rank)[inverse.reshape(-1)].astype(label.dtype)


def sample_range(label: Array, draws: Array, first: int, share: int) -> Array:
    """Return the sample of a range: its sorted labels, then the classes with the lowest draws."""
    own = np.unique(label[(label >= first) & (label < first + len(draws))]) - first
    draws = draws.copy()
    draws[own] = np.inf
    others = np.argsort(draws, kind="stable")[: share - len(own)]
    return first + np.concatenate([own, others])


def sample(label: Array, draws: Array, attrs: Mapping[str, AttrValue]) -> Array:
    """Return the sampled classes of all ranges of a device."""
    classes, parts = _classes(attrs, len(draws)), attrs["parts"]
    size, share, first = classes // parts, attrs["num_sample"] // parts, attrs["first"]
    found = [
        sample_range(label, draws[at : at + size], first + at, share)
        for at in range(0, len(draws), size)
    ]
    return np.concatenate(found).astype(label.dtype)


class DistributedPartialFcSample(OpDef):
    """Labels as indices in a sample of the classes, the sample, and its weights."""

    schema = (
        "distributed_partial_fc_sample(weight, label)"
        " -> mapped_label, sampled_label, sampled_weight"
    )
    attrs = {"num_sample": REQUIRED, "seed": None, **RANGES}
    random = True
    localize = staticmethod(_part)

    def infer(self, ctx: InferContext) -> Types:
        weight, label = ctx.inputs
        index = label.dtype in (int32, int64) and len(label.shape) == 1
        ctx.check(index, f"labels {label}", "int32 or int64 of rank 1")
        rows = _sampled_rows(ctx, weight)
        sampled = tensor_type((rows, *weight.shape[1:]), weight.dtype)
        return label, tensor_type((rows,), label.dtype), sampled

    def sbp(self, ctx: SbpContext) -> Signatures:
        rank, held = len(ctx.inputs[0].shape), ranges_hold(ctx, ctx.inputs[0].shape[0])
        rows = (((S(0), B), (B, S(0), S(0))),) if held else ()
        kinds: tuple[Sbp, ...] = (*map(S, range(1, rank)), P, *EXTREMES)
        return signatures(*rows, *(((kind, B), (B, B, kind)) for kind in kinds))

    def gradient(self, g: GradContext) -> Gradients:
        dy = g.grads[2]
        if dy is None:
            return None, None
        kept = {name: g.attrs[name] for name in (*RANGES, "num_sample")}
        chosen = g.outputs[1]
        return g.one("distributed_partial_fc_sample_grad", dy, chosen, g.inputs[0], **kept), None

    def reference(
        self, weight: Array, label: Array, **attrs: AttrValue
    ) -> tuple[Array, Array, Array]:
        """Return the sample for step 0 and the seed."""
        rows = len(weight)
        classes, first = _classes(attrs, rows), attrs["first"]
        draws = philox.placed_uniform(attrs["seed"] or 0, (rows,), ((classes,), (first,)))
        chosen = sample(label, draws, attrs)
        where = mapped(label, classes, attrs["parts"], attrs["num_sample"])
        return where, chosen, weight[chosen - first]

    def samples(self, rng: Rng) -> Samples:
        for classes, width, number, parts, dtype in (
            (12, (3,), 8, 2, np.int32), (24, (), 12, 4, np.int64), (9, (2,), 9, 1, np.int32),
        ):  # fmt: skip
            label = rng.integers(0, classes, 3).astype(dtype)
            attrs = {"num_sample": number, "parts": parts}
            yield Sample((rng.uniform(-3, 3, (classes, *width)), label), attrs, False)
        part = {"num_sample": 8, "parts": 4, "classes": 16, "first": 8}
        label = np.array([3, 9, 15, 9], np.int32)
        yield Sample((rng.uniform(-3, 3, (8, 2)), label), part, False, "a part")


def scatter_sampled_rows(
    dy: Array, chosen: Array, out: Array, attrs: Mapping[str, AttrValue]
) -> None:
    """Write the gradients of each range's sampled rows to these rows, and zeros to other rows."""
    classes, parts = _classes(attrs, len(out)), attrs["parts"]
    size, share = classes // parts, attrs["num_sample"] // parts
    out.fill(0)
    for number in range(len(out) // size):
        own = slice(number * share, (number + 1) * share)
        rows = chosen[own] - (attrs["first"] + number * size)
        inside = (rows >= 0) & (rows < size)
        if inside.all():  # this holds for every sample, so nothing is copied
            out[number * size + rows] = dy[own]
        else:
            out[number * size + rows[inside]] = dy[own][inside]


class DistributedPartialFcSampleGrad(OpDef):
    schema = "distributed_partial_fc_sample_grad(dy, sampled_label, like) -> dx"
    attrs = {"num_sample": REQUIRED, **RANGES}
    localize = staticmethod(_part)

    def infer(self, ctx: InferContext) -> Types:
        dy, chosen, weight = ctx.inputs
        rows = _sampled_rows(ctx, weight)
        fits = dy == tensor_type((rows, *weight.shape[1:]), weight.dtype) and chosen.shape == (
            rows,
        )
        ctx.check(fits, f"{dy} and {chosen} for weights {weight}", f"{rows} sampled rows")
        return (weight,)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Allow any SBP of the weights, of which only the shape is read."""
        rank, held = len(ctx.inputs[2].shape), ranges_hold(ctx, ctx.inputs[2].shape[0])
        rows = (((S(0), S(0), S(0)), S(0)),) if held else ()
        others = (((S(i), B, S(i)), S(i)) for i in range(1, rank))
        sums = (((P, B, like), P) for like in (B, P))
        return signatures(*rows, *others, *sums, ((B, B, P), B))

    def reference(self, dy: Array, chosen: Array, weight: Array, **attrs: AttrValue) -> Array:
        out = np.zeros_like(weight)
        scatter_sampled_rows(dy, chosen, out, attrs)
        return out

    def samples(self, rng: Rng) -> Samples:
        attrs = {"num_sample": 4, "parts": 2}
        chosen = np.array([3, 1, 11, 6], np.int32)  # two of each half
        weight = rng.uniform(-3, 3, (12, 3))
        yield Sample((rng.uniform(-3, 3, (4, 3)), chosen, weight), attrs, False)
        part = {"num_sample": 8, "parts": 4, "classes": 16, "first": 8}
        chosen = np.array([9, 8, 13, 15], np.int32)  # two of each quarter
        yield Sample((rng.uniform(-3, 3, (4, 2)), chosen, rng.uniform(-3, 3, (8, 2))), part, False)


OPS = specs(DistributedPartialFcSample, DistributedPartialFcSampleGrad)
