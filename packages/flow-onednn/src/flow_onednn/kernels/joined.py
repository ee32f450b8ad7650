"""The kernels that call `native/joined.c`, which updates several small variables in one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_core.authoring.update_rules import COMMON
from flow_core.base.alignment import aligned
from flow_onednn.kernels.loops import FLOAT_BYTES, PAIR_BYTES, loop_kernel, null, pointer
from flow_onednn.native import compiler
from flow_onednn.threads import MAX_PARTITIONS
from flow_onednn.update_references import JOINED, Joined

STEP = 2
"""Input position of the step number, if the rule reads it."""
NORMS = ("lars_update", "lamb_update")


def _accepts(row: Joined, query: KernelQuery) -> bool:
    """Return whether all inputs but the step number are float32."""
    step = STEP if row.rule.step else None
    return all(t.dtype.name == "float32" for i, t in enumerate(query.inputs) if i != step)


def _models(row: Joined, items: Sequence[Any]) -> Sequence[Any]:
    """Return those of the items that belong to the variables, one per row."""
    return items[row.head + 1 :: row.row]


def _pairs_bytes(row: Joined, query: KernelQuery) -> int:
    if row.rule.type not in NORMS:
        return 0
    return aligned(len(_models(row, query.inputs)) * MAX_PARTITIONS * PAIR_BYTES)


def _bytes(row: Joined, query: KernelQuery) -> int:
    """Return the bytes for the partial norms and, for LAMB, for the changes of all variables."""
    changes = (
        sum(t.size for t in _models(row, query.inputs)) if row.rule.type == "lamb_update" else 0
    )
    return _pairs_bytes(row, query) + aligned(FLOAT_BYTES * changes)


def _bind(row: Joined, ctx: BindContext) -> Launch:
    make = compiler.ffi(compiler.CDEF).new
    rate, factor, *_ = ctx.inputs
    sizes, before = [], 0
    for model in _models(row, ctx.inputs):
        sizes += [model.size, before]
        before += model.size
    rows = [pointer(a, "void *") for a in ctx.inputs[row.head :]]
    pairs, change = null(), null()
    if ctx.workspace is not None:
        pairs = pointer(ctx.workspace, "double *")
        change = pointer(ctx.workspace[_pairs_bytes(row, ctx.query) :])
    numbers = [float(ctx.attrs[name]) for name in (*COMMON, *row.rule.attrs)]
    return partial(
        compiler.native().joined_updates,
        JOINED.index(row), make("void *[]", rows), make("long[]", sizes), len(sizes) // 2, row.row,
        pointer(rate), pointer(factor) if ctx.attrs["scaled"] else null(),
        pointer(ctx.inputs[STEP], "int64_t *") if row.rule.step else null(),
        change, pairs, MAX_PARTITIONS, make("double[]", numbers),
    )  # fmt: skip


KERNELS: tuple[KernelSpec, ...] = tuple(
    loop_kernel(
        row.type,
        partial(_bind, row),
        partial(_accepts, row),
        partial(_bytes, row) if row.rule.type in NORMS else None,
    )
    for row in JOINED
)
