"""Kernels of quantization to int8 and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.ops.nn.linear_quantize import dequantize, quantize
from flow_core.plugins.specs import BindContext, KernelSpec


def _bind(compute: Callable[..., Array], ctx: BindContext) -> Launch:
    return partial(_run, compute, ctx.inputs, ctx.outputs[0], ctx.attrs["axis"])


def _run(compute: Callable[..., Array], inputs: tuple[Any, ...], out: Array, axis: Any) -> None:
    out[...] = compute(*inputs, axis)


KERNELS: tuple[KernelSpec, ...] = (
    kernel("quantize_linear", partial(_bind, quantize)),
    kernel("dequantize_linear", partial(_bind, dequantize)),
)
