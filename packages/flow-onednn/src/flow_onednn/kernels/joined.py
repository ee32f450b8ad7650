"""The kernels that call `native/joined.c`, which updates several small variables in one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_core.authoring.update_rules import TABLE
from flow_core.base.alignment import aligned
from flow_onednn.kernels.loops import (
    PAIR_BYTES,
    loop_kernel,
    null,
    pointer,
    pointers,
    update_numbers,
)
from flow_onednn.native import compiler
from flow_onednn.native.calls import call
from flow_onednn.threads import MAX_PARTITIONS
from flow_onednn.update_references import JOINED, Joined

STEP = 2
"""Input position of the step number, if the rule reads it."""


def _accepts(row: Joined, query: KernelQuery) -> bool:
    """Return whether all inputs but the step number are float32."""
    step = STEP if row.rule.step else None
    return all(t.dtype.name == "float32" for i, t in enumerate(query.inputs) if i != step)


def _models(row: Joined, items: Sequence[Any]) -> Sequence[Any]:
    """Return those of the items that belong to the variables, one per row."""
    return items[row.head :: row.row]


def _pairs_bytes(row: Joined, query: KernelQuery) -> int:
    return aligned(len(_models(row, query.inputs)) * MAX_PARTITIONS * PAIR_BYTES)


def _bind(row: Joined, ctx: BindContext) -> Launch:
    rate, factor, *_ = ctx.inputs
    sizes = [model.size for model in _models(row, ctx.inputs)]
    return call(
        "joined_updates",
        TABLE.index(row.rule), pointers(*ctx.inputs[row.head :]),
        compiler.ffi(compiler.CDEF).new("long[]", sizes), len(sizes), row.row,
        pointer(rate), pointer(factor) if ctx.attrs["scaled"] else null(),
        pointer(ctx.inputs[STEP], "int64_t *") if row.rule.step else null(),
        null() if row.rule.local else pointer(ctx.workspace, "double *"), MAX_PARTITIONS,
        update_numbers(row.rule, ctx.attrs),
    )  # fmt: skip


KERNELS: tuple[KernelSpec, ...] = tuple(
    loop_kernel(
        row.type,
        partial(_bind, row),
        partial(_accepts, row),
        None if row.rule.local else partial(_pairs_bytes, row),
    )
    for row in JOINED
)
