"""Kernels that convert element types; each is one casting copy, but for bfloat16 to integers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np

from flow_core.base.dtypes import bfloat16
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import Part, carve, kernel
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec


def _parts(query: KernelQuery) -> Iterator[Part]:
    """Yield the workspace: bfloat16 numbers that become integers, in float32.

    Since version 0.7, ml_dtypes makes 0 of numbers that no integer of the type holds; numpy makes
    the least int32 or int64 of them, as rules for P(max) of casts require.
    """
    x, y = query.inputs[0], query.outputs[0]
    if x.dtype is bfloat16 and y.dtype.is_integer:
        yield x.shape, np.float32


def _cast(ctx: BindContext) -> list[Launch]:
    steps = ctx.inputs[0], *carve(ctx.workspace, *_parts(ctx.query)), ctx.outputs[0]
    return [partial(np.copyto, y, x, casting="unsafe") for x, y in pairwise(steps)]


def _scaled(ctx: BindContext) -> tuple[Launch, ...]:
    (_, factor), (y,) = ctx.inputs, ctx.outputs
    return (*_cast(ctx), call(np.multiply, y, factor.reshape(()), out=y))


KERNELS: tuple[KernelSpec, ...] = (
    kernel("cast", _cast, parts=_parts),
    kernel("cast_like", _cast, parts=_parts),
    kernel("fused_cast_scale", _scaled),
)
