"""Kernels of optimizer updates, and of scalars that change in each step.

Updates read the learning rate, the scale factor and the skip flag from device memory, so that a
captured step remains valid when these change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelSpec
from flow_core.authoring.update_rules import BY_TYPE, COMMON, DIFF, MODEL, RATE, optional_inputs
from flow_core.base.dtypes import float64
from flow_cuda.codegen.updates import UPDATES, phase_name, phases_of
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import Read, Struct, call, launch
from flow_cuda.kernels.binding import c_type, collect_launches, kernel
from flow_cuda.kernels.move import copy_array
from flow_cuda.kernels.reduce import part_count
from flow_cuda.kernels.schedule import rate_kernel

HEADER = "update.h"
HEADERS = (HEADER, UPDATES)

WIDE = float64
"""The type of sums of squares: those of float32 numbers above 1.8e19 overflow float32."""


def _update(ctx: BindContext) -> Iterator[Launch]:
    """Yield the launches of the phases of an update, and of the states of one element."""
    row, types, attrs = BY_TYPE[ctx.query.op], ctx.query.inputs, ctx.attrs
    size, scale, skip = types[MODEL].size, *optional_inputs(row, types)
    arrays = {"model": ctx.inputs[MODEL], "model_diff": ctx.inputs[DIFF]}
    names = (*row.states, *row.numbers)
    arrays |= dict(zip(names, ctx.inputs[row.first_state :], strict=False))
    sums, parts = (None, 1) if row.local else _sums(ctx.inputs[MODEL], size)
    rest = [
        *map(Read, ctx.inputs[RATE : row.first_state]),
        Read(None, "float") if scale is None else Read(ctx.inputs[scale]),
        Read(None if skip is None else ctx.inputs[skip], "i64"),
        *((size,) if sums is None else (sums, size, parts)),
        Struct("Terms", np.array([float(attrs[name]) for name in COMMON])),
        *row.values(attrs),
    ]
    phases = [
        (set(p.stores), parts if p.norms else size, bool(p.norms)) for p in phases_of(row.type)
    ]
    if row.numbers:
        phases.append((set(row.numbers), 1, False))
    for k, (stores, items, blocks) in enumerate(phases):
        given = (x if name in stores else Read(x) for name, x in arrays.items())
        yield call(
            phase_name(row, k), HEADERS, (), *given, *rest,
            items=items, blocks=blocks, mergeable=True,
        )  # fmt: skip


def _sums(model: DeviceArray, size: int) -> tuple[DeviceArray, int]:
    """Return memory for two partial sums of each part, and the number of parts.

    The memory is not part of the plan's workspace. Updates share that workspace, so that the
    updates of several variables could not be merged into one launch.
    """
    parts, hardware = part_count(size), model.hardware
    memory = hardware.allocate(2 * parts * WIDE.itemsize)
    return DeviceArray(memory, memory.address, (2 * parts,), WIDE.numpy, hardware), parts


def _corrected_rate(ctx: BindContext) -> Launch:
    betas = (ctx.attrs["beta1"], ctx.attrs["beta2"])
    values = (*map(Read, ctx.inputs), ctx.outputs[0], *betas)
    return call("correct_rate", HEADER, (c_type(ctx.query.inputs[0]),), *values, items=1)


def _adapt_scale(ctx: BindContext) -> Launch:
    bad, scale, good = ctx.inputs
    period: Any = ctx.attrs["increment_period"]
    multiplier = float(ctx.attrs["multiplier"])
    return call("adapt_scale", HEADER, (), Read(bad), scale, good, period, multiplier, items=1)


def _clip_factor(ctx: BindContext) -> Launch:
    types = (c_type(ctx.query.inputs[0]),)
    most = float(ctx.attrs["clip_norm"])
    return call("clip_factor", HEADER, types, Read(ctx.inputs[0]), ctx.outputs[0], most, items=1)


def _rate(ctx: BindContext) -> Launch:
    kernel, scalars = rate_kernel(ctx.attrs)
    return launch(kernel, 1, ctx.inputs[0], ctx.outputs[0], *scalars)


def _assign(ctx: BindContext) -> tuple[Launch, ...]:
    ref, value = ctx.inputs
    return tuple(copy_array(value, ref))


KERNELS: tuple[KernelSpec, ...] = (
    *(kernel(op, collect_launches(_update)) for op in BY_TYPE),
    kernel("advance_step", lambda ctx: call("advance", HEADER, (), ctx.inputs[0], items=1)),
    kernel("adam_bias_correction_learning_rate", _corrected_rate),
    kernel("dynamic_loss_scale_schedule", _adapt_scale),
    kernel("global_norm_clip_factor", _clip_factor),
    kernel("learning_rate_schedule", _rate),
    kernel("assign", _assign),
)
