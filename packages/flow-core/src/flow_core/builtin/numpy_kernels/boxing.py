"""The kernel of boxing within one process: copies and sums between devices' arenas."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from flow_core.builtin.numpy_kernels.binding import call, kernel
from flow_core.device import Launch
from flow_core.ops.boxing import COMBINE, window
from flow_core.plugins.specs import BindContext, KernelSpec


def _bind(ctx: BindContext) -> tuple[Launch, ...]:
    return tuple(_launches(ctx))


def _launches(ctx: BindContext) -> Iterator[Launch]:
    (out,) = ctx.outputs
    if ctx.attrs["zero"]:
        yield partial(out.fill, 0)
    combine = COMBINE[ctx.attrs["combine"]]
    for source, start, target, size, first in ctx.attrs["pieces"]:
        # the ellipsis makes a view of a 0-d array, too
        new = ctx.inputs[source][*window(start, size), ...]
        there = out[*window(target, size), ...]
        yield partial(np.copyto, there, new) if first else call(combine, there, new, out=there)


KERNELS: tuple[KernelSpec, ...] = (kernel("boxing", _bind),)
