"""Kernels on float32 for arrays of bfloat16: twins of the arrays, converted before and after."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flow_core.base.alignment import aligned
from flow_core.base.dtypes import float32
from flow_core.device import Launch
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec, load
from flow_onednn.library import NO_TILES
from flow_onednn.native import compiler
from flow_onednn.primitives import address
from flow_onednn.recipes import Cook, is_product, kernel

_LOG = logging.getLogger("flow_onednn")


def widened(
    spec: KernelSpec, takes: Callable[[KernelQuery], bool], note: Callable[[], object] = tuple
) -> KernelSpec:
    """A kernel that also takes bfloat16 where its inner one does not; it may change no bfloat16.

    Args:
        spec: the kernel.
        takes: its predicate.
        note: says, where one has to be told, that arrays are converted.
    """
    inner = spec.workspace

    def accepts(query: KernelQuery) -> bool:
        return takes(query) or (_has_half(query) and compiler.available() and takes(wide(query)))

    def workspace(query: KernelQuery) -> int:
        if takes(query):
            return inner(query) if inner else 0
        return _twin_bytes(query) + (inner(wide(query)) if inner else 0)

    def bind(ctx: BindContext) -> Launch | Sequence[Launch]:
        bound: Any = load(spec.load)
        if takes(ctx.query):
            found: Launch | Sequence[Launch] = bound(ctx)
            return found
        note()
        return _bind(ctx, bound)

    return replace(spec, load=bind, accepts=accepts, workspace=workspace)


def on_twins(
    spec: KernelSpec,
    note: Callable[[], object] = tuple,
    unless: Callable[[KernelQuery], bool] | None = None,
) -> KernelSpec:
    """`widened` by the predicate of the kernel itself.

    Args:
        spec: the kernel.
        note: as of `widened`.
        unless: whether arrays that the kernel changes would have twins.
    """
    takes = spec.accepts
    if takes is None:
        raise LookupError(f"the kernel of {spec.op} takes anything")
    made = widened(spec, takes, note)
    accepts = made.accepts
    if unless is None or accepts is None:
        return made
    return replace(made, accepts=lambda query: not unless(query) and accepts(query))


def product(op: str, cook: Cook) -> KernelSpec:
    """The kernel of a product or convolution, in bfloat16 itself where that is worth it."""
    return on_twins(kernel(op, cook, accepts=is_product), _say_once)


@functools.cache
def _say_once() -> None:
    """Products in bfloat16 were asked for, and are not to be had."""
    _LOG.warning("mixed precision: %s; it saves memory here, not time", NO_TILES)


def computed(query: KernelQuery) -> KernelQuery:
    """The question of a product as its primitive sees it."""
    return query if is_product(query) else wide(query)


def _has_half(query: KernelQuery) -> bool:
    return any(map(is_half, (*query.inputs, *query.outputs)))


def is_half(type_: TensorType) -> bool:
    """Whether it is an array of bfloat16."""
    return type_.dtype.name == "bfloat16"


def wide(query: KernelQuery) -> KernelQuery:
    """The same question about float32."""
    inputs, outputs = (tuple(map(wide_type, side)) for side in (query.inputs, query.outputs))
    return replace(query, inputs=inputs, outputs=outputs)


def wide_type(type_: TensorType) -> TensorType:
    """float32 in the place of bfloat16."""
    return tensor_type(type_.shape, float32) if is_half(type_) else type_


def _twin_bytes(query: KernelQuery) -> int:
    return sum(aligned(4 * t.size) for t in (*query.inputs, *query.outputs) if is_half(t))


def _bind(ctx: BindContext, bind: Any) -> list[Launch]:
    twins = _twins(ctx)
    inputs, before = _swapped(ctx.query.inputs, ctx.inputs, twins)
    outputs, after = _swapped(ctx.query.outputs, ctx.outputs, twins)
    rest = None if ctx.workspace is None else ctx.workspace[_twin_bytes(ctx.query) :]
    bound = bind(
        replace(ctx, query=wide(ctx.query), inputs=inputs, outputs=outputs, workspace=rest)
    )
    launches = [_copy("widen", own, twin) for own, twin in before]
    launches += bound if isinstance(bound, list | tuple) else [bound]
    return launches + [_copy("narrow", twin, own) for own, twin in after]


def _twins(ctx: BindContext) -> Iterator[Any]:
    """Arrays of float32 in the workspace, for each half array in turn."""
    at = 0
    for type_ in (*ctx.query.inputs, *ctx.query.outputs):
        if is_half(type_):
            size = 4 * type_.size
            yield ctx.workspace[at : at + size].view("float32").reshape(type_.shape)
            at += aligned(size)


def _swapped(
    types: Sequence[TensorType], arrays: Sequence[Any], twins: Iterator[Any]
) -> tuple[tuple[Any, ...], list[tuple[Any, Any]]]:
    """The arrays with twins for half ones, and the pairs of both."""
    found = tuple(next(twins) if is_half(t) else a for t, a in zip(types, arrays, strict=True))
    return found, [(a, t) for a, t in zip(arrays, found, strict=True) if a is not t]


def _copy(name: str, source: Any, target: Any) -> Launch:
    make = compiler.ffi(compiler.CDEF)
    kinds = ("uint16_t *", "float *") if name == "widen" else ("float *", "uint16_t *")
    pointers = (make.cast(k, address(a)) for k, a in zip(kinds, (source, target), strict=True))
    return partial(getattr(compiler.native(), name), *pointers, source.size)
