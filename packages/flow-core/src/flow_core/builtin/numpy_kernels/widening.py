"""Run kernels on float16 and bfloat16 arrays in float32, with conversions before and after.

NumPy computes 16-bit types element by element and without BLAS.  A widened kernel has float32
copies of the 16-bit arrays in its workspace, runs on these copies and converts inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import (
    Batchable,
    Bind,
    PartsOf,
    carve,
    carved,
    carved_bytes,
    kernel,
)
from flow_core.device import Launch
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

Workspace = Callable[[KernelQuery], int]


def widened(
    op: str,
    bind: Bind,  # functions of the kernel for float32 and wider types
    *,
    workspace: Workspace | None = None,
    parts: PartsOf | None = None,
    # Positions of the inputs that the kernel overwrites; their copies are copied back.
    mutates: Sequence[int] = (),
    batchable: Batchable | None = None,  # see `KernelSpec.batchable`
) -> KernelSpec:
    """Return a NumPy `KernelSpec` whose ``bind`` and ``workspace`` never see 16-bit types."""
    return kernel(
        op,
        lambda ctx: _bind(ctx, bind, mutates),
        workspace=lambda query: _workspace(query, carved(parts) if parts else workspace),
        batchable=batchable,
    )


def as_launches(bound: Launch | Sequence[Launch]) -> tuple[Launch, ...]:
    """Return a tuple of the launches, given as one launch or a sequence, of a bound kernel."""
    return (bound,) if callable(bound) else tuple(bound)


def _is_narrow(type_: TensorType) -> bool:
    return type_.dtype.accumulate is not type_.dtype


def _widen(type_: TensorType) -> TensorType:
    return tensor_type(type_.shape, type_.dtype.accumulate)


def _wide_query(query: KernelQuery) -> KernelQuery:
    return replace(
        query, inputs=tuple(map(_widen, query.inputs)), outputs=tuple(map(_widen, query.outputs))
    )


def _twin_parts(query: KernelQuery) -> list[tuple[tuple[int, ...], DTypeLike]]:
    types = (*query.inputs, *query.outputs)
    return [(t.shape, np.dtype(np.float32)) for t in types if _is_narrow(t)]


def _workspace(query: KernelQuery, inner: Workspace | None) -> int:
    parts = _twin_parts(query)
    wide = _wide_query(query) if parts else query
    return carved_bytes(*parts) + (inner(wide) if inner else 0)


def _bind(ctx: BindContext, bind: Bind, mutates: Sequence[int]) -> Sequence[Launch]:
    parts = _twin_parts(ctx.query)
    if not parts:
        return as_launches(bind(ctx))
    twins = iter(carve(ctx.workspace, *parts))
    inputs = _twinned(ctx.query.inputs, ctx.inputs, twins)
    outputs = _twinned(ctx.query.outputs, ctx.outputs, twins)
    inner = replace(
        ctx,
        query=_wide_query(ctx.query),
        inputs=inputs,
        outputs=outputs,
        workspace=ctx.workspace[carved_bytes(*parts) :],
    )
    before = [_copy(wide, own) for wide, own in zip(inputs, ctx.inputs, strict=True)]
    after = [_copy(own, wide) for wide, own in zip(outputs, ctx.outputs, strict=True)]
    back = [_copy(ctx.inputs[i], inputs[i]) for i in mutates]
    return tuple(filter(None, (*before, *as_launches(bind(inner)), *after, *back)))


def _twinned(types: Sequence[TensorType], arrays: Sequence[Any], twins: Any) -> tuple[Any, ...]:
    return tuple(next(twins) if _is_narrow(t) else x for t, x in zip(types, arrays, strict=True))


def _copy(target: Array, source: Array) -> Launch | None:
    return None if target is source else partial(np.copyto, target, source, casting="unsafe")
