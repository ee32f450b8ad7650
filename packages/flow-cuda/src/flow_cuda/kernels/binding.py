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
from flow_cuda.codegen.program import C_TYPES
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.plugin import ALIGNMENT

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
