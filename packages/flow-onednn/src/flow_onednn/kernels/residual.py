"""Batch normalisation whose result is added to something and goes through relu, in one loop."""

from __future__ import annotations

from functools import partial
from math import prod

from flow_core.base.alignment import aligned
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec
from flow_onednn.kernels.loops import FLOAT_BYTES, loop_kernel, pointer, sum_shares
from flow_onednn.native import compiler

STATISTICS = 4
"""Numbers per channel and part: mean and squares of the part, and of the block under way."""


def _rows(query: KernelQuery) -> tuple[int, int]:
    *rows, channels = query.inputs[0].shape
    return prod(rows), channels


def _bytes(query: KernelQuery) -> int:
    rows, channels = _rows(query)
    return aligned(STATISTICS * sum_shares(rows, channels) * channels * FLOAT_BYTES)


def _bind(ctx: BindContext) -> Launch:
    rows, channels = _rows(ctx.query)
    numbers = (float(ctx.attrs[k]) for k in ("epsilon", "momentum"))
    arrays = map(pointer, (*ctx.inputs, *ctx.outputs, ctx.workspace))
    run = compiler.native().norm_add_relu
    return partial(run, *arrays, rows, channels, sum_shares(rows, channels), *numbers)


KERNELS: tuple[KernelSpec, ...] = (loop_kernel("onednn_norm_add_relu", _bind, workspace=_bytes),)
