"""The op between a branch and the values that it reads: no gradient passes unless it is taken.

The gradient of a branch that is not taken must be 0 even where the branch computes NaN, which a
product with a gradient of 0 would keep.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.ops.build import GradContext
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import any_partial
from flow_core.plugins.specs import InferContext, Sample, SbpContext
from flow_core.sharding.sbp import B, S, Signature, Signatures


class GradientGate(OpDef):
    """``x``, whose gradient is 0 if ``on``, of shape (1,), is 0."""

    schema = "gradient_gate(x, on) -> out"
    alias = 0

    def infer(self, ctx: InferContext) -> Types:
        x, on = ctx.inputs
        ctx.check(on.shape == (1,), f"a condition {on}", "a condition of shape (1,)")
        return (x,)

    def sbp(self, ctx: SbpContext) -> Signatures:
        splits = (Signature((S(i), B), (S(i),)) for i in range(len(ctx.inputs[0].shape)))
        return (*splits, *any_partial(ctx, 0))

    def gradient(self, g: GradContext) -> Gradients:
        return g.one("where_scalar_y", g.inputs[1], g.dy, operand=0.0), None

    def reference(self, x: Any, on: Any) -> Any:
        return x

    def samples(self, rng: Rng) -> Samples:
        for shape in ((7,), (3, 1, 2), (0, 2)):
            x = rng.uniform(-3, 3, shape)
            yield Sample((x, np.ones(1, np.int8)))
            yield Sample((x, np.zeros(1, np.int8)), {}, False, "off")
        yield Sample((rng.integers(-9, 9, (2, 3)), np.ones(1, np.float32)), {}, False)


OPS = specs(GradientGate)
