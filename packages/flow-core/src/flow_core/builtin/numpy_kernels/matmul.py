"""Kernels of matrix products and bias_add: BLAS on views, no copies of operands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from flow_core.builtin.numpy_kernels.binding import call, kernel, scalar
from flow_core.builtin.numpy_kernels.widening import widened
from flow_core.device import Launch
from flow_core.ops.matmul import bias_axis
from flow_core.plugins.specs import BindContext, KernelSpec


def _operand(array: Any, transpose: bool) -> Any:
    return np.swapaxes(array, -1, -2) if transpose else array


def _matmul(ctx: BindContext) -> Sequence[Launch]:
    """BLAS takes transposed operands by their strides, so that a view costs nothing."""
    (a, b), (out,), attrs = ctx.inputs, ctx.outputs, ctx.attrs
    left, right = _operand(a, attrs["transpose_a"]), _operand(b, attrs["transpose_b"])
    multiply = partial(np.matmul, left, right, out)
    if attrs["alpha"] == 1:
        return (multiply,)
    return multiply, call(np.multiply, out, scalar(attrs["alpha"], out), out=out)


def _bias_add(ctx: BindContext) -> Launch:
    (a, b), (out,) = ctx.inputs, ctx.outputs
    shape = [1] * a.ndim
    shape[bias_axis(a.ndim, ctx.attrs)] = b.size
    return call(np.add, a, b.reshape(shape), out=out)


KERNELS: tuple[KernelSpec, ...] = (
    widened("matmul", _matmul),
    widened("batch_matmul", _matmul),
    kernel("bias_add", _bias_add),
)
