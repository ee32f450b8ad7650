"""Stale values of variables: a ring of copies, each used once per round.

What a step computes with is what the variable was some steps before, so that as many steps can be
under way at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flow_core.dtypes import int64
from flow_core.ir import TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.rules import like_input
from flow_core.plugins.specs import InferContext, OpSpec, Sample, SbpContext
from flow_core.sbp import EXTREMES, B, P, S, Sbp, Signature, Signatures


def _proxy_sbp(ctx: SbpContext) -> Signatures:
    kinds: tuple[Sbp, ...] = (*map(S, range(len(ctx.inputs[0].shape))), P, *EXTREMES)
    return tuple(Signature((kind,), (kind,)) for kind in kinds)


def _proxy(var: Any) -> Any:
    return np.array(var)


def _proxy_gradient(g: GradContext) -> tuple[Sym]:
    return (g.dy,)


def _proxy_samples(rng: Any) -> Iterator[Sample]:
    for shape in ((3, 4), (7,), ()):
        yield Sample((rng.uniform(-3, 3, shape),))


def _rotate_infer(ctx: InferContext) -> tuple[TensorType, ...]:
    var, ring, count, value = ctx.inputs
    fits = ring.shape[1:] == var.shape and ring.dtype is var.dtype and value == var
    ctx.check(fits and ring.shape[0] > 0, f"a ring {ring} for {var}", "copies of the variable")
    ctx.check(count == tensor_type((1,), int64), f"a count {count}", "int64[1]")
    return ()


def _rotate_sbp(ctx: SbpContext) -> Signatures:
    rank = len(ctx.inputs[0].shape)
    return tuple(Signature((S(i), S(i + 1), B, S(i)), ()) for i in range(rank))


def _rotate_samples(rng: Any) -> Iterator[Sample]:
    for shape, size, count in (((3, 4), 2, 0), ((5,), 3, 4), ((2, 3, 2), 1, 1)):
        var, value = (rng.uniform(-3, 3, shape) for _ in range(2))
        ring = rng.uniform(-3, 3, (size, *shape))
        yield Sample((var, ring, np.array([count], np.int64), value), {}, False)


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="ssp_variable_proxy",
        inputs=("var",),
        outputs=("value",),
        infer=like_input,
        sbp=_proxy_sbp,
        gradient=_proxy_gradient,
        reference=_proxy,
        samples=_proxy_samples,
        doc="What a variable is when the step begins, in memory of its own.",
    ),
    OpSpec(
        type="ssp_rotate",
        inputs=("var", "ring", "count", "value"),
        outputs=(),
        infer=_rotate_infer,
        sbp=_rotate_sbp,
        samples=_rotate_samples,
        mutates=(0, 1, 2),
        effect=True,
        doc="Exchanges a variable with the oldest of some copies; before the first time, these are "
        "what the variable was when the step began.",
    ),
)
