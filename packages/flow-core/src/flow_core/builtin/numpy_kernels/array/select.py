"""Kernels of concat, split and slices: copies between views that are created once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import kernel, scalar
from flow_core.device import Launch
from flow_core.ops.array.select import offsets, regions
from flow_core.plugins.specs import BindContext, KernelSpec


def copy(target: Array, source: Array) -> Launch:
    """Return a launch that copies between two arrays of the same shape and element type."""
    return partial(np.copyto, target, source)


def fill(target: Array, value: Any) -> Launch:
    """Return a launch that fills an array with a number."""
    return partial(np.copyto, target, scalar(value, target))


def same_memory(x: Array, y: Array) -> bool:
    """Return whether two arrays of the same type and shape start at the same address."""
    return bool(x.ctypes.data == y.ctypes.data)


def copied(out: Array, x: Array) -> tuple[Launch, ...]:
    """Return a launch that copies ``x`` to ``out``, or no launch if ``out`` aliases ``x``."""
    return () if same_memory(out, x) else (copy(out, x),)


def _regions(whole: Array, parts: Sequence[Array], axis: int) -> Iterator[Array]:
    """Yield the views of ``whole`` that correspond to consecutive parts along an axis."""
    lead = (slice(None),) * axis
    for part, start in zip(parts, offsets([p.shape[axis] for p in parts]), strict=True):
        yield whole[(*lead, slice(start, start + part.shape[axis]))]


def _concat(ctx: BindContext) -> Sequence[Launch]:
    views = _regions(ctx.outputs[0], ctx.inputs, ctx.attrs["axis"])
    return tuple(map(copy, views, ctx.inputs))


def _split(ctx: BindContext) -> Sequence[Launch]:
    views = _regions(ctx.inputs[0], ctx.outputs, ctx.attrs["axis"])
    return tuple(map(copy, ctx.outputs, views))


def _slice(ctx: BindContext) -> Sequence[Launch]:
    (x,), (out,) = ctx.inputs, ctx.outputs
    own, part = regions(x.shape, ctx.attrs)
    taken = copy(out[part], x[own])
    return (taken,) if out[part].size == out.size else (fill(out, 0), taken)


def _slice_grad(ctx: BindContext) -> Sequence[Launch]:
    (dy, _), (dx,) = ctx.inputs, ctx.outputs
    own, part = regions(dx.shape, ctx.attrs)
    return fill(dx, 0), copy(dx[own], dy[part])


def _slice_update(ctx: BindContext) -> Sequence[Launch]:
    (x, update), (y,) = ctx.inputs, ctx.outputs
    own, part = regions(y.shape, ctx.attrs)
    return (*copied(y, x), copy(y[own], update[part]))


def _slice_assign(ctx: BindContext) -> Launch:
    ref, value = ctx.inputs
    own, part = regions(ref.shape, ctx.attrs)
    return copy(ref[own], value[part])


KERNELS: tuple[KernelSpec, ...] = (
    kernel("concat", _concat),
    kernel("split", _split),
    kernel("split_like", _split),
    kernel("slice", _slice),
    kernel("logical_slice", _slice),
    kernel("slice_grad", _slice_grad),
    kernel("slice_update", _slice_update),
    kernel("logical_slice_assign", _slice_assign),
)
