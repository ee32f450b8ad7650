"""Kernels of updates of the rows at given indices; duplicate indices are merged in each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.ir.update_rules import INDEXED, INDEXED_PREFIX
from flow_core.ops.training.indexed_updates import INDICES, MODEL, RATE, STATES, VALUES
from flow_core.plugins.specs import BindContext, KernelSpec

Attrs = Mapping[str, Any]
Rule = Callable[[Attrs, float, Any, Any, tuple[Any, ...]], tuple[Any, ...]]
"""A function of attributes and learning rate, and of the weights, gradients and states of rows.

It returns the rows' new weights, then their new states.
"""


def _sgd(attrs: Attrs, rate: float, w: Array, r: Array, _: tuple[Array, ...]) -> tuple[Array, ...]:
    return (w - rate * (r + attrs["weight_decay"] * w),)


def _momentum(
    attrs: Attrs, rate: float, w: Array, r: Array, states: tuple[Array, ...]
) -> tuple[Array, ...]:
    momentum = attrs["beta"] * states[0] - rate * r
    return w + momentum - rate * attrs["weight_decay"] * w, momentum


def _adam(
    attrs: Attrs, rate: float, w: Array, r: Array, states: tuple[Array, ...]
) -> tuple[Array, ...]:
    beta1, beta2 = attrs["beta1"], attrs["beta2"]
    m = beta1 * states[0] + (1 - beta1) * r
    v = beta2 * states[1] + (1 - beta2) * r * r
    change = m / (np.sqrt(v) + attrs["epsilon"]) + attrs["weight_decay"] * w
    return w - rate * change, m, v


RULES: Mapping[str, Rule] = dict(zip(INDEXED, (_sgd, _momentum, _adam), strict=True))


def _bind(rule: Rule, ctx: BindContext) -> Launch:
    tables = (ctx.inputs[MODEL], *ctx.inputs[STATES:])
    wide = ctx.query.inputs[MODEL].dtype.accumulate.numpy
    return partial(
        _update, rule, ctx.attrs, ctx.inputs[INDICES].reshape(-1), ctx.inputs[VALUES],
        ctx.inputs[RATE], tables, wide,
    )  # fmt: skip


def _update(
    rule: Rule, attrs: Attrs, index: Any, values: Any, rate: Any, tables: Any, wide: Any
) -> None:
    places = index.astype(np.int64) - attrs["first"]
    valid = (places >= 0) & (places < len(tables[0]))
    rows, inverse = np.unique(places[valid], return_inverse=True)
    flat = values.reshape(index.size, *tables[0].shape[1:])
    sums = np.zeros((len(rows), *tables[0].shape[1:]), wide)
    np.add.at(sums, inverse.reshape(-1), flat[valid])
    sums *= attrs["scale"]
    model, *states = (table[rows].astype(wide) for table in tables)
    new = rule(attrs, rate.item(), model, sums, tuple(states))
    for table, changed in zip(tables, new, strict=True):
        table[rows] = changed


KERNELS: tuple[KernelSpec, ...] = tuple(
    kernel(INDEXED_PREFIX + type_, partial(_bind, rule)) for type_, rule in RULES.items()
)
