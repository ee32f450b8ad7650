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
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import Read, Struct, Write, call, launch_threads
from flow_cuda.kernels.binding import c_type, collect_launches, kernel
from flow_cuda.kernels.move import copy_array
from flow_cuda.kernels.reduce import part_count
from flow_cuda.kernels.schedule import rate_kernel

HEADER = "update.h"

WIDE = float64
"""The type of sums of squares: those of float32 numbers above 1.8e19 overflow float32."""

FUNCTIONS = {
    "sgd_update": "sgd",
    "momentum_update": "momentum",
    "adam_update": "adam",
    "rmsprop_update": "rmsprop",
    "centered_rmsprop_update": "rmsprop",
    "adagrad_update": "adagrad",
    "lion_update": "lion",
}
"""The kernel function of each update that consists of a single kernel."""


class UpdateArguments:
    """The arguments of an update op."""

    def __init__(self, ctx: BindContext) -> None:
        self.row = BY_TYPE[ctx.query.op]
        types, attrs = ctx.query.inputs, ctx.attrs
        self.model, self.diff, self.rate = ctx.inputs[:3]
        self.size = types[MODEL].size
        scale, skip = optional_inputs(self.row, types)
        factor_type = "float" if scale is None else c_type(types[scale])
        self.factor = Read(None if scale is None else ctx.inputs[scale], factor_type)
        self.skip = Read(None if skip is None else ctx.inputs[skip], "i64")
        common = [float(attrs[k]) for k in COMMON]
        self.terms = Struct("Terms", np.array(common, np.float64))
        self.extra = self.row.values(attrs)
        self.kinds = (c_type(types[MODEL]), c_type(types[DIFF]))
        self.factor_type = factor_type


def _simple(ctx: BindContext) -> Launch:
    """Bind an update (model, diff, states, rate, factor, skip, size, terms, numbers)."""
    b = UpdateArguments(ctx)
    function, count = FUNCTIONS[b.row.type], len(b.row.states)
    first = b.row.first_state
    states = list(ctx.inputs[first : first + count])
    kinds = [c_type(t) for t in ctx.query.inputs[first : first + min(1, count)]]
    if function == "rmsprop" and count == 1:
        states.append(Write(None, kinds[0]))
    values = (b.model, Read(b.diff), *states, Read(b.rate), b.factor, b.skip, b.size)
    types = (*b.kinds, *kinds, b.factor_type)
    return call(function, HEADER, types, *values, b.terms, *b.extra, items=b.size, mergeable=True)


def _sums(b: UpdateArguments) -> tuple[DeviceArray, int]:
    """Return memory for two partial sums of each part, and the number of parts.

    The memory is not part of the plan's workspace. Updates share that workspace, so that the
    updates of several variables could not be merged into one launch.
    """
    parts, hardware = part_count(b.size), b.model.hardware
    memory = hardware.allocate(2 * parts * WIDE.itemsize)
    return DeviceArray(memory, memory.address, (2 * parts,), WIDE.numpy, hardware), parts


def _lars(ctx: BindContext) -> Iterator[Launch]:
    b = UpdateArguments(ctx)
    sums, parts = _sums(b)
    step, momentum = ctx.inputs[RATE + 1 : RATE + 3]
    wide = c_type(WIDE)
    yield call(
        "norms", HEADER, (*b.kinds, b.factor_type, wide),
        Read(b.model), Read(b.diff), b.factor, sums, b.size, parts, b.terms,
        items=parts, blocks=True, mergeable=True,
    )  # fmt: skip
    kinds = (*b.kinds, c_type(ctx.query.inputs[RATE + 2]), b.factor_type, wide)
    yield call(
        "lars", HEADER, kinds,
        b.model, Read(b.diff), momentum, Read(b.rate), Read(step), b.factor, b.skip, Read(sums),
        b.size, parts, b.terms, *b.extra, items=b.size, mergeable=True,
    )  # fmt: skip


def _lamb(ctx: BindContext) -> Iterator[Launch]:
    b = UpdateArguments(ctx)
    sums, parts = _sums(b)
    m, v, *powers = ctx.inputs[RATE + 1 : RATE + 5]
    state, wide, known = c_type(ctx.query.inputs[RATE + 1]), c_type(WIDE), map(Read, powers)
    power1, power2 = known
    yield call(
        "lamb_norms", HEADER, (*b.kinds, state, b.factor_type, wide),
        Read(b.model), Read(b.diff), m, v, power1, power2, b.factor, b.skip, sums, b.size, parts,
        b.terms, *b.extra, items=parts, blocks=True, mergeable=True,
    )  # fmt: skip
    yield call(
        "lamb_step", HEADER, (b.kinds[0], state, wide),
        b.model, Read(m), Read(v), power1, power2, Read(sums), Read(b.rate), b.skip, b.size, parts,
        float(ctx.attrs["weight_decay"]), *b.extra, items=b.size, mergeable=True,
    )  # fmt: skip
    yield call(
        "grow_powers", HEADER, (c_type(ctx.query.inputs[RATE + 3]),), *powers, b.skip,
        *b.extra[:2], items=1, mergeable=True,
    )  # fmt: skip


def _advance(ctx: BindContext) -> Launch:
    return call("advance", HEADER, (), ctx.inputs[0], items=1)


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
    return launch_threads(kernel, 1, ctx.inputs[0], ctx.outputs[0], *scalars)


def _assign(ctx: BindContext) -> tuple[Launch, ...]:
    ref, value = ctx.inputs
    return tuple(copy_array(value, ref))


KERNELS: tuple[KernelSpec, ...] = (
    *(kernel(op, _simple) for op in FUNCTIONS),
    kernel("lars_update", collect_launches(_lars)),
    kernel("lamb_update", collect_launches(_lamb)),
    kernel("advance_step", _advance),
    kernel("adam_bias_correction_learning_rate", _corrected_rate),
    kernel("dynamic_loss_scale_schedule", _adapt_scale),
    kernel("global_norm_clip_factor", _clip_factor),
    kernel("learning_rate_schedule", _rate),
    kernel("assign", _assign),
)
