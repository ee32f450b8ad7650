"""Kernels that convert element types; each is one casting copy without an intermediate buffer."""

from __future__ import annotations

from functools import partial

import numpy as np

from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelSpec


def _cast(ctx: BindContext) -> Launch:
    return partial(np.copyto, ctx.outputs[0], ctx.inputs[0], casting="unsafe")


def _scaled(ctx: BindContext) -> tuple[Launch, ...]:
    (_, factor), (y,) = ctx.inputs, ctx.outputs
    return (_cast(ctx), call(np.multiply, y, factor.reshape(()), out=y))


KERNELS: tuple[KernelSpec, ...] = (
    kernel("cast", _cast),
    kernel("cast_like", _cast),
    kernel("fused_cast_scale", _scaled),
)
