"""Kernels of unique values; they call `numpy.unique`, which allocates memory in each step."""

from __future__ import annotations

from functools import partial

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.builtin.numpy_kernels.widening import widened
from flow_core.device import Launch
from flow_core.ops.array.unique import number_tokens, unique_in_order
from flow_core.plugins.specs import BindContext, KernelSpec


def _put(target: Array, rows: Array) -> None:
    target[: len(rows)] = rows
    target[len(rows) :].fill(0)


def _unique(ctx: BindContext) -> Launch:
    return partial(_count, *ctx.inputs, *ctx.outputs)


def _count(x: Array, y: Array, idx: Array, count: Array, num_unique: Array) -> None:
    values, places, counts = unique_in_order(x)
    _put(y, values)
    idx[:] = places
    _put(count, counts)
    num_unique[0] = len(values)


def _sum_rows(
    indices: Array, values: Array, y_indices: Array, sums: Array, num_unique: Array
) -> None:
    distinct, places, _ = unique_in_order(indices)
    _put(y_indices, distinct)
    sums.fill(0)
    np.add.at(sums, places, values)
    num_unique[0] = len(distinct)


def _encode(ctx: BindContext) -> Launch:
    table, size, tokens = ctx.inputs
    return partial(number_tokens, table, size, tokens, ctx.outputs[0])


KERNELS: tuple[KernelSpec, ...] = (
    widened("unique_with_counts", _unique),
    widened("indexed_slices_reduce_sum", lambda ctx: partial(_sum_rows, *ctx.inputs, *ctx.outputs)),
    kernel("CategoricalOrdinalEncode", _encode),
)
