"""The kernels of `native/joined.c`: updates of several small variables in one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from flow_core.base.alignment import aligned
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec
from flow_onednn.kernels.loops import FLOAT_BYTES, PAIR_BYTES, loop_kernel, null, pointer
from flow_onednn.native import compiler
from flow_onednn.ops import JOINED, UPDATE_ATTRS, Joined
from flow_onednn.threads import SHARES

STEP = 2
"""Position of the step's number, where a rule reads it."""
NORMS = ("lars_update", "lamb_update")


def _accepts(row: Joined, query: KernelQuery) -> bool:
    """float32 but for the number of the step."""
    step = STEP if row.step else None
    return all(t.dtype.name == "float32" for i, t in enumerate(query.inputs) if i != step)


def _models(row: Joined, items: Sequence[Any]) -> Sequence[Any]:
    """Of each row what belongs to the variable itself."""
    return items[row.head + 1 :: row.row]


def _pairs_bytes(row: Joined, query: KernelQuery) -> int:
    if row.update not in NORMS:
        return 0
    return aligned(len(_models(row, query.inputs)) * SHARES * PAIR_BYTES)


def _bytes(row: Joined, query: KernelQuery) -> int:
    """What norms are summed up in and, for LAMB, all changes."""
    changes = sum(t.size for t in _models(row, query.inputs)) if row.update == "lamb_update" else 0
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
    numbers = [float(ctx.attrs[name]) for name in (*UPDATE_ATTRS, *row.attrs)]
    return partial(
        compiler.native().joined_updates,
        JOINED.index(row), make("void *[]", rows), make("long[]", sizes), len(sizes) // 2, row.row,
        pointer(rate), pointer(factor) if ctx.attrs["scaled"] else null(),
        pointer(ctx.inputs[STEP], "int64_t *") if row.step else null(),
        change, pairs, SHARES, make("double[]", numbers),
    )  # fmt: skip


KERNELS: tuple[KernelSpec, ...] = tuple(
    loop_kernel(
        row.type,
        partial(_bind, row),
        partial(_accepts, row),
        partial(_bytes, row) if row.update in NORMS else None,
    )
    for row in JOINED
)
