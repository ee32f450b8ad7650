"""Dropout: ops that draw a random mask, and that multiply a tensor by the mask.

All kernels must draw the same mask: element i is ``rate < u[i]``, where u are the uniform numbers
of `flow_core.base.philox` for the op's key and the current step, and i is the index in the logical
tensor in C order.  The key is the attribute ``seed`` if set, otherwise the op's own seed, which
derives from the job's seed and the op's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flow_core.base import philox
from flow_core.base.arrays import Array
from flow_core.base.dtypes import int8
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.rules import (
    check_place,
    floating_like_input,
    split_all_axes,
    with_place,
)
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import B, P, Signature, Signatures


def _mask_type(ctx: InferContext) -> tuple[TensorType, ...]:
    rate, seed = ctx.attrs["rate"], ctx.attrs["seed"]
    ctx.check(0 <= rate < 1, f"rate={rate}", "0 <= rate < 1, the fraction of elements to drop")
    check_place(ctx, ctx.inputs[0].shape)
    ctx.check(seed is None or isinstance(seed, int), f"seed={seed!r}", "a whole number or None")
    return (tensor_type(ctx.inputs[0].shape, int8),)


def _masked_type(ctx: InferContext) -> tuple[TensorType, ...]:
    (x,) = floating_like_input(ctx)
    wanted = tensor_type(x.shape, int8)
    ctx.check(ctx.inputs[1] == wanted, f"a mask {ctx.inputs[1]} for {x}", str(wanted))
    ctx.check(ctx.attrs["scale"] >= 1, f"scale={ctx.attrs['scale']}", "scale >= 1: 1 / (1 - rate)")
    return (x,)


def _masked_sbp(ctx: SbpContext) -> Signatures:
    """Pass P(sum) of the tensor that is masked, but not of the mask, whose small integers wrap
    around.

    P(max) and P(min) do not pass: their identity is infinite, and 0 times infinity is NaN.
    """
    return (*split_all_axes(ctx), Signature((P, B), (P,)))


def _dropout_gradient(g: GradContext) -> Sequence[Sym | None]:
    return g.one("dropout_grad", g.dy, g.inputs[1], scale=g.attrs["scale"]), None


def _dropout_grad_gradient(g: GradContext) -> Sequence[Sym | None]:
    return g.one("dropout", g.dy, g.inputs[1], scale=g.attrs["scale"]), None


def _mask_sbp(ctx: SbpContext) -> Signatures:
    """Allow any SBP of the input, of which only the shape is read."""
    return (*split_all_axes(ctx), Signature((P,), (B,)))


def _mask(like: Array, *, rate: float, seed: int | None, place: philox.Place | None) -> Any:
    """Return the mask for step 0 and the seed, by default 0, as when the kits run kernels."""
    drawn = philox.placed_uniform(seed or 0, like.shape, place)
    return (np.float32(rate) < drawn).astype(np.int8)


def _masked(x: Array, mask: Array, *, scale: float) -> Array:
    return (x * mask * scale).astype(x.dtype)


def _mask_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, rate in (((7, 5), 0.5), ((3, 1, 11), 0.1), ((0, 4), 0.5), ((20000,), 0.9)):
        yield Sample((rng.uniform(0, 1, shape),), {"rate": rate}, gradient=False)
    yield Sample((rng.uniform(0, 1, (9,)),), {"rate": 0.0, "seed": -3}, gradient=False)
    for part, whole, low in (((3, 4), (7, 9), (2, 5)), ((4, 5000), (9, 5000), (3, 0)),
                             ((40, 30, 2), (40, 70, 2), (0, 9, 0))):  # fmt: skip
        place = {"rate": 0.5, "place": (whole, low)}
        yield Sample((rng.uniform(0, 1, part),), place, gradient=False, note="a part")


def _masked_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, scale in (((7,), 2.0), ((3, 5), 1.25), ((2, 1, 4), 1.0)):
        mask = rng.integers(0, 2, shape).astype(np.int8)
        yield Sample((rng.uniform(-2, 2, shape), mask), {"scale": scale})
    empty = np.zeros((0, 3))
    yield Sample((empty, empty.astype(np.int8)), {"scale": 2.0}, gradient=False)


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="random_mask_like",
        inputs=("like",),
        attrs={"rate": REQUIRED, "seed": None, "place": None},
        infer=_mask_type,
        sbp=_mask_sbp,
        localize=with_place,
        reference=_mask,
        samples=_mask_samples,
        random=True,
        doc="1 for a kept element, 0 for a dropped one; ``place`` is the position of a device's "
        "part in the logical tensor.",
    ),
    OpSpec(
        type="dropout",
        inputs=("in", "mask"),
        attrs={"scale": REQUIRED},
        infer=_masked_type,
        sbp=_masked_sbp,
        gradient=_dropout_gradient,
        reference=_masked,
        samples=_masked_samples,
        elementwise=True,
        doc="in * mask * scale.",
    ),
    OpSpec(
        type="dropout_grad",
        inputs=("dy", "mask"),
        outputs=("dx",),
        attrs={"scale": REQUIRED},
        infer=_masked_type,
        sbp=_masked_sbp,
        gradient=_dropout_grad_gradient,
        reference=_masked,
        samples=_masked_samples,
        elementwise=True,
    ),
)
