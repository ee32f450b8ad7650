"""Batch normalization fused with a residual addition and relu, in one C loop."""

from __future__ import annotations

from math import prod

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_core.base.alignment import aligned
from flow_onednn.kernels.loops import FLOAT_BYTES, loop_kernel, pointer, sum_partitions
from flow_onednn.kernels.upcast import is_half
from flow_onednn.native.calls import call

STATISTICS = 4
"""Scratch numbers per channel and part: mean and sum of squared deviations of part and block."""


def _rows(query: KernelQuery) -> tuple[int, int]:
    *rows, channels = query.inputs[0].shape
    return prod(rows), channels


def _bytes(query: KernelQuery) -> int:
    rows, channels = _rows(query)
    return aligned(STATISTICS * sum_partitions(rows, channels) * channels * FLOAT_BYTES)


def _bind(ctx: BindContext) -> Launch:
    rows, channels = _rows(ctx.query)
    numbers = (float(ctx.attrs[k]) for k in ("epsilon", "momentum"))
    half = is_half(ctx.query.inputs[0])
    name = "norm_add_relu" + "_bf16" * half
    types = (*ctx.query.inputs, *ctx.query.outputs)
    kinds = ["uint16_t *" if is_half(t) else "float *" for t in types]
    arrays = map(pointer, (*ctx.inputs, *ctx.outputs, ctx.workspace), (*kinds, "float *"))
    return call(name, *arrays, rows, channels, sum_partitions(rows, channels), *numbers)


def _accepts(query: KernelQuery) -> bool:
    """Return whether images are all float32 or all bfloat16, and vectors are float32."""
    types = (*query.inputs, *query.outputs)
    images = {t.dtype.name for t in types if len(t.shape) > 1}
    vectors = {t.dtype.name for t in types if len(t.shape) == 1}
    return images in ({"float32"}, {"bfloat16"}) and vectors == {"float32"}


KERNELS: tuple[KernelSpec, ...] = (
    loop_kernel("onednn_norm_add_relu", _bind, _accepts, workspace=_bytes),
)
