"""Kernel of cumsum: a ufunc's ``accumulate`` on views that are flipped, or one element shorter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from flow_core.builtin.numpy_kernels.widening import widened
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelSpec


def _cumsum(ctx: BindContext) -> Sequence[Launch]:
    axis, flipped = ctx.attrs["axis"], ctx.attrs["reverse"]
    (x,), (y,) = ctx.inputs, ctx.outputs
    x, y = (np.moveaxis(array, axis, 0)[:: -1 if flipped else 1] for array in (x, y))
    if not ctx.attrs["exclusive"]:
        return (partial(np.add.accumulate, x, 0, x.dtype, y),)
    first = partial(y[:1].fill, 0)
    if len(x) < 2:
        return (first,)
    return first, partial(np.add.accumulate, x[:-1], 0, x.dtype, y[1:])


KERNELS: tuple[KernelSpec, ...] = (widened("cumsum", _cumsum),)
