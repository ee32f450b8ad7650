"""Kernels of constants, ranges and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.philox import Place, Uniform
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.array.select import copy, fill
from flow_core.builtin.numpy_kernels.binding import carve, kernel
from flow_core.builtin.numpy_kernels.drawing import Part, drawing, put, scratch_part
from flow_core.device import Launch
from flow_core.ir.initializers import OF_TWO_DRAWS
from flow_core.ops.array.source import permutation_layout, upper_limit
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec


def _constant(ctx: BindContext) -> Launch:
    return fill(ctx.outputs[0], ctx.attrs["value"])


def _zeros(ctx: BindContext) -> Launch:
    return fill(ctx.outputs[0], 0)


def _range(ctx: BindContext) -> Launch:
    out, bounds = ctx.outputs[0], [ctx.attrs[key] for key in ("start", "limit", "delta")]
    return copy(out, np.arange(*bounds).astype(out.dtype))


def _place(query: KernelQuery) -> Place | None:
    place: Place | None = query.attrs.get("place")
    return place


def _scratch(query: KernelQuery) -> Part:
    return scratch_part(query.outputs[0].shape, _place(query))


def _generator(ctx: BindContext) -> Uniform:
    return Uniform(ctx.attrs["seed"] if ctx.attrs["has_seed"] else ctx.seed)


def _uniform(ctx: BindContext, out: Array, scratch: Array, draw: int = 0) -> Launch:
    """Return a launch that fills a float32 array with uniform numbers for the current step."""
    return drawing(_generator(ctx), out, _place(ctx.query), (scratch,), ctx.step, put, draw)


def _decide_parts(query: KernelQuery) -> tuple[Part, ...]:
    shape = query.outputs[0].shape
    return (shape, np.float32), (shape, np.float32), (shape, np.bool_), _scratch(query)


def _decide(ctx: BindContext, probability: Array) -> Sequence[Launch]:
    """Return launches that draw 1 with a probability (an array or a number), else 0."""
    drawn, limit, decided, scratch = carve(ctx.workspace, *_decide_parts(ctx.query))
    return (
        _uniform(ctx, drawn, scratch),
        partial(np.copyto, limit, probability, casting="same_kind"),
        call(np.less, drawn, limit, out=decided),
        partial(np.copyto, ctx.outputs[0], decided, casting="unsafe"),
    )


def _coin_flip(ctx: BindContext) -> Sequence[Launch]:
    return _decide(ctx, np.array(ctx.attrs["probability"], np.float32))


def _value_parts(query: KernelQuery) -> tuple[Part, ...]:
    drawn = _scratch(query)
    return drawn, drawn, (drawn[0], np.float64)


def _random_values(ctx: BindContext) -> Launch:
    """Compute the values of `flow_core.ir.initializers` from two draws, chunk by chunk."""
    *draws, wide = carve(ctx.workspace, *_value_parts(ctx.query))
    kind, first, last = ctx.attrs["distribution"]
    compute = OF_TWO_DRAWS[kind]
    limit = upper_limit(ctx.attrs["distribution"], ctx.query.outputs[0].dtype)

    def use(u: Array, v: Array, elements: Array) -> None:
        values = wide[: u.size].reshape(u.shape)
        compute(first, last, u, v, values)
        np.copyto(elements, values, casting="unsafe")
        if limit is not None:
            np.minimum(elements, limit, out=elements)

    return drawing(_generator(ctx), ctx.outputs[0], _place(ctx.query), draws, ctx.step, use)


def _permutation_parts(query: KernelQuery) -> tuple[Part, ...]:
    shape = query.outputs[0].shape
    return (shape, np.float32), (shape, np.int64), (shape, np.int64), _scratch(query)


def _permutation(ctx: BindContext) -> Sequence[Launch]:
    """Sort random keys whose low bits are their indices; see the op's reference."""
    drawn, keys, low, scratch = carve(ctx.workspace, *_permutation_parts(ctx.query))
    out, count = ctx.outputs[0], ctx.outputs[0].size
    bits, cut = permutation_layout(count)
    return (
        *_random_bits(ctx, drawn, scratch, keys, 0),
        call(np.left_shift, keys, np.array(24), out=keys),
        *_random_bits(ctx, drawn, scratch, low, 1),
        call(np.bitwise_or, keys, low, out=keys),
        call(np.right_shift, keys, np.array(cut), out=keys),
        call(np.left_shift, keys, np.array(bits), out=keys),
        call(np.bitwise_or, keys, np.arange(count), out=keys),
        keys.sort,
        call(np.bitwise_and, keys, np.array((1 << bits) - 1), out=keys),
        partial(np.copyto, out, keys, casting="same_kind"),
    )


def _random_bits(
    ctx: BindContext, drawn: Array, scratch: Array, bits: Array, draw: int
) -> Sequence[Launch]:
    """Return launches that draw 24 random bits per element, the precision of float32."""
    return (
        _uniform(ctx, drawn, scratch, draw),
        call(np.multiply, drawn, np.array(2**24, np.float32), out=drawn),
        partial(np.copyto, bits, drawn, casting="unsafe"),
    )


KERNELS: tuple[KernelSpec, ...] = (
    kernel("constant", _constant),
    kernel("constant_like", _constant),
    kernel("zero_like", _zeros),
    kernel("range", _range),
    kernel("bernoulli", lambda ctx: _decide(ctx, ctx.inputs[0]), parts=_decide_parts),
    kernel("random_values", _random_values, parts=_value_parts),
    kernel("coin_flip", _coin_flip, parts=_decide_parts),
    kernel("generate_random_batch_permutation_indices", _permutation, parts=_permutation_parts),
)
