"""Kernels of argmax, of slots of experts, and of updates of indexed rows, which sort their indices.

Numbers are mapped to unsigned keys of the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec, TensorType
from flow_core.authoring.update_rules import BY_TYPE, INDEXED, INDEXED_PREFIX
from flow_core.base.dtypes import DType
from flow_cuda.codegen.updates import OWN, ROW_UPDATES
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import Read, Write, call
from flow_cuda.kernels.binding import (
    BufferSpec,
    buffer_bytes,
    c_type,
    collect_launches,
    kernel,
    split_workspace,
)

HEADER = "order.h"
HEADERS = ("update.h", ROW_UPDATES, HEADER)
PART, MOST_PARTS = 4096, 128
DIGITS, DIGIT_BITS = 256, 8
_NUMPY: dict[str, Any] = {"u32": np.uint32, "u64": np.uint64}


@dataclass(frozen=True, slots=True)
class Sorting:
    """A stable radix sort of keys."""

    n: int  # number of keys
    kind: str  # C++ type of the keys
    bits: int  # number of significant low bits

    @classmethod
    def of(cls, type_: TensorType) -> Sorting:
        return cls(type_.size, key_kind(type_.dtype), type_.dtype.itemsize * 8)

    @property
    def parts(self) -> int:
        return max(1, min(-(-self.n // PART), MOST_PARTS))

    @property
    def buffers(self) -> tuple[BufferSpec, ...]:
        """The workspace arrays that `order` takes: keys and positions, twice, and counts."""
        pair: tuple[BufferSpec, ...] = (((self.n,), _NUMPY[self.kind]), ((self.n,), np.int32))
        return (*pair, *pair, ((DIGITS * self.parts,), np.uint32))

    def order(
        self, x: DeviceArray, dtype: DType, buffers: tuple[DeviceArray, ...]
    ) -> tuple[list[Launch], DeviceArray, DeviceArray]:
        """Return launches that sort, and the arrays of sorted keys and their original positions."""
        keys, order, to_keys, to_order, counts = buffers
        values = (Read(x), Write(keys, self.kind), self.n)
        launches: list[Launch] = [
            call("keys_of", HEADER, (c_type(dtype), self.kind), *values, items=self.n)
        ]
        for number in range(-(-self.bits // DIGIT_BITS)):
            given = order if number else None
            launches += self._pass(number, keys, given, to_keys, to_order, counts)
            keys, order, to_keys, to_order = to_keys, to_order, keys, order
        return launches, keys, order

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
        extent = (self.n, self.parts, number * DIGIT_BITS)
        read, types = Read(keys, self.kind), (self.kind,)
        yield call(
            "count_digits", HEADER, types, read, Write(counts, "u32"), *extent,
            items=self.parts, blocks=True,
        )  # fmt: skip
        yield call(
            "place_digits", HEADER, (), Write(counts, "u32"), DIGITS * self.parts,
            items=1, blocks=True,
        )  # fmt: skip
        yield call(
            "move_digits", HEADER, types, read, Read(order, "i32"), Write(to_keys, self.kind),
            to_order, Read(counts, "u32"), *extent, items=self.parts, blocks=True,
        )  # fmt: skip


def key_kind(dtype: DType) -> str:
    """Return the C++ type of the keys for an element type."""
    return "u64" if dtype.itemsize == 8 else "u32"


def _argmax(ctx: BindContext) -> Iterator[Launch]:
    (x,), (out,) = ctx.inputs, ctx.outputs
    type_ = ctx.query.inputs[0]
    types = (c_type(type_), key_kind(type_.dtype))
    if out.size:
        values = (Read(x), out, out.size, type_.shape[-1])
        yield call("argmax", HEADER, types, *values, items=out.size, blocks=True)


def _expert_slots(ctx: BindContext) -> Iterator[Launch]:
    (chosen,), (slots, tokens, load) = ctx.inputs, ctx.outputs
    groups, experts, capacity = tokens.shape
    sizes = (*chosen.shape, experts, capacity)
    if groups:
        values = (Read(chosen), slots, tokens, load, *sizes)
        types = (c_type(ctx.query.inputs[0]),)
        yield call("expert_slots", HEADER, types, *values, items=groups * experts, blocks=True)


def _update_bytes(query: KernelQuery) -> int:
    return buffer_bytes(Sorting.of(query.inputs[1]).buffers)


def _update_rows(ctx: BindContext) -> Iterator[Launch]:
    model, index, values, rate, *states = ctx.inputs
    if not values.size or not model.size:
        return
    type_ = ctx.query.inputs[1]
    how = Sorting.of(type_)
    buffers = tuple(split_workspace(ctx.workspace, how.buffers))
    launches, keys, order = how.order(index, type_.dtype, buffers)
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


KERNELS: tuple[KernelSpec, ...] = (
    kernel("argmax", collect_launches(_argmax)),
    kernel("expert_slots", collect_launches(_expert_slots)),
    *(
        kernel(INDEXED_PREFIX + op, collect_launches(_update_rows), None, _update_bytes)
        for op in INDEXED
    ),
)
