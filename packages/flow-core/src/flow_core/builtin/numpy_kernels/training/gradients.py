"""Kernels that transform gradients before an update: penalties, sums of squares, and clipping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import float64
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import Part, carve, carved_bytes, kernel, scalar
from flow_core.builtin.numpy_kernels.training.schedules import number
from flow_core.device import Launch
from flow_core.ir.graph import tensor_type
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

PART = 1 << 13
"""Number of elements per sum of squares: BLAS computes sums of so few in one thread."""


def _regularize(ctx: BindContext) -> Iterator[Launch]:
    (model, diff), (out,) = ctx.inputs, ctx.outputs
    (term,) = carve(ctx.workspace, (out.shape, out.dtype))
    l1, l2 = (scalar(ctx.attrs[name], out) for name in ("l1", "l2"))
    yield call(np.sign, model, out=term)
    yield call(np.multiply, term, l1, out=term)
    yield call(np.add, diff, term, out=out)
    yield call(np.multiply, model, l2, out=term)
    yield call(np.add, out, term, out=out)


def square_sums(values: Array, doubles: Array, sums: Array) -> Iterator[Launch]:
    """Yield launches that write the sum of squares of each part of a vector to ``sums``.

    The sums are computed in float64, because the square of 1e20 is not a float32.
    """
    for index, start in enumerate(range(0, values.size, PART)):
        part = values[start : start + PART]
        if part.dtype != doubles.dtype:
            wide = doubles[: part.size]
            yield partial(np.copyto, wide, part)
            part = wide
        yield partial(np.dot, part, part, number(sums[index : index + 1]))


def _square_sum_parts(query: KernelQuery) -> tuple[Part, Part]:
    size = query.inputs[0].size
    return ((min(size, PART),), np.float64), ((-(-size // PART),), np.float64)


def _square_sum(ctx: BindContext) -> Iterator[Launch]:
    flat, (out,) = ctx.inputs[0].reshape(-1), ctx.outputs
    doubles, sums = carve(ctx.workspace, *_square_sum_parts(ctx.query))
    yield from square_sums(flat, doubles, sums)
    yield partial(_rounded_sum, sums, out)


def _multi_square_sum_query(query: KernelQuery, index: int) -> KernelQuery:
    wide = tensor_type((), float64)
    return replace(query, op="square_sum", inputs=(query.inputs[index],), outputs=(wide,))


def _multi_square_sum_bytes(query: KernelQuery) -> tuple[int, Part]:
    """Return the bytes for the largest input, and the part that holds one sum per input."""
    count = len(query.inputs)
    asked = (_multi_square_sum_query(query, i) for i in range(count))
    own = max(carved_bytes(*_square_sum_parts(q)) for q in asked)
    return own, ((count,), np.float64)


def _multi_square_sum(ctx: BindContext) -> Iterator[Launch]:
    own, part = _multi_square_sum_bytes(ctx.query)
    (sums,) = carve(ctx.workspace[own:], part)
    for i, x in enumerate(ctx.inputs):
        query = _multi_square_sum_query(ctx.query, i)
        yield from _square_sum(
            replace(ctx, query=query, inputs=(x,), outputs=(number(sums[i : i + 1]),))
        )
    yield partial(_rounded_sum, sums, ctx.outputs[0])


def _rounded_sum(sums: Array, out: Array) -> None:
    out[()] = np.add.reduce(sums)


def _clip_factor(ctx: BindContext) -> tuple[Launch, ...]:
    (x,), (out,) = ctx.inputs, ctx.outputs
    return (
        call(np.sqrt, x, out=out),
        call(np.divide, scalar(ctx.attrs["clip_norm"], out), out, out=out),
        call(np.minimum, out, scalar(1.0, out), out=out),
    )


def _listed(bind: Callable[[BindContext], Iterable[Launch]]) -> Any:
    return lambda ctx: tuple(bind(ctx))


TRANSFORMS: tuple[KernelSpec, ...] = (
    kernel(
        "l1_l2_regularize_gradient", _listed(_regularize), workspace=lambda q: q.outputs[0].nbytes
    ),
    kernel("square_sum", _listed(_square_sum), parts=_square_sum_parts),
    kernel(
        "multi_square_sum",
        _listed(_multi_square_sum),
        workspace=lambda q: (
            _multi_square_sum_bytes(q)[0] + carved_bytes(_multi_square_sum_bytes(q)[1])
        ),
    ),
    kernel("global_norm_clip_factor", _clip_factor),
)
