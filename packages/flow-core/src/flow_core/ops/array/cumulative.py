"""Sums of the elements up to each element of an axis."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.math.broadcasting import check_kinds
from flow_core.ops.rules import any_partial, checked_axis, signatures, split_other_axes
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import P, Signatures


class Cumsum(OpDef):
    schema = "cumsum(x) -> y"
    attrs = {"axis": REQUIRED, "exclusive": False, "reverse": False}

    def infer(self, ctx: InferContext) -> Types:
        check_kinds(ctx, "fiu")
        checked_axis(ctx, ctx.attrs["axis"], len(ctx.inputs[0].shape))
        return (ctx.inputs[0],)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split the other axes; sums pass P, and every kind of P if there is one element to add."""
        alone = ctx.inputs[0].shape[ctx.attrs["axis"]] == 1
        partial = any_partial(ctx, 0) if alone else signatures((P, P))
        return (*split_other_axes(ctx), *partial)

    def gradient(self, g: GradContext) -> Gradients:
        attrs = {**g.attrs, "reverse": not g.attrs["reverse"]}
        return (g.one("cumsum", g.dy, **attrs),)

    def reference(self, x: Array, *, axis: int, exclusive: bool, reverse: bool) -> Any:
        ordered = np.flip(x, axis) if reverse else x
        sums = np.cumsum(ordered, axis, x.dtype)
        if exclusive:
            zero = np.zeros_like(np.take(sums, [0][: x.shape[axis]], axis))
            sums = np.concatenate([zero, np.delete(sums, [-1][: x.shape[axis]], axis)], axis)
        return np.flip(sums, axis) if reverse else sums

    def samples(self, rng: Rng) -> Samples:
        for shape, axis in (((7,), 0), ((3, 5), -1), ((4, 2, 3), 1), ((2, 1), 1), ((2, 0), 1)):
            for exclusive, reverse in product((False, True), repeat=2):
                attrs = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
                yield Sample((rng.uniform(-3, 3, shape),), attrs)
        for dtype in (np.int8, np.int32, np.int64, np.uint8):
            x = rng.integers(0, 9, (3, 4)).astype(dtype)
            yield Sample((x,), {"axis": 1, "exclusive": True}, gradient=False, note=str(x.dtype))


OPS = specs(Cumsum)
