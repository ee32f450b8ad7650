"""Elementwise ops and groups of them: one launch each."""

from __future__ import annotations

from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelSpec
from flow_cuda.elementwise import group_of, is_known, joined, write
from flow_cuda.expressions import TABLE
from flow_cuda.kernels.binding import kernel
from flow_cuda.launch import each, space, strides


def bind(ctx: BindContext) -> Launch:
    """The launch of a group."""
    group = group_of(ctx.query)
    sizes, steps = joined(group)
    size = space(sizes)
    return each(write(group), int(size[0]), *ctx.inputs, *ctx.outputs, size, *map(strides, steps))


KERNELS: tuple[KernelSpec, ...] = tuple(kernel(op, bind, is_known) for op in ("fused", *TABLE))
