"""Float32 kernels for bfloat16 arrays: inputs are upcast before, outputs are downcast after."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import (
    BindContext,
    KernelQuery,
    KernelSpec,
    TensorType,
    load,
    tensor_type,
)
from flow_core.base.alignment import aligned
from flow_core.base.arrays import Array
from flow_core.base.dtypes import float32
from flow_onednn.library import NO_HALF
from flow_onednn.native import compiler
from flow_onednn.native.calls import CONVERTED, Call, call, over_rows
from flow_onednn.primitives import address
from flow_onednn.recipes import Build, is_product, kernel

_LOG = logging.getLogger("flow_onednn")


@dataclass(frozen=True, slots=True)
class RowLoop:
    """The C function of a kernel whose result's rows depend on the same rows of its arrays only."""

    rows: Callable[[KernelQuery], int]  # returns the number of rows
    counted: int  # position of the argument that is the number of rows
    # Positions of the arguments that are the op's first inputs, and its outputs.
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def without_rows(self, query: KernelQuery) -> KernelQuery:
        """Return the query with float32 in place of the types that the loop converts in blocks."""
        sides = (query.inputs, len(self.inputs)), (query.outputs, len(self.outputs))
        inputs, outputs = (
            (*map(upcast_type, types[:count]), *types[count:]) for types, count in sides
        )
        halves = [t for types, count in sides for t in types[:count] if is_half(t)]
        fits = sum(t.size for t in halves) <= CONVERTED * self.rows(query)
        return replace(query, inputs=inputs, outputs=outputs) if fits else query

    def launch(self, loop: Call, ctx: BindContext) -> Launch:
        """Return the launch of the loop on blocks of rows."""
        arrays = {slot: (x, False) for slot, x in zip(self.inputs, ctx.inputs, strict=False)}
        arrays |= {slot: (y, True) for slot, y in zip(self.outputs, ctx.outputs, strict=True)}
        return over_rows(loop, self.counted, arrays)


def with_upcast(
    spec: KernelSpec,
    takes: Callable[[KernelQuery], bool],
    # Function that is called when a launch with conversions is bound.
    note: Callable[[], object] = tuple,
    # The kernel's loop, if it can run on blocks of rows, whose copies stay in the cache.
    rows: RowLoop | None = None,
) -> KernelSpec:
    """Extend a kernel to bfloat16 arrays that it does not accept, and that it must not mutate."""
    inner = spec.workspace

    def copied(query: KernelQuery) -> KernelQuery:
        return rows.without_rows(query) if rows else query

    def accepts(query: KernelQuery) -> bool:
        return takes(query) or (
            _has_half(query) and compiler.available() and takes(upcast_query(query))
        )

    def workspace(query: KernelQuery) -> int:
        if takes(query):
            return inner(query) if inner else 0
        own = inner(upcast_query(query)) if inner else 0
        return _upcast_bytes(copied(query)) + own

    def bind(ctx: BindContext) -> Launch | Sequence[Launch]:
        bound: Any = load(spec.load)
        if takes(ctx.query):
            found: Launch | Sequence[Launch] = bound(ctx)
            return found
        note()
        query = copied(ctx.query)
        in_blocks = rows if query != ctx.query else None
        made = (lambda inner: in_blocks.launch(bound(inner), inner)) if in_blocks else bound
        return _bind(replace(ctx, query=query), made)

    return replace(spec, load=bind, accepts=accepts, workspace=workspace)


def upcast_kernel(
    spec: KernelSpec,
    note: Callable[[], object] = tuple,
    # Returns whether to reject a query, because it has mutated bfloat16 arrays.
    unless: Callable[[KernelQuery], bool] | None = None,
) -> KernelSpec:
    """Apply `with_upcast` with the kernel's own predicate."""
    takes = spec.accepts
    if takes is None:
        raise LookupError(f"the kernel of {spec.op} has no predicate")
    made = with_upcast(spec, takes, note)
    accepts = made.accepts
    if unless is None or accepts is None:
        return made
    return replace(made, accepts=lambda query: not unless(query) and accepts(query))


def product(op: str, build: Build) -> KernelSpec:
    """Return the kernel of a product or convolution; bfloat16 is upcast if float32 is faster."""
    return upcast_kernel(kernel(op, build, accepts=is_product), _warn_once)


@functools.cache
def _warn_once() -> None:
    """Warn, once per process, that bfloat16 products run in float32."""
    _LOG.warning("mixed precision: %s; it saves memory here, not time", NO_HALF)


def computed(query: KernelQuery) -> KernelQuery:
    """Return the query of a product with the types in which its primitive computes."""
    return query if is_product(query) else upcast_query(query)


def _has_half(query: KernelQuery) -> bool:
    return any(map(is_half, (*query.inputs, *query.outputs)))


def is_half(type_: TensorType) -> bool:
    """Return whether a tensor is bfloat16."""
    return type_.dtype.name == "bfloat16"


def upcast_query(query: KernelQuery) -> KernelQuery:
    """Return the query with float32 in place of bfloat16."""
    inputs, outputs = (tuple(map(upcast_type, side)) for side in (query.inputs, query.outputs))
    return replace(query, inputs=inputs, outputs=outputs)


def upcast_type(type_: TensorType) -> TensorType:
    """Return the type with float32 in place of bfloat16."""
    return tensor_type(type_.shape, float32) if is_half(type_) else type_


def _upcast_bytes(query: KernelQuery) -> int:
    return sum(aligned(4 * t.size) for t in (*query.inputs, *query.outputs) if is_half(t))


def _bind(
    ctx: BindContext, bind: Callable[[BindContext], Launch | Sequence[Launch]]
) -> list[Launch]:
    copies = _float32_copies(ctx)
    inputs, before = _swapped(ctx.query.inputs, ctx.inputs, copies)
    outputs, after = _swapped(ctx.query.outputs, ctx.outputs, copies)
    rest = None if ctx.workspace is None else ctx.workspace[_upcast_bytes(ctx.query) :]
    bound = bind(
        replace(ctx, query=upcast_query(ctx.query), inputs=inputs, outputs=outputs, workspace=rest)
    )
    launches = [_copy("bf16_to_f32_array", half, copy) for half, copy in before]
    launches += [bound] if callable(bound) else bound
    return launches + [_copy("f32_to_bf16_array", copy, half) for half, copy in after]


def _float32_copies(ctx: BindContext) -> Iterator[Array]:
    """Yield a float32 array in the workspace for each bfloat16 array in turn."""
    at = 0
    for type_ in (*ctx.query.inputs, *ctx.query.outputs):
        if is_half(type_):
            size = 4 * type_.size
            yield ctx.workspace[at : at + size].view("float32").reshape(type_.shape)
            at += aligned(size)


def _swapped(
    types: Sequence[TensorType], arrays: Sequence[Array], copies: Iterator[Array]
) -> tuple[tuple[Array, ...], list[tuple[Array, Array]]]:
    """Replace bfloat16 arrays by their float32 copies; return these pairs as well."""
    found = tuple(next(copies) if is_half(t) else a for t, a in zip(types, arrays, strict=True))
    return found, [(a, t) for a, t in zip(arrays, found, strict=True) if a is not t]


def _copy(name: str, source: Array, target: Array) -> Launch:
    make = compiler.ffi(compiler.CDEF)
    kinds = ("uint16_t *", "float *") if name == "bf16_to_f32_array" else ("float *", "uint16_t *")
    pointers = (make.cast(k, address(a)) for k, a in zip(kinds, (source, target), strict=True))
    return call(name, *pointers, source.size)
