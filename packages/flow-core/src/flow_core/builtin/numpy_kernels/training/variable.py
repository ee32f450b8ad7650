"""The kernel of ``assign``; the session stores the variables, so that they need no kernel."""

from __future__ import annotations

from functools import partial

import numpy as np

from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelSpec


def _assign(ctx: BindContext) -> Launch:
    return partial(np.copyto, *ctx.inputs)


KERNELS: tuple[KernelSpec, ...] = (kernel("assign", _assign),)
