"""Kernels of quantization to int8 and back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from flow_core.builtin.numpy_kernels.binding import Part, carve, kernel
from flow_core.device import Launch
from flow_core.ops.nn.linear_quantize import along, dequantize, quantize
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec


def _parts(query: KernelQuery) -> Iterator[Part]:
    """Yield the workspace: zero points as floats, and for quantization the levels as floats."""
    x, scale, zero = query.inputs
    yield zero.shape, scale.dtype.numpy
    if query.op == "quantize_linear":
        yield x.shape, x.dtype.numpy


def _bind(ctx: BindContext) -> list[Launch]:
    (x, scale, zero), (out,), axis = ctx.inputs, ctx.outputs, ctx.attrs["axis"]
    wide, *work = carve(ctx.workspace, *_parts(ctx.query))
    steps, levels = (along(grid, x.ndim, axis) for grid in (scale, wide))
    run = (
        partial(quantize, x, steps, levels, work[0], out)
        if work
        else partial(dequantize, x, steps, levels, out)
    )
    return [partial(np.copyto, wide, zero), run]


KERNELS: tuple[KernelSpec, ...] = tuple(
    kernel(op, _bind, parts=_parts) for op in ("quantize_linear", "dequantize_linear")
)
