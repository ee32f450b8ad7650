"""Kernels of updates whose gradient is a sum of matrix products.

The variable is updated one block of rows at a time, so that the gradient of a block stays in a
core's cache until the update has read it.  The products are split into blocks of rows only if the
NumPy kernels compute them and a trial shows that the blocks have the bits of the whole product.
Otherwise, the whole gradient is computed in scratch memory, with the kernels that would run if the
products and the update were separate ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes, kernel
from flow_core.builtin.numpy_kernels.widening import as_launches
from flow_core.device import Launch
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ir.update_rules import DIFF, MODEL
from flow_core.ops.training.summed_updates import ROWS, products, update
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec, load
from flow_core.plugins.trials import bitwise_equal_in_trials, canceling_operands, multiplications

PIECE = 1 << 17
"""Gradient bytes per block; gradient and added product together fill half of a core's cache."""
LEAST = 16
"""Minimum rows per block; with fewer rows, the call overhead exceeds the time of the product."""


def _found(query: KernelQuery) -> KernelSpec:
    if query.find is None:
        raise LookupError(f"{query.op} needs a registry to find its kernels")
    return query.find(query)


def _kernels(query: KernelQuery) -> Iterator[tuple[KernelQuery, KernelSpec]]:
    """Yield the queries and kernels of the ops that this op replaces: products, then the update."""
    first, *others = products(query)
    yield first, _found(first)
    for one in others:
        onto = replace(one, op="matmul_onto", inputs=(*one.inputs, query.inputs[MODEL]))
        yield onto, _found(onto)
    last = update(query)
    yield last, _found(last)


def _scratch(found: Sequence[tuple[KernelQuery, KernelSpec]]) -> int:
    """Return the bytes of the largest workspace among kernels that run one after the other."""
    return max(k.workspace(q) if k.workspace else 0 for q, k in found)


def _step(query: KernelQuery) -> int:
    """Return the number of rows per block: all rows if the product must not be split.

    Products of 16-bit types are never split: their kernel rounds float32 results, and a trial with
    `np.matmul` does not.
    """
    model, (first, *_) = query.inputs[MODEL], products(query)
    rows = model.shape[0]
    step = max(LEAST, PIECE // max(1, model.nbytes // max(1, rows)) // LEAST * LEAST)
    own = all(k.name in _OWN for _, k in _kernels(query))
    attrs = tuple(sorted(first.attrs.items()))
    exact = model.dtype.accumulate is model.dtype
    fits = own and exact and step < rows and query.attrs["alpha"] == 1
    return step if fits and _same_bits(first.inputs, attrs, step) else rows


_OWN = ("numpy.matmul", "numpy.matmul_onto", *(f"numpy.{row.type}" for row in ROWS.values()))


def _sides(attrs: AttrValue, a: Array, b: Array) -> tuple[Array, Array]:
    return a.T if attrs["transpose_a"] else a, b.T if attrs["transpose_b"] else b


@cache
def _same_bits(types: tuple[TensorType, ...], attrs: AttrValue, step: int) -> bool:
    """Return whether a product that is computed in blocks of rows has the same bits."""
    sides = dict(attrs)
    turned = sides["transpose_a"], sides["transpose_b"]

    def same(rng: np.random.Generator) -> bool:
        left, right = _sides(sides, *canceling_operands(rng, types, *turned))
        apart = [np.matmul(left[i : i + step], right) for i in range(0, len(left), step)]
        return np.array_equal(np.concatenate(apart), np.matmul(left, right))

    return bitwise_equal_in_trials(multiplications(types, turned[1]), same)


def _rows(type_: TensorType, count: int) -> TensorType:
    return tensor_type((count, *type_.shape[1:]), type_.dtype)


def _part(query: KernelQuery, count: int) -> KernelQuery:
    """Return the query of the update for some rows of the variable and its states."""
    asked = update(query)
    model = asked.inputs[MODEL]
    types = tuple(_rows(t, count) if t.shape == model.shape else t for t in asked.inputs)
    return replace(asked, inputs=types)


def _bytes(query: KernelQuery) -> int:
    model, step = query.inputs[MODEL], _step(query)
    gradient = carved_bytes((model.shape, model.dtype.numpy))
    if step == model.shape[0]:
        return gradient + _scratch(list(_kernels(query)))
    part = _part(query, step)
    own = (_rows(model, step).shape, model.dtype.numpy)
    return carved_bytes(own, own) + _scratch([(part, _found(part))])


def _bind(ctx: BindContext) -> Sequence[Launch]:
    step = _step(ctx.query)
    rows = ctx.inputs[MODEL].shape[0]
    return tuple(_in_pieces(ctx, step) if step < rows else _at_once(ctx))


def _operands(ctx: BindContext) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the inputs of the update except the gradient, and the operands of the products."""
    first = len(ctx.inputs) - 2 * ctx.attrs["parts"]
    return ctx.inputs[:first], ctx.inputs[first:]


def _bound(
    ctx: BindContext,
    found: tuple[KernelQuery, KernelSpec],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    scratch: Array,
) -> Sequence[Launch]:
    query, kernel_ = found
    space = scratch if kernel_.workspace else None
    inner = replace(ctx, query=query, inputs=tuple(inputs), outputs=tuple(outputs), workspace=space)
    return as_launches(load(kernel_.load)(inner))


def _at_once(ctx: BindContext) -> Iterator[Launch]:
    """Compute the whole gradient with the kernels of the products, then update the variable."""
    (model, *rest), operands = _operands(ctx)
    whole = (model.shape, model.dtype)
    (gradient,) = carve(ctx.workspace, whole)
    scratch = ctx.workspace[carved_bytes(whole) :]
    *making, last = _kernels(ctx.query)
    for k, found in enumerate(making):
        pair = operands[2 * k : 2 * k + 2]
        base = (gradient,) if k else ()
        yield from _bound(ctx, found, (*pair, *base), (gradient,), scratch)
    yield from _bound(ctx, last, (model, gradient, *rest), (), scratch)


def _in_pieces(ctx: BindContext, step: int) -> Iterator[Launch]:
    """Compute the products, their sum and the update, one block of rows after the other."""
    (model, *rest), operands = _operands(ctx)
    one = (model[:step].shape, model.dtype)
    sums, terms = carve(ctx.workspace, one, one)
    scratch = ctx.workspace[carved_bytes(one, one) :]
    pairs = [_sides(ctx.attrs, *operands[at : at + 2]) for at in range(0, len(operands), 2)]
    for low in range(0, len(model), step):
        window = slice(low, min(low + step, len(model)))
        count = window.stop - low
        total, term = sums[:count], terms[:count]
        for k, (left, right) in enumerate(pairs):
            yield call(np.matmul, left[window], right, out=term if k else total)
            if k:
                yield call(np.add, total, term, out=total)
        asked = _part(ctx.query, count)
        arrays = [x[window] if x.shape == model.shape else x for x in (model, *rest)]
        arrays.insert(DIFF, total)
        yield from _bound(ctx, (asked, _found(asked)), arrays, (), scratch)


KERNELS: tuple[KernelSpec, ...] = tuple(kernel(name, _bind, workspace=_bytes) for name in ROWS)
