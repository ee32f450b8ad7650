"""Kernels between tensors, TensorBuffer and TensorList."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext
from flow_core.base.dtypes import as_dtype
from flow_data.instances import Array, copied, describe, fail


def to_buffer(ctx: BindContext) -> Launch:
    """Takes a tensor apart; instances get memory of their own."""
    (x,), (out,) = ctx.inputs, ctx.outputs
    parts = x.reshape(out.size, *x.shape[out.ndim :])
    return partial(_take_apart, parts, out.reshape(-1))


def _take_apart(parts: Array, out: Array) -> None:
    for i, part in enumerate(parts):
        out[i] = copied(part)


def to_tensor(ctx: BindContext) -> Launch:
    """Puts instances of one shape together."""
    (x,), (out,) = ctx.inputs, ctx.outputs
    target = out.reshape(x.size, *out.shape[x.ndim :])
    return partial(_put_together, x.reshape(-1), target)


def _put_together(instances: Array, target: Array) -> None:
    wanted, dtype = target.shape[1:], target.dtype
    for i, x in enumerate(instances):
        if x.shape != wanted or x.dtype != dtype:
            raise fail(
                "tensor_buffer_to_tensor",
                i,
                describe(x),
                describe(target[i]),
                "make the instances equal (flow.image.Resize), or say the right dtype",
            )
        target[i] = x


def to_list(ctx: BindContext) -> Launch:
    """Hands instances on that are within the bound."""
    bound, dtype = tuple(ctx.attrs["shape"]), as_dtype(ctx.attrs["dtype"]).numpy
    return partial(_check_list, ctx.inputs[0], ctx.outputs[0], bound, dtype)


def _check_list(instances: Array, out: Array, bound: Sequence[int], dtype: Any) -> None:
    most = prod(bound)
    for i, x in enumerate(instances):
        if x.dtype != dtype or x.ndim != len(bound) or x.size > most:
            allowed = f"{dtype}, rank {len(bound)}, at most {most} elements (shape {bound})"
            raise fail("tensor_buffer_to_tensor_list", i, describe(x), allowed, "raise the bound")
        out[i] = x


def split(ctx: BindContext) -> Sequence[Launch]:
    """Hands each tensor of a list on by itself."""
    (x,) = ctx.inputs
    return [partial(np.copyto, out, x[i : i + 1]) for i, out in enumerate(ctx.outputs)]


def hand_on(ctx: BindContext) -> Launch:
    """Hands all instances on, where the op is not resolved to the same memory."""
    return partial(np.copyto, ctx.outputs[0], ctx.inputs[0])
