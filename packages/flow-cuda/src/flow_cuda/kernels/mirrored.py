"""Kernels of casts between consistent and mirrored view on one device, and of ring buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import (
    BindContext,
    Broadcast,
    KernelQuery,
    KernelSpec,
    Partial,
    Region,
    coordinates,
    local_region,
    parse_nd_sbp,
    region_shape,
)
from flow_cuda.codegen.elementwise import AXES
from flow_cuda.device.launch import Read, Struct, Write, call, space, strides
from flow_cuda.kernels.binding import c_type, collect_launches, kernel
from flow_cuda.kernels.move import UNSIGNED, contiguous, fill_array, move_box

HEADER = "move.h"


def _parts(shape: Sequence[int], attrs: Any, kind: type) -> Iterator[tuple[bool, Region]]:
    """Yield, for each rank, whether its copy of the region is used, and the region.

    Along each dimension whose SBP is an instance of ``kind``, the copy of the first rank is used.
    """
    nd, hierarchy = parse_nd_sbp(attrs["sbp"]), attrs["hierarchy"]
    for rank in range(prod(hierarchy)):
        where = coordinates(rank, hierarchy)
        first = not any(c and isinstance(s, kind) for c, s in zip(where, nd, strict=True))
        yield first, local_region(tuple(shape), nd, hierarchy, rank)


def _start(region: Region, steps: Sequence[int]) -> int:
    return sum(low * step for (low, _), step in zip(region, steps, strict=True))


def _to_mirrored(ctx: BindContext) -> Iterator[Launch]:
    """Yield copies of parts; partial sums go to the first rank, and the other ranks get zeros."""
    (x,) = ctx.inputs
    steps = contiguous(x.shape)
    for y, (first, region) in zip(ctx.outputs, _parts(x.shape, ctx.attrs, Partial), strict=True):
        if first:
            sizes = region_shape(region)
            yield from move_box(x, y, sizes, (steps, contiguous(sizes)), (_start(region, steps), 0))
        else:
            yield from fill_array(y, 0)


def _from_mirrored(ctx: BindContext) -> Iterator[Launch]:
    """Yield launches that add up the regions of ranks; only one broadcast copy is added."""
    (y,) = ctx.outputs
    steps = contiguous(y.shape)
    yield from fill_array(y, 0)
    for x, (first, region) in zip(ctx.inputs, _parts(y.shape, ctx.attrs, Broadcast), strict=True):
        if first and x.size:
            values = (
                Read(x), y, Struct("Space", space(x.shape)),
                Struct("Strides", strides(contiguous(x.shape))),
                Struct("Strides", strides(steps)), _start(region, steps),
            )  # fmt: skip
            yield call("add_box", HEADER, (c_type(ctx.query.outputs[0]),), *values, items=x.size)


def _rank_fits(query: KernelQuery) -> bool:
    return len(query.inputs[0].shape) <= AXES


def _take_turn(ctx: BindContext) -> Iterator[Launch]:
    (x, ring, count), (y,) = ctx.inputs, ctx.outputs
    unit = UNSIGNED[x.itemsize]
    if x.size:
        values = (Read(x, unit), Write(ring, unit), Read(count), Write(y, unit), x.size)
        yield call("take_turn", HEADER, (unit,), *values, ring.shape[0], items=x.size)
    yield call("advance", "update.h", (), count, items=1)


KERNELS: tuple[KernelSpec, ...] = (
    kernel("cast_to_mirrored", collect_launches(_to_mirrored), _rank_fits),
    kernel("cast_from_mirrored", collect_launches(_from_mirrored), _rank_fits),
    kernel("ssp_variable_proxy", collect_launches(_take_turn)),
)
