"""Kernels of quantization-aware training."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes
from flow_core.builtin.numpy_kernels.widening import widened
from flow_core.device import Launch
from flow_core.ir.graph import AttrValue
from flow_core.ops.nn.quantize import move, observe, per_row, range_to_grid, round_to_grid, rows_of
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec


def _observer(ctx: BindContext) -> Launch:
    (x,), (scale, zero) = ctx.inputs, ctx.outputs
    return partial(observe, rows_of(x, ctx.attrs), scale, zero, ctx.attrs)


def _moving(ctx: BindContext) -> Launch:
    (x, step, high, low), (scale, zero) = ctx.inputs, ctx.outputs
    return partial(_move, x, step, high, low, scale, zero, ctx.attrs)


def _move(
    x: Array,
    step: Array,
    high: Array,
    low: Array,
    scale: Array,
    zero: Array,
    attrs: Mapping[str, AttrValue],
) -> None:
    move(x, step, high, low, attrs)
    scale[...], zero[...] = high, low
    range_to_grid(scale, zero, attrs)


def _halves(query: KernelQuery) -> tuple[tuple[int, ...], DTypeLike]:
    return query.inputs[0].shape, query.inputs[0].dtype.numpy


def _fake(ctx: BindContext) -> Launch:
    (x, scale, zero), (out,) = ctx.inputs, ctx.outputs
    (halves,) = carve(ctx.workspace, _halves(ctx.query))
    scale, zero = per_row(scale, x.ndim), per_row(zero, x.ndim)
    return partial(round_to_grid, x, scale, zero, out, halves, ctx.attrs)


KERNELS: tuple[KernelSpec, ...] = (
    widened("min_max_observer", _observer),
    widened("moving_average_min_max_observer", _moving, mutates=(2, 3)),
    widened("fake_quantization", _fake, workspace=lambda query: carved_bytes(_halves(query))),
)
