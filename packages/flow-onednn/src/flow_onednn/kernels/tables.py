"""The kernels that call `native/tables.c`: lookups in, and sparse updates of, embedding tables."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_core.authoring.update_rules import BY_TYPE, INDEXED, INDEXED_PREFIX
from flow_core.base.alignment import aligned
from flow_onednn import threads
from flow_onednn.kernels.loops import (
    FLOAT_BYTES,
    loop_kernel,
    null,
    pointer,
    pointers,
    thread_parts,
    update_numbers,
)
from flow_onednn.native.calls import call
from flow_onednn.primitives import address


def _indexed(query: KernelQuery) -> bool:
    """Return whether float32 rows along axis 0 are indexed by int32 or int64."""
    floats = (*query.inputs[:1], *query.inputs[2:], *query.outputs)
    return (
        query.attrs["axis"] == 0
        and query.inputs[1].dtype.name in ("int32", "int64")
        and query.inputs[1].size > 0
        and all(t.dtype.name == "float32" and t.size for t in floats)
    )


def _index(ctx: BindContext, k: int = 1) -> tuple[Any, int, int, int]:
    """Return the pointer to the indices, their number and width, and the index of the first row."""
    index: Any = ctx.inputs[k]
    first: Any = ctx.attrs["first"]
    return pointer(index, "void *"), index.size, index.itemsize, first


def _gather(ctx: BindContext) -> Launch:
    table, (out,) = ctx.inputs[0], ctx.outputs
    index, count, width, first = _index(ctx)
    rows, columns = table.shape[0], prod(table.shape[1:])
    sizes = count, rows, columns, width, first
    return call("gather", pointer(table), index, pointer(out), *sizes)


def _segment_sum(ctx: BindContext) -> Launch:
    data, (out,) = ctx.inputs[0], ctx.outputs
    index, count, width, first = _index(ctx)
    rows, columns = out.shape[0], prod(out.shape[1:])
    return call(
        "segment_sum",
        pointer(data), index, pointer(out), count, rows, columns, width, first, thread_parts(rows),
    )  # fmt: skip


def _add_to_rows(ctx: BindContext) -> list[Launch]:
    base, data, (out,) = ctx.inputs[0], ctx.inputs[2], ctx.outputs
    index, count, width, first = _index(ctx)
    rows, columns = out.shape[0], prod(out.shape[1:])
    add = call(
        "add_to_rows",
        pointer(out), pointer(data), index, count, rows, columns, width, first, thread_parts(rows),
    )  # fmt: skip
    in_place = address(base) == address(out)
    return [add] if in_place else [partial(np.copyto, out, base), add]


def _sparse_sgd(ctx: BindContext) -> Launch:
    model, _, data, rate, *factor = ctx.inputs
    where, count, width, first = _index(ctx)
    rows, columns = model.shape[0], prod(model.shape[1:])
    return call(
        "sparse_sgd",
        pointer(model), pointer(data), where, pointer(rate),
        pointer(factor[0]) if factor else null(),
        count, rows, columns, width, first, thread_parts(rows), ctx.attrs["scale"],
    )  # fmt: skip


ADAM_PARTS = 4
"""Number of parts per thread, which balances the load if frequent rows are adjacent."""


def _sparse_adam_bytes(query: KernelQuery) -> int:
    """Return the bytes for one slot number per table row and for the summed gradient rows."""
    slots = aligned(query.inputs[0].shape[0] * FLOAT_BYTES)
    return slots + aligned(query.inputs[2].nbytes)


def _sparse_adam(ctx: BindContext) -> Launch:
    model, _, data, rate, m, v, *factor = ctx.inputs
    where, count, width, first = _index(ctx)
    rows, columns = model.shape[0], prod(model.shape[1:])
    sums = ctx.workspace[aligned(rows * FLOAT_BYTES) :]
    return call(
        "sparse_adam",
        pointer(model), pointer(data), where, pointer(m), pointer(v), pointer(rate),
        pointer(factor[0]) if factor else null(),
        pointer(ctx.workspace, "int32_t *"), pointer(sums),
        count, rows, columns, width, first, min(rows, ADAM_PARTS * threads.count()),
        update_numbers(BY_TYPE["adam_update"], ctx.attrs),
    )  # fmt: skip


# --- updates of the looked-up rows only


def _by_rows(query: KernelQuery) -> bool:
    """Return whether all floats are float32 and the indices int32 or int64."""
    floats = (*query.inputs[:1], *query.inputs[2:])
    return (
        query.inputs[1].dtype.name in ("int32", "int64")
        and query.inputs[1].size > 0
        and all(t.dtype.name == "float32" and t.size for t in floats)
    )


def _capacity(count: int) -> int:
    """Return the capacity of a hash table of ``count`` entries: a power of 2, at most half full."""
    return max(64, 1 << (2 * count - 1).bit_length())


def _lookups(query: KernelQuery) -> tuple[int, int, int]:
    count = query.inputs[1].size
    return count, _capacity(count), thread_parts(count)


def _by_rows_bytes(query: KernelQuery) -> int:
    """Return the bytes for one link per lookup and one hash table per part."""
    count, capacity, parts = _lookups(query)
    return aligned((count + parts * capacity) * FLOAT_BYTES)


def _update_rows(ctx: BindContext) -> Launch:
    model, _, values, rate, *states = ctx.inputs
    where, count, width, first = _index(ctx)
    rows, columns = model.shape[0], prod(model.shape[1:])
    _, capacity, parts = _lookups(ctx.query)
    rule = ctx.query.op.removeprefix(INDEXED_PREFIX)
    return call(
        "indexed_update",
        INDEXED.index(rule), pointers(model, *states), pointer(values), where, pointer(rate),
        pointer(ctx.workspace, "int32_t *"), capacity, count, rows, columns, width, first, parts,
        update_numbers(BY_TYPE[rule], ctx.attrs),
    )  # fmt: skip


KERNELS: tuple[KernelSpec, ...] = (
    loop_kernel("gather", _gather, _indexed),
    loop_kernel("unsorted_segment_sum", _segment_sum, _indexed),
    loop_kernel("onednn_add_to_rows", _add_to_rows, _indexed),
    loop_kernel("onednn_sparse_sgd", _sparse_sgd, _indexed),
    loop_kernel("onednn_sparse_adam", _sparse_adam, _indexed, _sparse_adam_bytes),
    *(loop_kernel(INDEXED_PREFIX + op, _update_rows, _by_rows, _by_rows_bytes) for op in INDEXED),
)
