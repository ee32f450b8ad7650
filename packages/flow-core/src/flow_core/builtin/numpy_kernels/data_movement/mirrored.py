"""Kernels of casts between the consistent and the mirrored view.

Plans need these kernels if they place several ranks on one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.ops.data_movement.mirrored import parts_per_device
from flow_core.plugins.specs import BindContext, KernelSpec
from flow_core.sharding.sbp import Broadcast, Partial


def _to(ctx: BindContext) -> Sequence[Launch]:
    x, attrs = ctx.inputs[0], ctx.attrs
    parts = parts_per_device(x.shape, attrs["sbp"], attrs["hierarchy"], Partial)
    return tuple(
        partial(np.copyto, out, x[window] if first else 0)
        for out, (first, window) in zip(ctx.outputs, parts, strict=True)
    )


def _from(ctx: BindContext) -> Sequence[Launch]:
    out, attrs = ctx.outputs[0], ctx.attrs
    parts = parts_per_device(out.shape, attrs["sbp"], attrs["hierarchy"], Broadcast)
    adding = (
        partial(np.add, out[window], x, out[window])
        for x, (first, window) in zip(ctx.inputs, parts, strict=True)
        if first
    )
    return (partial(np.copyto, out, 0), *adding)


KERNELS: tuple[KernelSpec, ...] = (
    kernel("cast_to_mirrored", _to),
    kernel("cast_from_mirrored", _from),
)
