"""Kernels of updates of the rows at given indices; duplicate indices are merged in each step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.ir.update_rules import BY_TYPE, INDEXED, INDEXED_PREFIX, Update, computed
from flow_core.ops.training.indexed_updates import INDICES, MODEL, RATE, STATES, VALUES
from flow_core.plugins.specs import BindContext, KernelSpec


def _bind(row: Update, ctx: BindContext) -> Launch:
    tables = (ctx.inputs[MODEL], *ctx.inputs[STATES:])
    wide = ctx.query.inputs[MODEL].dtype.accumulate.numpy
    return partial(
        _update, row, ctx.attrs, ctx.inputs[INDICES].reshape(-1), ctx.inputs[VALUES],
        ctx.inputs[RATE], tables, wide,
    )  # fmt: skip


def _update(
    row: Update,
    attrs: Mapping[str, Any],
    index: Any,
    values: Any,
    rate: Any,
    tables: Any,
    wide: Any,
) -> None:
    places = index.astype(np.int64) - attrs["first"]
    valid = (places >= 0) & (places < len(tables[0]))
    rows, inverse = np.unique(places[valid], return_inverse=True)
    flat = values.reshape(index.size, *tables[0].shape[1:])
    sums = np.zeros((len(rows), *tables[0].shape[1:]), wide)
    np.add.at(sums, inverse.reshape(-1), flat[valid])
    old = (table[rows].astype(wide) for table in tables)
    arrays = dict(zip(("model", *row.states), old, strict=True), model_diff=sums)
    new = computed(row, **attrs, **arrays, rate=rate.item(), l1=0.0, l2=0.0)
    for table, changed in zip(tables, new, strict=True):
        table[rows] = changed


KERNELS: tuple[KernelSpec, ...] = tuple(
    kernel(INDEXED_PREFIX + type_, partial(_bind, BY_TYPE[type_])) for type_ in INDEXED
)
