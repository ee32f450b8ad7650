"""Softmax and its gradient as C loops over rows.

The library's softmax is not used, because it returns finite numbers for rows with NaN or infinity,
and has a gradient for AVX-512 only.
"""

from __future__ import annotations

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_onednn.kernels.loops import pointer, upcast_loop_kernel
from flow_onednn.kernels.upcast import RowLoop
from flow_onednn.native.calls import call


def _over_rows(query: KernelQuery) -> bool:
    """Return whether softmax is taken over the last axis of a float32 array."""
    x, axis = query.inputs[0], query.attrs["axis"]
    return x.dtype.name == "float32" and axis % len(x.shape) == len(x.shape) - 1


def _bind(ctx: BindContext) -> Launch:
    (x,), (y,) = ctx.inputs, ctx.outputs
    columns = x.shape[-1]
    return call("softmax", pointer(x), pointer(y), x.size // columns, columns)


def _bind_grad(ctx: BindContext) -> Launch:
    (y, dy), (dx,) = ctx.inputs, ctx.outputs
    arrays, columns = map(pointer, (y, dy, dx)), y.shape[-1]
    return call("softmax_grad", *arrays, y.size // columns, columns)


def _rows(query: KernelQuery) -> int:
    return query.inputs[0].size // query.inputs[0].shape[-1]


KERNELS: tuple[KernelSpec, ...] = (
    upcast_loop_kernel("softmax", _bind, _over_rows, rows=RowLoop(_rows, 2, (0,), (1,))),
    upcast_loop_kernel(
        "softmax_grad", _bind_grad, _over_rows, rows=RowLoop(_rows, 3, (0, 1), (2,))
    ),
)
