"""Kernels for conversions between tensors, TensorBuffer and TensorList."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext
from flow_core.base.dtypes import as_dtype
from flow_data.instances import POOL, Array, describe, instance_error, pooled_copy


def to_buffer(ctx: BindContext) -> Launch:
    """Return a launch that copies the parts of a tensor to instances."""
    (x,), (out,) = ctx.inputs, ctx.outputs
    parts = x.reshape(out.size, *x.shape[out.ndim :])
    return partial(_unstack, parts, out.reshape(-1))


def _unstack(parts: Array, out: Array) -> None:
    for i, part in enumerate(parts):
        out[i] = pooled_copy(part)


def to_tensor(ctx: BindContext) -> Launch:
    """Return a launch that stacks instances of one shape."""
    (x,), (out,) = ctx.inputs, ctx.outputs
    target = out.reshape(x.size, *out.shape[x.ndim :])
    return partial(_stack, x.reshape(-1), target)


def _stack(instances: Array, target: Array) -> None:
    wanted, dtype = target.shape[1:], target.dtype
    for i, x in enumerate(instances):
        if x.shape != wanted or x.dtype != dtype:
            raise instance_error(
                "tensor_buffer_to_tensor",
                i,
                describe(x),
                describe(target[i]),
                "resize the instances (flow.image.Resize), or pass the right dtype",
            )
        target[i] = x


def to_list(ctx: BindContext) -> Launch:
    """Return a launch that checks instances against the bound and forwards them."""
    bound, dtype = tuple(ctx.attrs["shape"]), as_dtype(ctx.attrs["dtype"]).numpy
    return partial(_check_list, ctx.inputs[0], ctx.outputs[0], bound, dtype)


def _check_list(instances: Array, out: Array, bound: Sequence[int], dtype: Any) -> None:
    limit = prod(bound)
    for i, x in enumerate(instances):
        if x.dtype != dtype or x.ndim != len(bound) or x.size > limit:
            allowed = f"{dtype}, rank {len(bound)}, at most {limit} elements (shape {bound})"
            raise instance_error(
                "tensor_buffer_to_tensor_list", i, describe(x), allowed, "raise the bound"
            )
        out[i] = x


def split(ctx: BindContext) -> Sequence[Launch]:
    """Return launches that forward each tensor of a list separately."""
    (x,) = ctx.inputs
    return [partial(np.copyto, out, x[i : i + 1]) for i, out in enumerate(ctx.outputs)]


def forward(ctx: BindContext) -> Launch:
    """Return a launch that forwards instances if the plan does not alias input and output."""
    return partial(np.copyto, ctx.outputs[0], ctx.inputs[0])


def generated(ctx: BindContext) -> Launch:
    """Return a launch that writes instances, each filled with one value."""
    (out,), attrs = ctx.outputs, ctx.attrs
    dtype = as_dtype(attrs["data_type"]).numpy
    pairs = list(zip(attrs["shape_list"], attrs["value_list"], strict=True))
    return partial(_generate, out.reshape(-1), pairs, dtype)


def _generate(out: Array, pairs: Sequence[tuple[Sequence[int], float]], dtype: Any) -> None:
    for i, (shape, value) in enumerate(pairs):
        out[i] = POOL.allocate(tuple(shape), dtype)
        out[i].fill(value)


def to_tensors(ctx: BindContext) -> Launch:
    """Return a launch that checks the instances, and copies or forwards each separately."""
    attrs = ctx.attrs
    shape, dtype = tuple(attrs["out_shape"]), as_dtype(attrs["out_dtype"]).numpy
    return partial(_separate, ctx.inputs[0].reshape(-1), ctx.outputs, shape, dtype)


def _separate(instances: Array, outputs: Sequence[Array], shape: Sequence[int], dtype: Any) -> None:
    limit = prod(shape)
    for i, (x, out) in enumerate(zip(instances, outputs, strict=True)):
        is_dynamic = out.dtype == object
        if x.dtype != dtype or (x.size > limit if is_dynamic else x.size != limit):
            amount = "at most" if is_dynamic else "exactly"
            allowed = f"{dtype}, {amount} {limit} elements (shape {tuple(shape)})"
            hint = None if is_dynamic else "pass dynamic_out=True if the sizes differ"
            op = "tensor_buffer_to_list_of_tensors"
            raise instance_error(op, i, describe(x), allowed, hint)
        if is_dynamic:
            out[0] = x
        else:
            np.copyto(out, x.reshape(shape))
