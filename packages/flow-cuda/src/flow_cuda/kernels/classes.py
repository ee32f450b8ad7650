"""Kernels that sample classes, for classifiers with very many classes."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import Read, Write, call, host_number
from flow_cuda.kernels.binding import (
    BufferSpec,
    buffer_bytes,
    c_type,
    collect_launches,
    kernel,
    split_workspace,
)
from flow_cuda.kernels.draw import HEADER, key
from flow_cuda.kernels.move import UNSIGNED, fill_array
from flow_cuda.kernels.order import Sorting

INDEX = "index.h"


def _extent(query: KernelQuery, rows: int) -> tuple[int, int, int, int]:
    """Return the sizes that describe the ranges of classes on this device.

    They are the number of ranges, the classes and samples per range, and the first class.
    """
    attrs: Any = query.attrs
    size = (rows if attrs["classes"] is None else attrs["classes"]) // attrs["parts"]
    return rows // size, size, attrs["num_sample"] // attrs["parts"], attrs["first"]


def _sorting(query: KernelQuery) -> Sorting:
    ranges, size, *_ = _extent(query, query.inputs[0].shape[0])
    return Sorting(ranges, size, "u32", 32)


def _buffers(query: KernelQuery) -> tuple[BufferSpec, ...]:
    return (((query.inputs[0].shape[0],), np.int32), *_sorting(query).buffers)


def _sample(ctx: BindContext) -> Iterator[Launch]:
    (weight, label), (place, chosen, rows) = ctx.inputs, ctx.outputs
    ranges, size, share, first = _extent(ctx.query, weight.shape[0])
    how, kind = _sorting(ctx.query), (c_type(ctx.query.inputs[1]),)
    marks, *buffers = split_workspace(ctx.workspace, _buffers(ctx.query))
    launches, _, order = how.order(tuple(buffers))
    step, seed = host_number(weight.hardware, ctx.step), ctx.attrs["seed"]
    count = (label.size, ranges * size, first)
    yield from fill_array(marks, 0)
    yield call("mark_labels", HEADER, kind, Read(label), marks, *count, items=label.size)
    yield call(
        "class_keys", HEADER, (), Read(step.device), Read(marks), Write(buffers[0], "u32"),
        *count[1:], key(ctx.seed if seed is None else seed), items=count[1], numbers=(step,),
    )  # fmt: skip
    yield from launches
    values = (Read(order), chosen, ranges, size, share, first)
    yield call("sampled_classes", HEADER, kind, *values, items=chosen.size)
    places = (Read(label), place, label.size, size, share)
    yield call("sampled_places", HEADER, kind, *places, items=label.size)
    yield from _rows(ctx, weight, chosen, rows, first)


def _rows(
    ctx: BindContext, weight: DeviceArray, chosen: DeviceArray, rows: DeviceArray, first: int
) -> Iterator[Launch]:
    """Gather the weights of the sampled classes."""
    unit = UNSIGNED[weight.itemsize]
    extent = (1, weight.shape[0], prod(weight.shape[1:]), chosen.size, first, 0)
    if rows.size:
        values = (Read(weight, unit), Read(chosen), Write(rows, unit), *extent)
        types = (unit, c_type(ctx.query.inputs[1]))
        yield call("gather", INDEX, types, *values, items=rows.size)


def _grad(ctx: BindContext) -> Iterator[Launch]:
    """Scatter the gradients of sampled rows to the weights' rows; all indices are distinct."""
    (dy, chosen, _), (dx,) = ctx.inputs, ctx.outputs
    ranges, size, share, first = _extent(ctx.query, dx.shape[0])
    unit = UNSIGNED[dx.itemsize]
    yield from fill_array(dx, 0)
    if dy.size:
        extent = (ranges, size, share, prod(dx.shape[1:]), first)
        values = (Read(dy, unit), Read(chosen), Write(dx, unit), *extent)
        types = (unit, c_type(ctx.query.inputs[1]))
        yield call("put_sampled", HEADER, types, *values, items=dy.size)


KERNELS: tuple[KernelSpec, ...] = (
    kernel(
        "distributed_partial_fc_sample", collect_launches(_sample), None,
        lambda query: buffer_bytes(_buffers(query)),
    ),
    kernel("distributed_partial_fc_sample_grad", collect_launches(_grad)),
)  # fmt: skip
