"""Helpers of the families of elementwise ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.shapes import reduced_axes
from flow_core.ops.build import GradContext, Sym
from flow_core.plugins.specs import InferContext


def sum_to_shape(g: GradContext, index: int, grad: Sym) -> Sym:
    """Emit the sum of an output gradient over the axes along which an input was broadcast."""
    target = g.inputs[index]
    if grad.shape == target.shape:
        return grad
    axes = reduced_axes(grad.shape, target.shape)
    return g.one("reduce_sum_like", grad, target, axis=axes)


def check_kinds(ctx: InferContext, kinds: str) -> None:
    """Fail unless the element types of all inputs are of the given kinds."""
    names = {"f": "floating", "i": "integer", "u": "unsigned", "b": "bool"}
    if any(t.dtype.kind not in kinds for t in ctx.inputs):
        ctx.fail(
            f"inputs of types {', '.join(map(str, ctx.inputs))}",
            ", ".join(names[k] for k in kinds),
            "cast them first: flow.cast(x, flow.float)",
        )


def number(value: float, x: Array) -> Any:
    """Return a number as an array stores it: truncated for integer types."""
    return np.array(value).astype(np.asarray(x).dtype)
