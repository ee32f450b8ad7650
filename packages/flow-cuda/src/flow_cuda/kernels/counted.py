"""Kernels of ops with outputs whose length is known only at run time, and of row updates."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec, TensorType
from flow_core.authoring.update_rules import BY_TYPE, INDEXED, INDEXED_PREFIX
from flow_cuda.codegen.elementwise import AXES
from flow_cuda.codegen.updates import OWN, ROW_UPDATES
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import Read, Struct, Write, call, space
from flow_cuda.kernels.binding import (
    BufferSpec,
    buffer_bytes,
    c_type,
    collect_launches,
    kernel,
    split_workspace,
)
from flow_cuda.kernels.move import UNSIGNED, fill_array
from flow_cuda.kernels.order import Sorting, keys_of, sorting
from flow_cuda.kernels.reduce import part_count

HEADERS = ("order.h", "update.h", ROW_UPDATES, "counted.h")


def _place_buffers(size: int) -> tuple[BufferSpec, ...]:
    """Return the workspace arrays of `_places`: counts of parts, and positions of elements."""
    return ((part_count(size),), np.int32), ((size,), np.int32)


def _places(
    x: DeviceArray,
    kind: str,
    buffers: tuple[DeviceArray, DeviceArray],
    total: DeviceArray,
    index: str,
) -> Iterator[Launch]:
    """Yield launches that count the nonzero elements: before each element, and in total."""
    extent, (sums, places) = (x.size, part_count(x.size)), buffers
    yield call(
        "count_parts", HEADERS, (kind,), Read(x), sums, *extent, items=extent[1], blocks=True
    )
    values = (Read(x), Read(sums), places, total, *extent)
    yield call("find_places", HEADERS, (kind, index), *values, items=extent[1], blocks=True)


def _argwhere(ctx: BindContext) -> Iterator[Launch]:
    (x,), (rows, total) = ctx.inputs, ctx.outputs
    if not x.size:
        yield from fill_array(total, 0)
        return
    sums, places = split_workspace(ctx.workspace, _place_buffers(x.size))
    kind, index = c_type(ctx.query.inputs[0]), c_type(ctx.query.outputs[0])
    yield from fill_array(rows, 0)
    yield from _places(x, kind, (sums, places), total, index)
    values = (Read(x), Read(places), rows, Struct("Space", space(x.shape)))
    yield call("argwhere", HEADERS, (kind, index), *values, items=x.size)


def _rank_fits(query: KernelQuery) -> bool:
    return len(query.inputs[0].shape) <= AXES


def _resize(ctx: BindContext) -> Iterator[Launch]:
    (x, size), (y,), axis = ctx.inputs, ctx.outputs, int(ctx.attrs["axis"])
    unit = UNSIGNED[x.itemsize]
    extent = (prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]), ctx.attrs["first"])
    if y.size:
        values = (Read(x, unit), Read(size), Write(y, unit), *extent)
        types = (unit, c_type(ctx.query.inputs[1]))
        yield call("keep_first", HEADERS, types, *values, items=y.size)


# --- unique values


class Distinct:
    """The distinct values of an array, numbered in the order of their first appearance.

    Args:
        x: the input.
        type_: the type of the input.
        workspace: memory for `buffers`.
    """

    def __init__(self, x: DeviceArray, type_: TensorType, workspace: DeviceArray) -> None:
        self.x, self.type = x, type_
        self.how = _sorted(type_)
        *buffers, self.marks, self.sums, self.places = split_workspace(
            workspace, _distinct_buffers(type_)
        )
        self.sort, self.keys, self.order = self.how.order(tuple(buffers))
        self.sort.insert(0, keys_of(x, buffers[0], type_.dtype, False))

    @property
    def runs(self) -> tuple[Read, Read]:
        """The sorted keys and their order, as kernel arguments."""
        return Read(self.keys, self.how.kind), Read(self.order)

    def find(self, total: DeviceArray, index: str) -> Iterator[Launch]:
        """Yield launches that number and count the distinct values."""
        n, kind = self.how.n, self.how.kind
        yield from self.sort
        yield call("mark_first", HEADERS, (kind,), *self.runs, self.marks, n, items=n)
        yield from _places(self.marks, "i8", (self.sums, self.places), total, index)

    def list_values(
        self, y: DeviceArray, index: DeviceArray | None, count: DeviceArray | None, kind: str
    ) -> Launch:
        """Return a launch that writes the values, each element's number, and each value's count."""
        unit, n = UNSIGNED[self.x.itemsize], self.how.n
        lists = (Write(y, unit), Write(index, kind), Write(count, kind))
        values = (Read(self.x, unit), *self.runs, Read(self.places), *lists, n)
        return call("list_distinct", HEADERS, (unit, self.how.kind, kind), *values, items=n)


def _sorted(type_: TensorType) -> Sorting:
    return sorting(1, type_.size, type_.dtype)


def _distinct_buffers(type_: TensorType) -> tuple[BufferSpec, ...]:
    size = type_.size
    return (*_sorted(type_).buffers, ((size,), np.int8), *_place_buffers(size))


def _unique(ctx: BindContext) -> Iterator[Launch]:
    (x,), (y, index, count, total) = ctx.inputs, ctx.outputs
    if not x.size:
        yield from fill_array(total, 0)
        return
    kind, found = c_type(ctx.query.outputs[1]), Distinct(x, ctx.query.inputs[0], ctx.workspace)
    yield from fill_array(y, 0)
    yield from fill_array(count, 0)
    yield from found.find(total, kind)
    yield found.list_values(y, index, count, kind)


def _sum_rows(ctx: BindContext) -> Iterator[Launch]:
    (index, values), (y, sums, total) = ctx.inputs, ctx.outputs
    yield from fill_array(y, 0)
    yield from fill_array(sums, 0)
    if not index.size:
        yield from fill_array(total, 0)
        return
    found = Distinct(index, ctx.query.inputs[0], ctx.workspace)
    yield from found.find(total, c_type(ctx.query.outputs[2]))
    yield found.list_values(y, None, None, c_type(ctx.query.inputs[0]))
    if sums.size:
        types = (c_type(ctx.query.inputs[1]), found.how.kind)
        given = (Read(values), *found.runs, Read(found.places), sums, found.how.n)
        inner = values.size // found.how.n
        yield call("sum_equal", HEADERS, types, *given, inner, items=sums.size)


# --- row updates


def _indices(query: KernelQuery) -> tuple[Sorting, tuple[BufferSpec, ...]]:
    how = _sorted(query.inputs[1])
    return how, how.buffers


def _update_rows(ctx: BindContext) -> Iterator[Launch]:
    model, index, values, rate, *states = ctx.inputs
    if not values.size or not model.size:
        return
    how, buffers = _indices(ctx.query)
    arrays = tuple(split_workspace(ctx.workspace, buffers))
    launches, keys, order = how.order(arrays)
    yield keys_of(index, arrays[0], ctx.query.inputs[1].dtype, False)
    yield from launches
    row = BY_TYPE[ctx.query.op.removeprefix(INDEXED_PREFIX)]
    w, i, g, _, *kinds = map(c_type, ctx.query.inputs)
    state = kinds[0] if kinds else w
    kept = [Write(s, state) for s in (*states, None, None)[:2]]
    numbers = [float(ctx.attrs[name]) for name in ("scale", "weight_decay")]
    own = row.values(ctx.attrs)
    yield call(
        "update_rows", HEADERS, (f"{row.type}_row", w, g, state, i, how.kind),
        model, Read(index), Read(values), Read(rate), *kept, Read(keys, how.kind), Read(order),
        how.n, values.size // how.n, model.shape[0], ctx.attrs["first"],
        *numbers, *own, *(0.0,) * (OWN - len(own)), items=values.size,
    )  # fmt: skip


# --- token encoding


def _encode(ctx: BindContext) -> Iterator[Launch]:
    (table, size, tokens), (y,) = ctx.inputs, ctx.outputs
    types, extent = (c_type(ctx.query.inputs[2]),), (tokens.size, table.size // 2)
    if y.size:
        values = (Read(table), Read(tokens), y, *extent)
        yield call("known_tokens", HEADERS, types, *values, items=y.size)
        yield call("new_tokens", HEADERS, types, table, size, Read(tokens), y, *extent, items=1)


def _distinct(query: KernelQuery) -> int:
    return buffer_bytes(_distinct_buffers(query.inputs[0]))


KERNELS: tuple[KernelSpec, ...] = (
    kernel(
        "argwhere", collect_launches(_argwhere), _rank_fits,
        lambda query: buffer_bytes(_place_buffers(query.inputs[0].size)),
    ),
    kernel("sync_dynamic_resize", collect_launches(_resize)),
    kernel("unique_with_counts", collect_launches(_unique), None, _distinct),
    kernel("indexed_slices_reduce_sum", collect_launches(_sum_rows), None, _distinct),
    *(
        kernel(
            INDEXED_PREFIX + op, collect_launches(_update_rows), None,
            lambda query: buffer_bytes(_indices(query)[1]),
        )
        for op in INDEXED
    ),
    kernel("CategoricalOrdinalEncode", collect_launches(_encode)),
)  # fmt: skip
