"""L2 normalization along an axis, as in ``flow.math.l2_normalize``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.rules import checked_axis, floating_like_input
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import B, P, S, Signature, Signatures


def _l2_type(ctx: InferContext) -> tuple[TensorType, ...]:
    (x,) = floating_like_input(ctx)
    axis = checked_axis(ctx, ctx.attrs["axis"], len(x.shape))
    ctx.check(ctx.attrs["epsilon"] > 0, f"epsilon={ctx.attrs['epsilon']}", "epsilon > 0")
    return x, tensor_type((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)


def _l2_grad_type(ctx: InferContext) -> tuple[TensorType, ...]:
    dy, squares = _l2_type(ctx)
    found = ", ".join(map(str, ctx.inputs))
    ctx.check(ctx.inputs[1:] == (dy, squares), found, f"{dy}, {dy}, {squares}")
    return (dy,)


def _l2_sbp(ctx: SbpContext) -> Signatures:
    rank = len(ctx.inputs[0].shape)
    axes = [i for i in range(rank) if i != ctx.attrs["axis"] % rank]
    n_in, n_out = len(ctx.inputs), len(ctx.outputs)
    return tuple(Signature((S(i),) * n_in, (S(i),) * n_out) for i in axes)


def _l2_grad_sbp(ctx: SbpContext) -> Signatures:
    return (*_l2_sbp(ctx), Signature((P, B, B), (P,)))


def _l2_gradient(g: GradContext) -> Sequence[Sym | None]:
    (y, squares), (dy, d_squares) = g.outputs, g.grads
    parts = []
    if dy is not None:
        parts.append(g.one("l2_normalize_grad", dy, y, squares, **g.attrs))
    if d_squares is not None:
        parts.append(g.x * d_squares * 2)
    return (parts[0] + parts[1] if len(parts) == 2 else parts[0],)


def _l2(x: Array, *, axis: int, epsilon: float) -> tuple[Array, ...]:
    squares = np.square(x).sum(axis, keepdims=True)
    return x / np.sqrt(np.maximum(squares, epsilon)), squares


def _l2_grad(dy: Array, y: Array, square_x_sum: Array, *, axis: int, epsilon: float) -> Any:
    """Return the gradient, where a norm below epsilon counts as a constant."""
    inner = np.where(square_x_sum >= epsilon, (dy * y).sum(axis, keepdims=True), 0)
    return (dy - inner * y) / np.sqrt(np.maximum(square_x_sum, epsilon))


L2_SHAPES = (((3, 5), 1), ((2, 3, 4), 1), ((4, 3), 0), ((5,), -1))


def _l2_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, axis in L2_SHAPES:
        yield Sample((rng.normal(0, 1, shape),), {"axis": axis})
    lengths = np.array([0.1, 2.0, 3.0])[:, None]
    mixed = rng.uniform(1, 2, (3, 5)) * lengths
    yield Sample((mixed,), {"axis": 1, "epsilon": 1.0}, note="one vector below epsilon")


def _l2_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, axis in L2_SHAPES:
        for epsilon in (1e-3, 2.0):
            squares = rng.uniform(1, 3, _l2(np.ones(shape), axis=axis, epsilon=1.0)[1].shape)
            arrays = rng.normal(0, 1, shape), rng.normal(0, 1, shape), squares
            yield Sample(arrays, {"axis": axis, "epsilon": epsilon}, gradient=False)


SPECS: tuple[OpSpec, ...] = (
    OpSpec(
        type="l2_normalize",
        inputs=("x",),
        outputs=("y", "square_x_sum"),
        attrs={"axis": REQUIRED, "epsilon": 1e-12},
        infer=_l2_type,
        sbp=_l2_sbp,
        gradient=_l2_gradient,
        reference=_l2,
        samples=_l2_samples,
        doc="x / sqrt(max(sum of x*x along the axis, epsilon)).",
    ),
    OpSpec(
        type="l2_normalize_grad",
        inputs=("dy", "y", "square_x_sum"),
        outputs=("dx",),
        attrs={"axis": REQUIRED, "epsilon": 1e-12},
        infer=_l2_grad_type,
        sbp=_l2_grad_sbp,
        reference=_l2_grad,
        samples=_l2_grad_samples,
    ),
)
