"""L2 normalization along an axis, as in ``flow.math.l2_normalize``."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import checked_axis, floating_like_input, split_other_axes, with_rows
from flow_core.plugins.specs import REQUIRED, InferContext, Sample
from flow_core.sharding.sbp import B, P


def _l2_type(ctx: InferContext) -> tuple[TensorType, ...]:
    (x,) = floating_like_input(ctx)
    axis = checked_axis(ctx, ctx.attrs["axis"], len(x.shape))
    ctx.check(ctx.attrs["epsilon"] > 0, f"epsilon={ctx.attrs['epsilon']}", "epsilon > 0")
    return x, tensor_type((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)


L2_SHAPES = (((3, 5), 1), ((2, 3, 4), 1), ((4, 3), 0), ((5,), -1))


class L2Normalize(OpDef):
    """x / sqrt(max(sum of x*x along the axis, epsilon))."""

    schema = "l2_normalize(x) -> y, square_x_sum"
    attrs = {"axis": REQUIRED, "epsilon": 1e-12}
    infer = staticmethod(_l2_type)
    sbp = staticmethod(split_other_axes)

    def gradient(self, g: GradContext) -> Gradients:
        (y, squares), (dy, d_squares) = g.outputs, g.grads
        parts = []
        if dy is not None:
            parts.append(g.one("l2_normalize_grad", dy, y, squares, **g.attrs))
        if d_squares is not None:
            parts.append(g.x * d_squares * 2)
        return (parts[0] + parts[1] if len(parts) == 2 else parts[0],)

    def reference(self, x: Array, *, axis: int, epsilon: float) -> tuple[Array, ...]:
        squares = np.square(x).sum(axis, keepdims=True)
        return x / np.sqrt(np.maximum(squares, epsilon)), squares

    def samples(self, rng: Rng) -> Samples:
        for shape, axis in L2_SHAPES:
            yield Sample((rng.normal(0, 1, shape),), {"axis": axis})
        lengths = np.array([0.1, 2.0, 3.0])[:, None]
        mixed = rng.uniform(1, 2, (3, 5)) * lengths
        yield Sample((mixed,), {"axis": 1, "epsilon": 1.0}, note="one vector below epsilon")


class L2NormalizeGrad(OpDef):
    schema = "l2_normalize_grad(dy, y, square_x_sum) -> dx"
    attrs = {"axis": REQUIRED, "epsilon": 1e-12}
    sbp = staticmethod(with_rows(split_other_axes, ((P, B, B), P)))

    def infer(self, ctx: InferContext) -> Types:
        dy, squares = _l2_type(ctx)
        found = ", ".join(map(str, ctx.inputs))
        ctx.check(ctx.inputs[1:] == (dy, squares), found, f"{dy}, {dy}, {squares}")
        return (dy,)

    def reference(
        self, dy: Array, y: Array, square_x_sum: Array, *, axis: int, epsilon: float
    ) -> Any:
        """Return the gradient, where a norm below epsilon counts as a constant."""
        inner = np.where(square_x_sum >= epsilon, (dy * y).sum(axis, keepdims=True), 0)
        return (dy - inner * y) / np.sqrt(np.maximum(square_x_sum, epsilon))

    def samples(self, rng: Rng) -> Samples:
        for (shape, axis), epsilon in product(L2_SHAPES, (1e-3, 2.0)):
            squares = rng.uniform(1, 3, np.sum(np.ones(shape), axis, keepdims=True).shape)
            arrays = rng.normal(0, 1, shape), rng.normal(0, 1, shape), squares
            yield Sample(arrays, {"axis": axis, "epsilon": epsilon}, gradient=False)


SPECS = specs(L2Normalize, L2NormalizeGrad)
