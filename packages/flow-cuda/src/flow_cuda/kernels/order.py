"""Kernels that sort: numbers are mapped to unsigned keys, for a rank sort or a radix sort."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_core.base.dtypes import DType
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import Read, Write, call, host_number
from flow_cuda.kernels.binding import (
    BufferSpec,
    buffer_bytes,
    c_type,
    collect_launches,
    kernel,
    split_workspace,
)
from flow_cuda.kernels.draw import key
from flow_cuda.kernels.move import UNSIGNED

HEADER = "order.h"
SHORT = 1024
"""The maximum row length for rank sort, which compares each element with all others."""
PART, MOST_PARTS = 4096, 128
DIGITS, DIGIT_BITS = 256, 8
Ordered = tuple[list[Launch], DeviceArray, DeviceArray]
"""Launches, and the arrays in which these leave the sorted keys and their original positions."""
_NUMPY: dict[str, Any] = {"u32": np.uint32, "u64": np.uint64}


@dataclass(frozen=True, slots=True)
class Sorting:
    """A description of how rows of keys are sorted.

    Attributes:
        rows, n: number of rows, and the length of a row.
        kind: C++ type of the keys.
        bits: number of significant low bits.
    """

    rows: int
    n: int
    kind: str
    bits: int

    @property
    def parts(self) -> int:
        """Number of blocks per long row."""
        return max(1, min(-(-self.n // PART), MOST_PARTS))

    @property
    def passes(self) -> int:
        """Number of radix passes; 0 for rank sort."""
        return 0 if self.n <= SHORT else -(-self.bits // DIGIT_BITS)

    @property
    def buffers(self) -> tuple[BufferSpec, ...]:
        """The workspace arrays that `order` takes: keys, positions and counts."""
        shape, kind = (self.rows * self.n,), _NUMPY[self.kind]
        pair: tuple[BufferSpec, ...] = ((shape, kind), (shape, np.int32))
        if not self.passes:
            return (pair[0], *pair)
        return (*pair, *pair, ((self.rows * DIGITS * self.parts,), np.uint32))

    def order(self, buffers: tuple[DeviceArray, ...]) -> Ordered:
        """Return launches that sort, and the arrays of sorted keys and their original positions.

        Args:
            buffers: the arrays of `buffers`; the first one holds the keys and is overwritten.
        """
        if not self.passes:
            return self._rank_sort(*buffers)
        keys, order, to_keys, to_order, counts = buffers
        launches: list[Launch] = []
        for number in range(self.passes):
            given = order if number else None
            launches += self._pass(number, keys, given, to_keys, to_order, counts)
            keys, order, to_keys, to_order = to_keys, to_order, keys, order
        return launches, keys, order

    def _rank_sort(self, keys: DeviceArray, to_keys: DeviceArray, order: DeviceArray) -> Ordered:
        values = (Read(keys, self.kind), Write(to_keys, self.kind), order, self.rows, self.n)
        launch = call("rank_keys", HEADER, (self.kind,), *values, items=self.rows * self.n)
        return [launch], to_keys, order

    def _pass(
        self,
        number: int,
        keys: DeviceArray,
        order: DeviceArray | None,
        to_keys: DeviceArray,
        to_order: DeviceArray,
        counts: DeviceArray,
    ) -> Iterator[Launch]:
        """Yield one radix pass: count the digits of each part, scan the counts, and scatter."""
        extent = (self.rows, self.n, self.parts, number * DIGIT_BITS)
        blocks = self.rows * self.parts
        read, types = Read(keys, self.kind), (self.kind,)
        yield call(
            "count_digits", HEADER, types, read, Write(counts, "u32"), *extent,
            items=blocks, blocks=True,
        )  # fmt: skip
        yield call(
            "place_digits", HEADER, (), Write(counts, "u32"), self.rows, DIGITS * self.parts,
            items=self.rows, blocks=True,
        )  # fmt: skip
        yield call(
            "move_digits", HEADER, types, read, Read(order, "i32"), Write(to_keys, self.kind),
            to_order, Read(counts, "u32"), *extent, items=blocks, blocks=True,
        )  # fmt: skip


def key_kind(dtype: DType) -> str:
    """Return the C++ type of the keys for an element type."""
    return "u64" if dtype.itemsize == 8 else "u32"


def sorting(rows: int, n: int, dtype: DType) -> Sorting:
    """Return the description of a sort of rows of numbers."""
    bits = dtype.accumulate.itemsize * 8 if dtype.is_floating else dtype.itemsize * 8
    return Sorting(rows, n, key_kind(dtype), bits)


def keys_of(x: DeviceArray, keys: DeviceArray, dtype: DType, descending: bool) -> Launch:
    """Build a launch that maps numbers to keys."""
    kind = key_kind(dtype)
    values = (Read(x), Write(keys, kind), x.size, int(descending))
    return call("keys_of", HEADER, (c_type(dtype), kind), *values, items=x.size)


def _sorting(query: KernelQuery) -> Sorting:
    x = query.inputs[0]
    return sorting(prod(x.shape[:-1]), x.shape[-1], x.dtype)


def _workspace_bytes(query: KernelQuery) -> int:
    return buffer_bytes(_sorting(query).buffers)


def sort_input(ctx: BindContext, how: Sorting, descending: bool) -> Ordered:
    """Return launches that sort the first input, and the arrays of sorted keys and positions."""
    buffers = tuple(split_workspace(ctx.workspace, how.buffers))
    launches, keys, order = how.order(buffers)
    made = keys_of(ctx.inputs[0], buffers[0], ctx.query.inputs[0].dtype, descending)
    return [made, *launches], keys, order


def _arg_sort(ctx: BindContext) -> Iterator[Launch]:
    """Bind argsort, and top_k, which keeps the first columns of the sorted positions."""
    how, (out,) = _sorting(ctx.query), ctx.outputs
    descending = ctx.attrs.get("direction", "DESCENDING") == "DESCENDING"
    if not out.size:
        return
    launches, _, order = sort_input(ctx, how, descending)
    yield from launches
    yield _take_order(order, out, how)


def _take_order(order: DeviceArray, out: DeviceArray, how: Sorting) -> Launch:
    values = (Read(order), out, how.rows, how.n, out.size // how.rows)
    return call("take_order", HEADER, (), *values, items=out.size)


def _sort(ctx: BindContext) -> Iterator[Launch]:
    (x,), (y,), how = ctx.inputs, ctx.outputs, _sorting(ctx.query)
    if not y.size:
        return
    launches, _, order = sort_input(ctx, how, ctx.attrs["direction"] == "DESCENDING")
    yield from launches
    unit = UNSIGNED[x.itemsize]
    values = (Read(x, unit), Read(order), Write(y, unit), how.rows, how.n)
    yield call("take_sorted", HEADER, (unit,), *values, items=y.size)


def _argmax(ctx: BindContext) -> Iterator[Launch]:
    (x,), (out,) = ctx.inputs, ctx.outputs
    type_ = ctx.query.inputs[0]
    types = (c_type(type_), key_kind(type_.dtype))
    if out.size:
        values = (Read(x), out, out.size, type_.shape[-1])
        yield call("argmax", HEADER, types, *values, items=out.size, blocks=True)


def _in_top_k(ctx: BindContext) -> Iterator[Launch]:
    targets, predictions = ctx.query.inputs
    rows, n = predictions.shape
    if rows:
        types = (c_type(predictions), c_type(targets))
        values = (*map(Read, ctx.inputs), ctx.outputs[0], rows, n, ctx.attrs["k"])
        yield call("in_top_k", HEADER, types, *values, items=rows, blocks=True)


# --- permutations: the sort order of random keys


def _permutation_sorting(query: KernelQuery) -> tuple[Sorting, int]:
    """Return the description of the sort, and how many of the keys' 48 random bits are dropped."""
    count = query.outputs[0].size
    cut = max(0, 48 - (63 - max(1, (count - 1).bit_length())))
    return Sorting(1, count, "u64", 48 - cut), cut


def _permutation(ctx: BindContext) -> Iterator[Launch]:
    (out,), (how, cut) = ctx.outputs, _permutation_sorting(ctx.query)
    if not out.size:
        return
    buffers = tuple(split_workspace(ctx.workspace, how.buffers))
    launches, _, order = how.order(buffers)
    step = host_number(out.hardware, ctx.step)
    seed: Any = ctx.attrs["seed"] if ctx.attrs["has_seed"] else ctx.seed
    values = (Read(step.device), Write(buffers[0], "u64"), how.n, key(seed), cut)
    yield call("permutation_keys", "random.h", (), *values, items=how.n, numbers=(step,))
    yield from launches
    yield _take_order(order, out, how)


KERNELS: tuple[KernelSpec, ...] = (
    *(
        kernel(op, collect_launches(_arg_sort), None, _workspace_bytes)
        for op in ("arg_sort", "top_k")
    ),
    kernel("sort", collect_launches(_sort), None, _workspace_bytes),
    kernel("argmax", collect_launches(_argmax)),
    kernel("in_top_k", collect_launches(_in_top_k)),
    kernel(
        "generate_random_batch_permutation_indices", collect_launches(_permutation), None,
        lambda query: buffer_bytes(_permutation_sorting(query)[0].buffers),
    ),
)  # fmt: skip
