"""Kernels of sort, argsort, top-k and one_hot.

Orders are computed by sorting 64-bit keys in place.  The high 32 bits of a key are an integer in
the order of the values, the low 32 bits the index of the value.  NumPy sorts such keys with vector
instructions and without allocation.  Values of 64-bit types do not fit into keys; for these,
`numpy.argsort` allocates memory in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.base.dtypes import bfloat16, float16
from flow_core.base.errors import DataError
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.array.row_index import (
    Addressing,
    RowNumbers,
    either,
    numbers_bytes,
    per_batch,
    row_numbers,
    take_rows,
)
from flow_core.builtin.numpy_kernels.array.select import copy, fill
from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes, kernel
from flow_core.device import Launch
from flow_core.ops.array.sort import one_hot_value, stable_order
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

INFINITE = 0x7F800000
"""The bit pattern of infinity in float32."""
FROM_LEAST = INFINITE + 1 - (1 << 31)
"""The number that maps the pattern of -inf to the smallest integer when it is added."""


def _sort(ctx: BindContext) -> Sequence[Launch]:
    (x,), (out,) = ctx.inputs, ctx.outputs
    parts = _sort_parts(ctx.query)
    if not parts:
        return copy(out, x), partial(out.sort, axis=-1)
    (rising,) = carve(ctx.workspace, *parts)
    found = rising if ctx.attrs["direction"] == "ASCENDING" else rising[..., ::-1]
    return (
        partial(np.copyto, rising, x),
        partial(rising.sort, axis=-1),
        partial(np.copyto, out, found, casting="unsafe"),
    )


def _sort_parts(query: KernelQuery) -> tuple[tuple[tuple[int, ...], DTypeLike], ...]:
    """Return the workspace parts.

    Half types are sorted as float32: NumPy misorders NaN of bfloat16, and on processors with
    AVX512_ICL also ordinary numbers of float16, in arrays of 16,000 elements or more.
    """
    x = query.inputs[0]
    half = x.dtype in (bfloat16, float16)
    if query.attrs["direction"] == "ASCENDING" and not half:
        return ()
    return ((x.shape, np.float32 if half else x.dtype.numpy),)


# ------------------------------------------------------------------------------- orders by keys


def _order_parts(query: KernelQuery) -> tuple[tuple[tuple[int, ...], DTypeLike], ...]:
    x = query.inputs[0]
    if x.dtype.itemsize == 8:
        return ()
    return (x.shape, np.int32), (x.shape, np.int32), (x.shape, np.int64)


def _patterns(x: Array, patterns: Array, signs: Array, floating: bool) -> Iterator[Launch]:
    """Write int32 patterns that have the same order as the values of ``x`` to ``patterns``."""
    if not floating:
        yield partial(np.copyto, patterns, x)
        return
    numbers = patterns.view(np.float32)
    yield partial(np.copyto, numbers, x)
    yield call(np.add, numbers, np.array(0, np.float32), out=numbers)  # -0.0 becomes 0.0
    yield call(np.right_shift, patterns, np.array(31, np.int32), out=signs)
    yield call(np.bitwise_and, signs, np.array(0x7FFFFFFF, np.int32), out=signs)
    yield call(np.bitwise_xor, patterns, signs, out=patterns)
    # NaN with a sign bit is below -inf: it wraps around, so that all NaN are at the end
    yield call(np.add, patterns, np.array(FROM_LEAST, np.int32), out=patterns)
    yield call(np.minimum, patterns, np.array(INFINITE + FROM_LEAST + 1, np.int32), out=patterns)


def _order_by_keys(
    ctx: BindContext, descending: bool, finish: Callable[[Any], Sequence[Launch]]
) -> Sequence[Launch]:
    """Sort keys with ``finish(keys)`` and write the low 32 bits, the indices, to the output."""
    (x,), (out,) = ctx.inputs, ctx.outputs
    patterns, signs, keys = carve(ctx.workspace, *_order_parts(ctx.query))
    first = keys[..., : out.shape[-1]]
    index = np.arange(x.shape[-1])
    floating = ctx.query.inputs[0].dtype.is_floating
    return (
        *_patterns(x, patterns, signs, floating),
        *((call(np.invert, patterns, out=patterns),) if descending else ()),
        partial(np.copyto, keys, patterns),
        call(np.left_shift, keys, np.array(32), out=keys),
        call(np.bitwise_or, keys, index, out=keys),
        *finish(keys),
        call(np.bitwise_and, first, np.array(0xFFFFFFFF), out=first),
        partial(np.copyto, out, first, casting="same_kind"),
    )


def _order_of_wide(x: Array, out: Array, descending: bool) -> None:
    np.copyto(out, stable_order(x, descending)[..., : out.shape[-1]], casting="same_kind")


def _arg_sort(ctx: BindContext) -> Launch | Sequence[Launch]:
    descending = ctx.attrs["direction"] == "DESCENDING"
    if ctx.query.inputs[0].dtype.itemsize == 8:
        return partial(_order_of_wide, ctx.inputs[0], ctx.outputs[0], descending)
    return _order_by_keys(ctx, descending, lambda keys: (partial(keys.sort, axis=-1),))


def _top_k(ctx: BindContext) -> Launch | Sequence[Launch]:
    if ctx.query.inputs[0].dtype.itemsize == 8:
        return partial(_order_of_wide, ctx.inputs[0], ctx.outputs[0], True)
    k = ctx.outputs[0].shape[-1]
    return _order_by_keys(
        ctx,
        True,
        lambda keys: (
            partial(keys.partition, k - 1, axis=-1),
            partial(keys[..., :k].sort, axis=-1),
        ),
    )


# ------------------------------------------------------------------------------- argmax, in_top_k


def _argmax(ctx: BindContext) -> Sequence[Launch]:
    (x,), (out,) = ctx.inputs, ctx.outputs
    rows = x.reshape(-1, x.shape[-1])
    (found,) = carve(ctx.workspace, ((rows.shape[0],), np.intp))
    return (
        partial(np.argmax, rows, 1, found),
        partial(np.copyto, out.reshape(-1), found, casting="same_kind"),
    )


def _class_addressing(query: KernelQuery) -> Addressing:
    targets, predictions = query.inputs
    return per_batch(predictions.shape, (*targets.shape, 1))


def _in_top_k_parts(query: KernelQuery) -> tuple[tuple[tuple[int, ...], DTypeLike], ...]:
    predictions = query.inputs[1]
    rows, classes = predictions.shape
    return (
        ((rows, 1), predictions.dtype.numpy),
        ((rows, classes), np.bool_),
        ((rows, classes), np.int32),
        ((rows,), np.int32),
        ((rows,), np.bool_),
    )


def _in_top_k(ctx: BindContext) -> Sequence[Launch]:
    """Count the classes that rank above the target; special cases follow the op's reference."""
    (targets, predictions), (out,) = ctx.inputs, ctx.outputs
    addressing, parts = _class_addressing(ctx.query), _in_top_k_parts(ctx.query)
    chosen, flags, ones, counts, good = carve(ctx.workspace, *parts)
    numbers = row_numbers(addressing, targets, ctx.workspace[carved_bytes(*parts) :])
    k, yes = np.array(ctx.attrs["k"], np.int32), out.view(np.bool_)
    return (
        *take_rows(predictions, addressing, numbers, chosen),
        call(np.isfinite, predictions, out=flags),
        partial(np.logical_and.reduce, flags, axis=1, out=good),
        call(np.greater, predictions, chosen, out=flags),
        partial(np.copyto, ones, flags),
        partial(np.add.reduce, ones, axis=1, dtype=np.int32, out=counts),
        call(np.less, counts, k, out=yes),
        call(np.logical_and, yes, good, out=yes),
        call(np.greater, yes, numbers.bad, out=yes),
    )


def _in_top_k_bytes(query: KernelQuery) -> int:
    parts = _in_top_k_parts(query)
    return carved_bytes(*parts) + numbers_bytes(_class_addressing(query))


def _hot_addressing(query: KernelQuery) -> Addressing:
    out = query.outputs[0].shape
    return per_batch((prod(out[:-1]), out[-1]), (prod(out[:-1]), 1), query.attrs["first"])


def _one_hot(ctx: BindContext) -> Sequence[Launch]:
    (indices,), (out,) = ctx.inputs, ctx.outputs
    numbers = row_numbers(_hot_addressing(ctx.query), indices, ctx.workspace)
    flat, on = out.reshape(-1), np.array(one_hot_value(ctx.attrs, "on"), out.dtype)
    some = _set_some if ctx.attrs["classes"] else _refuse
    rare = partial(some, flat, numbers, on, indices, ctx.attrs["classes"] or ctx.attrs["depth"])
    return (
        fill(out, one_hot_value(ctx.attrs, "off")),
        *numbers.launches,
        partial(either, numbers.any_bad, rare, (partial(flat.__setitem__, numbers.rows, on),)),
    )


def _refuse(flat: Array, numbers: RowNumbers, on: Any, indices: Array, classes: int) -> None:
    flat_indices = indices.reshape(-1)
    raise DataError(
        "one_hot of an index out of range",
        found=int(flat_indices[(flat_indices < 0) | (flat_indices >= classes)][0]),
        allowed=f"0 <= index < {classes}",
        hint="pass a larger depth, or indices of existing classes",
    )


def _set_some(flat: Array, numbers: RowNumbers, on: Any, indices: Array, classes: int) -> None:
    """Set the classes that this device has; skip others, and raise `DataError` for invalid ones."""
    if indices.size and not 0 <= indices.min() <= indices.max() < classes:
        _refuse(flat, numbers, on, indices, classes)
    flat[numbers.rows[~numbers.bad]] = on


KERNELS: tuple[KernelSpec, ...] = (
    kernel("sort", _sort, parts=_sort_parts),
    kernel("arg_sort", _arg_sort, parts=_order_parts),
    kernel("top_k", _top_k, parts=_order_parts),
    kernel(
        "argmax",
        _argmax,
        workspace=lambda query: carved_bytes(((prod(query.outputs[0].shape),), np.intp)),
    ),
    kernel("in_top_k", _in_top_k, workspace=_in_top_k_bytes),
    kernel("one_hot", _one_hot, workspace=lambda query: numbers_bytes(_hot_addressing(query))),
)
