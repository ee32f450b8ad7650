"""Kernels that draw random numbers from seed, step and element index."""

from __future__ import annotations

from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelSpec
from flow_cuda.device.launch import Bits, Float32, Read, Struct, call, host_number, space, strides
from flow_cuda.kernels.binding import kernel
from flow_cuda.kernels.move import contiguous

HEADER = "random.h"
DRAWS = 8
"""The number of elements that one block of Philox gives."""


def _box(ctx: BindContext) -> tuple[Any, ...]:
    """Return the local part's shape, its strides in the logical tensor, and its first element."""
    shape = ctx.query.outputs[0].shape
    place: Any = ctx.attrs["place"]
    whole, low = place or (shape, (0,) * len(shape))
    steps = contiguous(whole)
    first = sum(a * b for a, b in zip(low, steps, strict=True))
    return Struct("Space", space(shape)), Struct("Strides", strides(steps)), first


def _is_row(ctx: BindContext) -> bool:
    """Whether the elements of the local part are adjacent in the logical tensor."""
    shape = ctx.query.outputs[0].shape
    place: Any = ctx.attrs["place"]
    longer = [i for i, n in enumerate(shape) if n != 1]
    whole = place[0] if place else shape
    return tuple(whole[i] for i in longer[1:]) == tuple(shape[i] for i in longer[1:]) and all(
        whole[i] == 1 for i in range(longer[0] + 1, len(shape)) if longer and i not in longer
    )


def _mask(ctx: BindContext) -> Launch:
    (keep,), seed = ctx.outputs, ctx.attrs["seed"]
    step = host_number(keep.hardware, ctx.step)
    bits = Bits(((ctx.seed if seed is None else seed) or 0) & (1 << 64) - 1)
    box, rate = _box(ctx), Float32(ctx.attrs["rate"])
    if _is_row(ctx) and box[2] % DRAWS == 0 and keep.address % DRAWS == 0:
        values = (Read(step.device), keep, keep.size, box[2], bits, rate)
        items = -(-keep.size // DRAWS)
        return call("random_mask_row", HEADER, (), *values, items=items, numbers=(step,))
    values = (Read(step.device), keep, *box, bits, rate)
    return call("random_mask", HEADER, (), *values, items=keep.size, numbers=(step,))


KERNELS: tuple[KernelSpec, ...] = (kernel("random_mask_like", _mask),)
