"""Kernels of arrays as bytes in parts; each binds one buffer for the bytes of the whole array."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.ops.array.binary_parts import HEADER, filled, held_bytes, joined_shape
from flow_core.ops.array.valid_rows import valid_rows_of_part
from flow_core.plugins.specs import BindContext, KernelSpec


def _split(ctx: BindContext) -> Launch:
    (x, *size), number = ctx.inputs, len(ctx.outputs) // 2
    lead = (slice(None),) * int(ctx.attrs["axis"])
    rows = size[0].reshape(-1) if size else np.array(x.shape[len(lead) : len(lead) + 1])
    data = np.empty(x.ndim * HEADER.itemsize + x.nbytes, np.int8)
    return partial(_fill, x, rows, lead, data, ctx.outputs[:number], ctx.outputs[number:])


def _fill(x: Array, rows: Any, lead: tuple[slice, ...], data: Any, parts: Any, counts: Any) -> None:
    kept = x[(*lead, slice(valid_rows_of_part(0, x.shape[len(lead)], rows[0])))]
    header = x.ndim * HEADER.itemsize
    end = header + kept.nbytes
    data[:header].view(HEADER)[:] = kept.shape
    data[header:end].view(x.dtype).reshape(kept.shape)[:] = kept
    start = 0
    sizes = filled(end, [part.size for part in parts])
    for part, count, size in zip(parts, counts, sizes, strict=True):
        part[:size] = data[start : start + size]
        part[size:] = 0
        count[0] = size
        start += size


def _concat(ctx: BindContext) -> Launch:
    half = len(ctx.inputs) // 2
    parts, counts = ctx.inputs[:half], ctx.inputs[half:]
    data = np.empty(sum(part.size for part in parts), np.int8)
    return partial(_join, parts, counts, ctx.attrs["axis"], data, *ctx.outputs)


def _join(parts: Any, counts: Any, axis: int | None, data: Any, y: Array, number: Array) -> None:
    end = 0
    for part, count in zip(parts, counts, strict=True):
        held = held_bytes(part, count)
        data[end : end + held] = part[:held]
        end += held
    found = joined_shape(data[:end], y.shape, y.itemsize, axis)
    region = tuple(map(slice, found))
    y.fill(0)
    y[region] = data[y.ndim * HEADER.itemsize : end].view(y.dtype).reshape(found)
    number[0] = found[axis or 0]


KERNELS: tuple[KernelSpec, ...] = (
    kernel("dynamic_binary_split", _split),
    kernel("dynamic_binary_concat", _concat),
)
