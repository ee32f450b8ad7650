"""Kernels of elementwise ops and of fused groups, with one launch per op or group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelSpec, TensorType, tensor_type
from flow_cuda.codegen.elementwise import Group, is_supported, make_group, make_layout, write
from flow_cuda.codegen.expressions import TABLE
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import launch
from flow_cuda.kernels.binding import kernel as kernel_spec


def bind(ctx: BindContext) -> Launch:
    """Bind a fused group to one launch."""
    return launch_group(make_group(ctx.query), (*ctx.inputs, *ctx.outputs))


def launch_group(group: Group, arrays: Sequence[DeviceArray]) -> Launch:
    """Return the launch of a group on its inputs, then its outputs."""
    layout = make_layout(group, [x.address for x in arrays])
    kernel, numbers = write(group, layout)
    items = -(-layout.size // layout.width)
    return launch(kernel, items, *arrays, *numbers, specialize=False)


def _bias_add(ctx: BindContext) -> Launch:
    """Bind an addition in which the second input has one element per index of one axis."""
    (x, bias), out = ctx.query.inputs, ctx.query.outputs[0]
    axis: int = ctx.attrs["axis"]
    shape = tuple(n if i == axis % len(x.shape) else 1 for i, n in enumerate(x.shape))
    types = (x, tensor_type(shape, bias.dtype))
    return _single(ctx, "broadcast_add", types, out, ctx.inputs)


def _cast_like(ctx: BindContext) -> Launch:
    return _single(ctx, "cast", ctx.query.inputs[:1], ctx.query.outputs[0], ctx.inputs[:1])


def _single(
    ctx: BindContext,
    op: str,
    types: tuple[TensorType, ...],
    result: TensorType,
    inputs: tuple[Any, ...],
) -> Launch:
    """Bind an op as the elementwise op ``op``."""
    query = replace(ctx.query, op=op, inputs=types, outputs=(result,))
    return bind(replace(ctx, query=query, inputs=inputs))


KERNELS: tuple[KernelSpec, ...] = (
    *(kernel_spec(op, bind, is_supported) for op in ("fused", *TABLE)),
    kernel_spec("bias_add", _bias_add),
    kernel_spec("cast_like", _cast_like),
)
