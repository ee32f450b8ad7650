"""Helpers to define kernel specs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec, TensorType
from flow_core.base import alignment
from flow_core.base.dtypes import DType
from flow_cuda.codegen.elementwise import VECTOR
from flow_cuda.codegen.program import C_TYPES
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import KernelLaunch, call
from flow_cuda.plugin import ALIGNMENT

WARP = 32
"""The number of threads of a warp."""
HELD = 32
"""The number of elements of a row that a thread keeps in registers at most."""

Bind = Callable[[BindContext], Launch | Sequence[Launch]]
Accepts = Callable[[KernelQuery], bool]


def kernel(
    op: str,
    bind: Bind,
    accepts: Accepts | None = None,
    workspace: Callable[[KernelQuery], int] | None = None,
) -> KernelSpec:
    """Return the spec of a GPU kernel that accepts numeric types only."""

    def takes(query: KernelQuery) -> bool:
        return are_numbers(query) and (accepts is None or accepts(query))

    return KernelSpec(op, "gpu", bind, takes, 0, workspace, f"cuda.{op}")


def are_numbers(query: KernelQuery) -> bool:
    """Whether all element types of a query have a C++ type."""
    return all(dtype.name in C_TYPES for dtype in query.dtypes)


def c_type(type_: TensorType | DType) -> str:
    """Return the C++ name of an element type."""
    return C_TYPES[(type_.dtype if isinstance(type_, TensorType) else type_).name]


def aligned(nbytes: int) -> int:
    """Round a size up to a multiple of the alignment of GPU memory."""
    return alignment.aligned(nbytes, ALIGNMENT)


def vector_width(sizes: Sequence[int], arrays: Sequence[DeviceArray]) -> int:
    """Return how many adjacent elements one instruction can move, at most 16 bytes of the first.

    The number divides all sizes, and the bytes of so many elements of an array divide its address.
    """
    width: int = VECTOR // arrays[0].dtype.itemsize
    while any(n % width for n in sizes) or any(
        a.address % (width * a.dtype.itemsize) for a in arrays
    ):
        width //= 2
    return width


def call_rows(
    function: str,
    header: str,
    # The other template arguments behind the element type, which is the first one.
    types: Sequence[str],
    # Arrays whose rows are read or written in vectors, first those of the element type.
    arrays: Sequence[DeviceArray],
    *values: Any,  # the arguments; see `flow_cuda.device.launch.call`
    # The number of rows, the length of a row, and the stride of its elements.
    extent: tuple[int, int, int],
    sizes: Sequence[int] = (),  # other sizes that the width of a vector must divide
) -> KernelLaunch:
    """Build a launch of a function on rows; see `source/row.h`."""
    hardware = arrays[0].hardware
    lanes, (rows, n, inner) = min(WARP, hardware.threads), extent
    width = vector_width((n, *sizes), arrays) if inner == 1 else 1
    held = -(-n // (lanes * width)) if inner == 1 and n <= lanes * HELD else 0
    items = -(-rows // (hardware.threads // lanes)) if held else rows
    given = (types[0], str(held), str(width), *types[1:])
    return call(function, ("row.h", header), given, *values, items=items, blocks=True)


BufferSpec = tuple[tuple[int, ...], Any]
"""The shape and element type of an array in a workspace."""


def buffer_bytes(buffers: Sequence[BufferSpec]) -> int:
    """Return the total size in bytes of consecutive, aligned arrays.

    >>> buffer_bytes([((3,), np.float32), ((1,), np.int64)])
    512
    """
    return sum(aligned(prod(shape) * np.dtype(dtype).itemsize) for shape, dtype in buffers)


def split_workspace(workspace: DeviceArray, buffers: Sequence[BufferSpec]) -> Iterator[DeviceArray]:
    """Split a workspace into consecutive arrays."""
    offset = 0
    for shape, dtype in buffers:
        yield workspace.part(offset, shape, dtype)
        offset += buffer_bytes([(shape, dtype)])


def collect_launches(bind: Callable[[BindContext], Iterator[Launch]]) -> Bind:
    """Turn a generator of launches into a bind function."""
    return lambda ctx: tuple(bind(ctx))
