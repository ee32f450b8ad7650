"""Kernels of quantization in training."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes
from flow_core.builtin.numpy_kernels.widening import widened
from flow_core.device import Launch
from flow_core.ops.quantize import move, observe, on_grid, per_row, rows_of, to_grid
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec


def _observer(ctx: BindContext) -> Launch:
    return partial(observe, rows_of(ctx.inputs[0], ctx.attrs), *ctx.outputs, ctx.attrs)


def _moving(ctx: BindContext) -> Launch:
    return partial(_move, *ctx.inputs, *ctx.outputs, ctx.attrs)


def _move(
    x: Any, step: Any, high: Any, low: Any, scale: Any, zero: Any, attrs: Mapping[str, Any]
) -> None:
    move(x, step, high, low, attrs)
    scale[...], zero[...] = high, low
    to_grid(scale, zero, attrs)


def _halves(query: KernelQuery) -> tuple[tuple[int, ...], Any]:
    return query.inputs[0].shape, query.inputs[0].dtype.numpy


def _fake(ctx: BindContext) -> Launch:
    (x, scale, zero), (out,) = ctx.inputs, ctx.outputs
    (halves,) = carve(ctx.workspace, _halves(ctx.query))
    rows = (per_row(numbers, x.ndim) for numbers in (scale, zero))
    return partial(on_grid, x, *rows, out, halves, ctx.attrs)


KERNELS: tuple[KernelSpec, ...] = (
    widened("min_max_observer", _observer),
    widened("moving_average_min_max_observer", _moving, mutates=(2, 3)),
    widened("fake_quantization", _fake, workspace=lambda query: carved_bytes(_halves(query))),
)
