"""The kernel that returns stale values of a variable (for stale synchronous parallel training)."""

from __future__ import annotations

from functools import partial

from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.ops.training.ssp import rotate_ring
from flow_core.plugins.specs import BindContext, KernelSpec


def _proxy(ctx: BindContext) -> Launch:
    (var, ring, count), (value,) = ctx.inputs, ctx.outputs
    return partial(rotate_ring, var, ring, count, value)


KERNELS: tuple[KernelSpec, ...] = (kernel("ssp_variable_proxy", _proxy),)
