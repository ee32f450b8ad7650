"""Kernels of the elementwise ops of one input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flow_core.builtin.numpy_kernels.binding import call, kernel, scalar, ufunc_kernel
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelSpec

UFUNCS = {
    "negative": np.negative, "abs": np.abs, "sign": np.sign, "exp": np.exp, "expm1": np.expm1,
    "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "square": np.square,
    "reciprocal": np.reciprocal, "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh,
    "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "ceil": np.ceil,
    "floor": np.floor, "rint": np.rint,
}  # fmt: skip


def _rsqrt(ctx: BindContext) -> Sequence[Launch]:
    (x,), (y,) = ctx.inputs, ctx.outputs
    return call(np.sqrt, x, out=y), call(np.reciprocal, y, out=y)


def _round(ctx: BindContext) -> Sequence[Launch]:
    """Half away from zero: trunc(x + copysign(0.5, x)) needs x twice, so it may not alias."""
    (x,), (y,) = ctx.inputs, ctx.outputs
    half = ctx.workspace.view(x.dtype)[: x.size].reshape(x.shape)
    return (
        call(np.copysign, scalar(0.5, x), x, out=half),
        call(np.add, x, half, out=y),
        call(np.trunc, y, out=y),
    )


KERNELS: tuple[KernelSpec, ...] = (
    *(ufunc_kernel(op, function) for op, function in UFUNCS.items()),
    kernel("rsqrt", _rsqrt),
    kernel("round", _round, workspace=lambda q: q.inputs[0].nbytes),
)
