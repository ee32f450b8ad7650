"""Kernels of gather and segment sum along one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flow_core.builtin.numpy_kernels.array.row_index import (
    Addressing,
    add_rows,
    adding_bytes,
    along_axis,
    numbers_bytes,
    per_batch,
    per_element,
    row_numbers,
    take_rows,
)
from flow_core.builtin.numpy_kernels.array.select import fill
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.builtin.numpy_kernels.widening import widened
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

Address = Callable[[KernelQuery], Addressing]


@dataclass(frozen=True, slots=True)
class Scatter:
    """Description of an op that adds rows of an input to an output that starts with zeros."""

    op: str
    address: Address  # returns the mapping from indices to rows of the output
    data: int  # position of the input whose rows are added
    index: int  # position of the input with the indices


def gather_kernel(op: str, address: Address) -> KernelSpec:
    """Return the kernel of an op that reads rows of input 0 at the indices in input 1."""

    def bind(ctx: BindContext) -> Sequence[Launch]:
        (table, index), addressing = ctx.inputs, address(ctx.query)
        numbers = row_numbers(addressing, index, ctx.workspace)
        return take_rows(table, addressing, numbers, ctx.outputs[0])

    return kernel(op, bind, workspace=lambda query: numbers_bytes(address(query)))


def scatter_kernel(row: Scatter) -> KernelSpec:
    """Return the kernel of an op that adds rows to zeros; 16-bit types are summed in float32."""

    def bind(ctx: BindContext) -> Sequence[Launch]:
        addressing, out = row.address(ctx.query), ctx.outputs[0]
        numbers = row_numbers(addressing, ctx.inputs[row.index], ctx.workspace)
        data = ctx.inputs[row.data]
        return (fill(out, 0), *add_rows(data, addressing, numbers, out, ctx.workspace))

    return widened(row.op, bind, workspace=lambda query: adding_bytes(row.address(query)))


def _gather(query: KernelQuery) -> Addressing:
    table, index = query.inputs
    return along_axis(table.shape, query.attrs["axis"], index.size, query.attrs["first"])


def _batch_gather(query: KernelQuery) -> Addressing:
    table, index = query.inputs
    return per_batch(table.shape, index.shape, query.attrs["first"])


def _dim_gather(query: KernelQuery) -> Addressing:
    table, index = query.inputs
    return per_element(table.shape, query.attrs["dim"], index.shape, query.attrs["first"])


def _segments(query: KernelQuery) -> Addressing:
    attrs, count = query.attrs, query.inputs[1].size
    return along_axis(query.outputs[0].shape, attrs["axis"], count, attrs["first"])


def _batch_segments(query: KernelQuery) -> Addressing:
    return per_batch(query.outputs[0].shape, query.inputs[1].shape, query.attrs["first"])


def _dim_scatter(query: KernelQuery) -> Addressing:
    attrs, index = query.attrs, query.inputs[2].shape
    return per_element(query.outputs[0].shape, attrs["dim"], index, attrs["first"])


KERNELS: tuple[KernelSpec, ...] = (
    gather_kernel("gather", _gather),
    gather_kernel("batch_gather", _batch_gather),
    gather_kernel("dim_gather", _dim_gather),
    scatter_kernel(Scatter("unsorted_segment_sum", _segments, data=0, index=1)),
    scatter_kernel(Scatter("unsorted_segment_sum_like", _segments, data=0, index=1)),
    scatter_kernel(Scatter("unsorted_batch_segment_sum", _batch_segments, data=0, index=1)),
    scatter_kernel(Scatter("dim_scatter_add_like", _dim_scatter, data=1, index=2)),
)
