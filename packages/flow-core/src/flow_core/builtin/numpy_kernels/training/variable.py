"""The kernel of assign; variables themselves are session memory and have no kernel."""

from __future__ import annotations

from functools import partial

import numpy as np

from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelSpec


def _assign(ctx: BindContext) -> Launch:
    return partial(np.copyto, *ctx.inputs)


KERNELS: tuple[KernelSpec, ...] = (kernel("assign", _assign),)
