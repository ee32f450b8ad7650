"""The op between a branch and the values that it reads: no gradient passes unless it is taken.

The gradient of a branch that is not taken must be 0 even where the branch computes NaN, which a
product with a gradient of 0 would keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flow_core.ir.graph import TensorType
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.rules import any_partial
from flow_core.plugins.specs import InferContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import B, S, Signature, Signatures


def _infer(ctx: InferContext) -> tuple[TensorType, ...]:
    x, on = ctx.inputs
    ctx.check(on.shape == (1,), f"a condition {on}", "a condition of shape (1,)")
    return (x,)


def _sbp(ctx: SbpContext) -> Signatures:
    splits = (Signature((S(i), B), (S(i),)) for i in range(len(ctx.inputs[0].shape)))
    return (*splits, *any_partial(ctx, 0))


def _gradient(g: GradContext) -> tuple[Sym, None]:
    return g.one("where_scalar_y", g.inputs[1], g.dy, operand=0.0), None


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((7,), (3, 1, 2), (0, 2)):
        x = rng.uniform(-3, 3, shape)
        yield Sample((x, np.ones(1, np.int8)))
        yield Sample((x, np.zeros(1, np.int8)), {}, False, "off")
    yield Sample((rng.integers(-9, 9, (2, 3)), np.ones(1, np.float32)), {}, False)


def _reference(x: Any, on: Any) -> Any:
    return x


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="gradient_gate",
        inputs=("x", "on"),
        infer=_infer,
        sbp=_sbp,
        gradient=_gradient,
        reference=_reference,
        samples=_samples,
        alias=0,
        doc="``x``, whose gradient is 0 if ``on``, of shape (1,), is 0.",
    ),
)
