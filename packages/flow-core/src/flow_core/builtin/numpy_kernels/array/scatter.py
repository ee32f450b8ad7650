"""Kernels of gather and scatter at n-dimensional positions."""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.builtin.numpy_kernels.array.index import Scatter, gather_kernel, scatter_kernel
from flow_core.builtin.numpy_kernels.array.row_index import (
    Addressing,
    add_rows,
    adding_bytes,
    at_positions,
    numbers_bytes,
    put_rows,
    row_numbers,
)
from flow_core.builtin.numpy_kernels.array.select import copied
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.builtin.numpy_kernels.widening import widened
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec


def _gather_nd(query: KernelQuery) -> Addressing:
    return at_positions(query.inputs[0].shape, query.inputs[1].shape, query.attrs["first"])


def _scatter_nd(query: KernelQuery) -> Addressing:
    return at_positions(query.outputs[0].shape, query.inputs[0].shape, query.attrs["first"])


def _scatter_nd_like(query: KernelQuery) -> Addressing:
    return at_positions(query.outputs[0].shape, query.inputs[1].shape, query.attrs["first"])


def _tensor_scatter(query: KernelQuery) -> Addressing:
    return at_positions(query.outputs[0].shape, query.inputs[2].shape, query.attrs["first"])


def _tensor_scatter_add(ctx: BindContext) -> Sequence[Launch]:
    (params, updates, index), (out,) = ctx.inputs, ctx.outputs
    addressing = _tensor_scatter(ctx.query)
    numbers = row_numbers(addressing, index, ctx.workspace)
    return (*copied(out, params), *add_rows(updates, addressing, numbers, out, ctx.workspace))


def _tensor_scatter_update(ctx: BindContext) -> Sequence[Launch]:
    (params, updates, index), (out,) = ctx.inputs, ctx.outputs
    addressing = _tensor_scatter(ctx.query)
    numbers = row_numbers(addressing, index, ctx.workspace)
    return (*copied(out, params), *put_rows(updates, addressing, numbers, out))


KERNELS: tuple[KernelSpec, ...] = (
    gather_kernel("gather_nd", _gather_nd),
    scatter_kernel(Scatter("scatter_nd", _scatter_nd, data=1, index=0)),
    scatter_kernel(Scatter("scatter_nd_like", _scatter_nd_like, data=2, index=1)),
    widened(
        "tensor_scatter_nd_add",
        _tensor_scatter_add,
        workspace=lambda query: adding_bytes(_tensor_scatter(query)),
    ),
    kernel(
        "tensor_scatter_nd_update",
        _tensor_scatter_update,
        workspace=lambda query: numbers_bytes(_tensor_scatter(query)),
    ),
)
