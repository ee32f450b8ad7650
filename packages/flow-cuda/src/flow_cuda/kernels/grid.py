"""Kernels for quantization and upsampling."""

from __future__ import annotations

from math import prod

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelSpec
from flow_cuda.device.launch import Read, call
from flow_cuda.kernels.binding import c_type, kernel

HEADER = "grid.h"
NEVER = -1
"""A step number that precedes all steps."""


def _grid(ctx: BindContext) -> tuple[int, float]:
    """Return whether quantization is symmetric, and the largest quantized value."""
    symmetric = ctx.attrs["quantization_scheme"] == "symmetric"
    bits: int = ctx.attrs["quantization_bit"]
    return int(symmetric), float(2 ** (bits - symmetric) - 1)


def _observe(ctx: BindContext) -> Launch:
    (x,), (scale, zero) = ctx.inputs, ctx.outputs
    types, rows = (c_type(ctx.query.inputs[0]),), scale.size
    values = (Read(x), scale, zero, rows, x.size // rows, *_grid(ctx))
    return call("observe", HEADER, types, *values, items=rows, blocks=True)


def _observe_moving(ctx: BindContext) -> Launch:
    x, step, *moving = ctx.inputs
    attrs, types = ctx.attrs, (c_type(ctx.query.inputs[0]),)
    last = attrs["stop_update_after_iters"] if attrs["training"] else NEVER
    values = (Read(x), Read(step), *moving, *ctx.outputs, x.size, *_grid(ctx))
    numbers = (int(bool(attrs["training"])), last, float(attrs["momentum"]))
    return call("observe_moving", HEADER, types, *values, *numbers, items=1, blocks=True)


def _round(ctx: BindContext) -> Launch:
    x, scale, zero = ctx.inputs
    types, inner = (c_type(ctx.query.inputs[0]),), max(1, x.size // scale.size)
    values = (Read(x), Read(scale), Read(zero), ctx.outputs[0], x.size, inner, *_grid(ctx))
    return call("fake_quantization", HEADER, types, *values, items=x.size)


def _upsample(ctx: BindContext) -> Launch:
    (x,), (y,), attrs = ctx.query.inputs, ctx.query.outputs, ctx.attrs
    small, large = (y, x) if ctx.query.op == "upsample_grad" else (x, y)
    scales = (float(attrs["height_scale"]), float(attrs["width_scale"]))
    extent = (prod(x.shape[:2]), *small.shape[2:], *large.shape[2:], *scales)
    values = (
        Read(ctx.inputs[0]),
        ctx.outputs[0],
        *extent,
        int(attrs["interpolation"] == "bilinear"),
    )
    return call(ctx.query.op, HEADER, (c_type(x),), *values, items=y.size)


KERNELS: tuple[KernelSpec, ...] = (
    kernel("min_max_observer", _observe),
    kernel("moving_average_min_max_observer", _observe_moving),
    kernel("fake_quantization", _round),
    kernel("upsample", _upsample),
    kernel("upsample_grad", _upsample),
)
