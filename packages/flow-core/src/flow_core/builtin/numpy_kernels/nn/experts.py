"""Kernel that assigns tokens to the slots of experts, by sorting keys of expert and position."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import carve, kernel
from flow_core.device import Launch
from flow_core.plugins.batchable import rowwise
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec


def _parts(query: KernelQuery) -> tuple[tuple[tuple[int, ...], DTypeLike], ...]:
    """Return the workspace parts: four numbers and two flags for each choice, and the slots and the
    loads with one more element, for choices without a slot, and the first position of each expert.
    """
    groups, choices, tokens = query.inputs[0].shape
    experts, capacity = query.attrs["experts"], query.attrs["capacity"]
    each = (groups, choices * tokens)
    return (
        *[(each, np.int64)] * 4,
        *[(each, np.bool_)] * 2,
        ((groups, experts * capacity + 1), np.int64),
        ((groups, choices, experts + 1), np.int64),
        ((groups, experts + 1), np.int64),
    )


def _expert_slots(ctx: BindContext) -> Sequence[Launch]:
    (chosen,), (slots, tokens, load) = ctx.inputs, ctx.outputs
    parts = carve(ctx.workspace, *_parts(ctx.query))
    keys, order, place, spare, flags, others, held, counts, starts = parts
    experts, capacity = ctx.attrs["experts"], ctx.attrs["capacity"]
    groups, _, count = chosen.shape
    none, position = experts * capacity, np.arange(keys.shape[1])
    return (
        partial(np.copyto, keys, chosen.reshape(keys.shape)),
        call(np.greater_equal, keys.view(np.uint64), np.array(experts, np.uint64), out=flags),
        partial(np.copyto, keys, np.array(experts), where=flags),
        *_count(keys.reshape(chosen.shape), spare.reshape(chosen.shape), counts, load),
        call(np.left_shift, keys, np.array(32), out=keys),
        call(np.bitwise_or, keys, position, out=keys),
        partial(keys.sort, axis=-1),
        call(np.bitwise_and, keys, np.array(0xFFFFFFFF), out=order),
        call(np.right_shift, keys, np.array(32), out=keys),
        *_places(keys, position, counts, starts, place, spare),
        call(np.greater_equal, place, np.array(capacity), out=flags),
        call(np.equal, keys, np.array(experts), out=others),
        call(np.logical_or, flags, others, out=flags),
        call(np.multiply, keys, np.array(capacity), out=keys),
        call(np.add, keys, place, out=keys),
        partial(np.copyto, keys, np.array(none), where=flags),
        partial(held.fill, -1),
        call(np.remainder, order, np.array(max(count, 1)), out=place),
        *_put(held, keys, place, spare),
        partial(np.copyto, tokens.reshape(groups, none), held[:, :none], casting="same_kind"),
        partial(np.copyto, keys, np.array(-1), where=flags),
        *_put(place, order, keys, spare),
        partial(np.copyto, slots, place.reshape(slots.shape), casting="same_kind"),
    )


def _count(chosen: Array, spare: Array, counts: Array, load: Array) -> tuple[Launch, ...]:
    """Return launches that count how often each expert is chosen."""
    groups, choices, width = counts.shape
    rows = np.arange(groups * choices).reshape(groups, choices, 1) * width
    return (
        partial(counts.fill, 0),
        call(np.add, chosen, rows, out=spare),
        partial(np.add.at, counts.reshape(-1), spare.reshape(-1), np.array(1)),
        partial(np.copyto, load, counts[..., :-1], casting="same_kind"),
    )


def _places(
    experts: Array, position: Array, counts: Array, starts: Array, place: Array, spare: Array
) -> tuple[Launch, ...]:
    """Return launches that number the choices of each expert, given the sorted experts."""
    if not place.size:
        return ()
    return (
        partial(starts[:, 0].fill, 0),
        partial(np.add.reduce, counts[..., :-1], axis=1, out=starts[:, 1:]),
        partial(np.add.accumulate, starts, 1, starts.dtype, starts),
        call(np.add, experts, _first_of_rows(starts), out=spare),
        partial(np.take, starts.reshape(-1), spare, 0, place, "clip"),
        call(np.subtract, position, place, out=place),
    )


def _first_of_rows(table: Array) -> Any:
    """Return the index of each row's first element in the flat table, as a column."""
    return np.arange(len(table))[:, None] * table.shape[1]


def _put(table: Array, columns: Array, values: Array, spare: Array) -> tuple[Launch, ...]:
    """Return launches that write a value to one column of its row for each element."""
    return (
        call(np.add, columns, _first_of_rows(table), out=spare),
        partial(_write, table.reshape(-1), spare.reshape(-1), values.reshape(-1)),
    )


def _write(table: Any, places: Array, values: Array) -> None:
    table[places] = values


KERNELS: tuple[KernelSpec, ...] = (
    kernel("expert_slots", _expert_slots, parts=_parts, batchable=rowwise),
)
