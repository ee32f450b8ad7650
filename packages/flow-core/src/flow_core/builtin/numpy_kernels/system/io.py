"""Kernels of literal arrays, of copies and of the step counter."""

from __future__ import annotations

from functools import partial

import numpy as np

from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import kernel, scalar
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelSpec


def _literal(ctx: BindContext) -> Launch:
    (out,) = ctx.outputs
    data = np.array(ctx.attrs["data"], out.dtype).reshape(out.shape)
    return partial(np.copyto, out, data)


def _copy(ctx: BindContext) -> Launch:
    return partial(np.copyto, ctx.outputs[0], ctx.inputs[0])


def _advance(ctx: BindContext) -> Launch:
    (step,) = ctx.inputs
    return call(np.add, step, scalar(1, step), out=step)


KERNELS: tuple[KernelSpec, ...] = (
    kernel("literal", _literal),
    kernel("copy", _copy),
    kernel("advance_step", _advance),
)
