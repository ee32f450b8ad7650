"""Kernels of shape changes: copies between views that are created once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.ops.array.shape import expanded_shape
from flow_core.plugins.batchable import rowwise_in_last
from flow_core.plugins.specs import BindContext, KernelSpec

ALIASED = (
    "reshape", "reshape_like", "flatten", "squeeze", "expand_dims",
    "identity", "amp_white_identity", "cast_to_static_shape",
)  # fmt: skip


def copied(ctx: BindContext) -> Launch:
    """Copy the input; this is needed only if the plan could not alias input and output."""
    out = ctx.outputs[0]
    return partial(np.copyto, out, ctx.inputs[0].reshape(out.shape))


def _copies(ctx: BindContext) -> Sequence[Launch]:
    return tuple(partial(np.copyto, *pair) for pair in zip(ctx.outputs, ctx.inputs, strict=True))


def _transpose(ctx: BindContext) -> Launch:
    return partial(np.copyto, ctx.outputs[0], ctx.inputs[0].transpose(ctx.attrs["perm"]))


def _broadcast(ctx: BindContext) -> Launch:
    x, out = ctx.inputs[0], ctx.outputs[0]
    shape = expanded_shape(x.shape, out.shape, ctx.attrs.get("broadcast_axes", ()))
    return partial(np.copyto, out, x.reshape(shape))


KERNELS: tuple[KernelSpec, ...] = (
    *(kernel(op, copied) for op in ALIASED),
    kernel("tuple_identity", _copies),
    kernel("transpose", _transpose),
    kernel("broadcast_to", _broadcast),
    kernel("broadcast_like", _broadcast, batchable=rowwise_in_last),
)
