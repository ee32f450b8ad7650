"""Kernels of stale values of variables."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes, kernel
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec


def _proxy(ctx: BindContext) -> Launch:
    (var,), (value,) = ctx.inputs, ctx.outputs
    return partial(np.copyto, value, var)


def _one(query: KernelQuery) -> tuple[tuple[int, ...], Any]:
    return query.inputs[0].shape, query.inputs[0].dtype.numpy


def _rotate(ctx: BindContext) -> Launch:
    var, ring, count, value = ctx.inputs
    (spare,) = carve(ctx.workspace, _one(ctx.query))
    return partial(_exchange, var, ring, count, value, spare)


def _exchange(var: Any, ring: Any, count: Any, value: Any, spare: Any) -> None:
    if count[0] == 0:
        ring[...] = value
    place = int(count[0]) % len(ring)
    spare[...] = ring[place]
    ring[place] = var
    var[...] = spare
    count[0] += 1


KERNELS: tuple[KernelSpec, ...] = (
    kernel("ssp_variable_proxy", _proxy),
    kernel("ssp_rotate", _rotate, workspace=lambda query: carved_bytes(_one(query))),
)
