"""Kernels of scalars that change per step: learning rate, loss scale and nonfinite count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes, kernel
from flow_core.device import Launch
from flow_core.ops.training.schedules import corrected_rate, scheduled_rate
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

TILE = 1 << 15
LARGEST = float(np.finfo(np.float32).max)


def number(array: Array) -> Any:
    """View an array that has one element as a 0-d array."""
    return array.reshape(())


def _write(out: Array, compute: Callable[[], float]) -> None:
    out[()] = compute()


def _rate(ctx: BindContext) -> Launch:
    step, out, attrs = number(ctx.inputs[0]), number(ctx.outputs[0]), ctx.attrs
    schedule = tuple(
        attrs[name] for name in ("learning_rate", "learning_rate_decay", "warmup_conf")
    )
    return partial(_write, out, lambda: scheduled_rate(step.item(), *schedule))


def _corrected(ctx: BindContext) -> Launch:
    rate, step, out = number(ctx.inputs[0]), number(ctx.inputs[1]), number(ctx.outputs[0])
    betas = (ctx.attrs["beta1"], ctx.attrs["beta2"])
    return partial(_write, out, lambda: corrected_rate(rate.item(), step.item(), *betas))


def _finite_part(query: KernelQuery) -> tuple[tuple[int, ...], DTypeLike]:
    return (min(query.inputs[0].size, TILE),), np.bool_


def _count_not_finite(ctx: BindContext) -> Launch:
    flat, out = ctx.inputs[0].reshape(-1), ctx.outputs[0]
    (finite,) = carve(ctx.workspace, _finite_part(ctx.query))
    tiles = [flat[i : i + TILE] for i in range(0, flat.size, TILE)]
    pairs = [(tile, finite[: tile.size]) for tile in tiles]
    return partial(_count, pairs, flat.size, out)


def _count(pairs: Sequence[tuple[Any, Any]], size: int, out: Array) -> None:
    good = 0
    for tile, finite in pairs:
        np.isfinite(tile, finite)
        good += int(np.count_nonzero(finite))
    out[()] = size - good


def _loss_scale(ctx: BindContext) -> Launch:
    period, factor = ctx.attrs["increment_period"], ctx.attrs["multiplier"]
    bad, scale, good_steps = map(number, ctx.inputs)
    return partial(_adapt, bad, scale, good_steps, period, factor)


def _adapt(bad: Array, scale: Array, good_steps: Array, period: int, factor: float) -> None:
    if bad.item():
        good_steps[()] = 0
        scale[()] = max(scale.item() / factor, 1.0)
        return
    count = good_steps.item() + 1
    if count >= period:
        scale[()] = min(scale.item() * factor, LARGEST)
        count = 0
    good_steps[()] = count


KERNELS: tuple[KernelSpec, ...] = (
    kernel("learning_rate_schedule", _rate),
    kernel("adam_bias_correction_learning_rate", _corrected),
    kernel(
        "count_not_finite", _count_not_finite, workspace=lambda q: carved_bytes(_finite_part(q))
    ),
    kernel("dynamic_loss_scale_schedule", _loss_scale),
)
