"""Kernel of requested distributions: boxing already applied them, so that it only copies."""

from __future__ import annotations

from functools import partial

import numpy as np

from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelSpec


def _copy(ctx: BindContext) -> Launch:
    """Copy; needed only if the planner could not alias input and output."""
    return partial(np.copyto, ctx.outputs[0], ctx.inputs[0])


KERNELS: tuple[KernelSpec, ...] = (kernel("parallel_cast", _copy),)
