"""Dropout: ops that draw a random mask, and that multiply a tensor by the mask.

All kernels must draw the same mask: element i is ``rate < u[i]``, where u are the uniform numbers
of `flow_core.base.philox` for the op's key and the current step, and i is the index in the logical
tensor in C order.  The key is the attribute ``seed`` if set, otherwise the op's own seed, which
derives from the job's seed and the op's name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.base import philox
from flow_core.base.arrays import Array
from flow_core.base.dtypes import int8
from flow_core.ir.graph import tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import (
    check_place,
    floating_like_input,
    split_all_axes,
    with_place,
    with_rows,
)
from flow_core.plugins.specs import REQUIRED, InferContext, Sample
from flow_core.sharding.sbp import B, P


class RandomMaskLike(OpDef):
    """1 for a kept element, 0 for a dropped one; ``place`` is the position of a device's part in
    the logical tensor.
    """

    schema = "random_mask_like(like) -> out"
    attrs = {"rate": REQUIRED, "seed": None, "place": None}
    random = True
    sbp = staticmethod(with_rows(split_all_axes, (P, B)))  # only the input's shape is read
    localize = staticmethod(with_place)

    def infer(self, ctx: InferContext) -> Types:
        rate, seed = ctx.attrs["rate"], ctx.attrs["seed"]
        ctx.check(0 <= rate < 1, f"rate={rate}", "0 <= rate < 1, the fraction of elements to drop")
        check_place(ctx, ctx.inputs[0].shape)
        ctx.check(seed is None or isinstance(seed, int), f"seed={seed!r}", "a whole number or None")
        return (tensor_type(ctx.inputs[0].shape, int8),)

    def reference(
        self, like: Array, *, rate: float, seed: int | None, place: philox.Place | None
    ) -> Any:
        """Return the mask for step 0 and the seed, by default 0, as when the kits run kernels."""
        drawn = philox.placed_uniform(seed or 0, like.shape, place)
        return (np.float32(rate) < drawn).astype(np.int8)

    def samples(self, rng: Rng) -> Samples:
        for shape, rate in (((7, 5), 0.5), ((3, 1, 11), 0.1), ((0, 4), 0.5), ((20000,), 0.9)):
            yield Sample((rng.uniform(0, 1, shape),), {"rate": rate}, gradient=False)
        yield Sample((rng.uniform(0, 1, (9,)),), {"rate": 0.0, "seed": -3}, gradient=False)
        for part, whole, low in (
            ((3, 4), (7, 9), (2, 5)), ((4, 5000), (9, 5000), (3, 0)),
            ((40, 30, 2), (40, 70, 2), (0, 9, 0)),
        ):  # fmt: skip
            place = {"rate": 0.5, "place": (whole, low)}
            yield Sample((rng.uniform(0, 1, part),), place, gradient=False, note="a part")


class Masked(OpDef):
    """Dropout, or its gradient; the gradient of each emits the other one."""

    attrs = {"scale": REQUIRED}
    elementwise = True
    # P(sum) of the mask does not pass, since its small integers wrap around, nor do P(max) and
    # P(min), whose identity is infinite, and 0 times infinity is NaN
    sbp = staticmethod(with_rows(split_all_axes, ((P, B), P)))
    reference = staticmethod(lambda x, mask, *, scale: (x * mask * scale).astype(x.dtype))

    def infer(self, ctx: InferContext) -> Types:
        (x,) = floating_like_input(ctx)
        wanted = tensor_type(x.shape, int8)
        ctx.check(ctx.inputs[1] == wanted, f"a mask {ctx.inputs[1]} for {x}", str(wanted))
        scale = ctx.attrs["scale"]
        ctx.check(scale >= 1, f"scale={scale}", "scale >= 1: 1 / (1 - rate)")
        return (x,)

    def gradient(self, g: GradContext) -> Gradients:
        other = "dropout_grad" if g.op.type == "dropout" else "dropout"
        return g.one(other, g.dy, g.inputs[1], scale=g.attrs["scale"]), None

    def samples(self, rng: Rng) -> Samples:
        for shape, scale in (((7,), 2.0), ((3, 5), 1.25), ((2, 1, 4), 1.0)):
            mask = rng.integers(0, 2, shape).astype(np.int8)
            yield Sample((rng.uniform(-2, 2, shape), mask), {"scale": scale})
        empty = np.zeros((0, 3))
        yield Sample((empty, empty.astype(np.int8)), {"scale": 2.0}, gradient=False)


class Dropout(Masked):
    """in * mask * scale."""

    schema = "dropout(in, mask) -> out"


class DropoutGrad(Masked):
    schema = "dropout_grad(dy, mask) -> dx"


OPS = specs(RandomMaskLike, Dropout, DropoutGrad)
