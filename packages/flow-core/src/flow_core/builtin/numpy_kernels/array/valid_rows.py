"""Kernels of results whose size is known only at run time."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.array.select import same_memory
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.ops.array.valid_rows import valid_rows_of_part
from flow_core.plugins.specs import BindContext, KernelSpec


def _put_places(x: Array, rows: Array, number: Array) -> None:
    places = np.nonzero(x)
    count = len(places[0])
    for column, place in enumerate(places):
        rows[:count, column] = place
    rows[count:].fill(0)
    number[0] = count


def _resize(ctx: BindContext) -> Launch:
    (x, size), (y,), axis = ctx.inputs, ctx.outputs, ctx.attrs["axis"]
    lead = (slice(None),) * int(axis)
    return partial(_keep, x, size.reshape(-1), y, lead, int(ctx.attrs["first"]), same_memory(x, y))


def _keep(
    x: Array, size: Any, y: Array, lead: tuple[slice, ...], first: int, inplace: bool
) -> None:
    kept = valid_rows_of_part(first, y.shape[len(lead)], size[0])
    if not inplace:
        where = (*lead, slice(kept))
        y[where] = x[where]
    y[(*lead, slice(kept, None))] = 0


KERNELS: tuple[KernelSpec, ...] = (
    kernel("argwhere", lambda ctx: partial(_put_places, *ctx.inputs, *ctx.outputs)),
    kernel("sync_dynamic_resize", _resize),
)
