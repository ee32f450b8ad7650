"""Helpers that make records of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec, TensorType
from flow_core.base.alignment import aligned
from flow_core.base.dtypes import DType
from flow_cuda.codegen.program import C_TYPES
from flow_cuda.device.arrays import DeviceArray

Bind = Callable[[BindContext], Launch | Sequence[Launch]]
Accepts = Callable[[KernelQuery], bool]


def kernel(
    op: str,
    bind: Bind,
    accepts: Accepts | None = None,
    workspace: Callable[[KernelQuery], int] | None = None,
) -> KernelSpec:
    """The record of a kernel; it takes numbers only."""

    def takes(query: KernelQuery) -> bool:
        return are_numbers(query) and (accepts is None or accepts(query))

    return KernelSpec(op, "gpu", bind, takes, 0, workspace, f"cuda.{op}")


def are_numbers(query: KernelQuery) -> bool:
    """Whether all types have elements that C++ knows."""
    return all(dtype.name in C_TYPES for dtype in query.dtypes)


def c_type(type_: TensorType | DType) -> str:
    """Elements of a type in C++."""
    return C_TYPES[(type_.dtype if isinstance(type_, TensorType) else type_).name]


Room = tuple[tuple[int, ...], Any]
"""Shape and element type of an array in a workspace."""


def room_bytes(rooms: Sequence[Room]) -> int:
    """Bytes of arrays side by side.

    >>> room_bytes([((3,), np.float32), ((1,), np.int64)])
    128
    """
    return sum(aligned(prod(shape) * np.dtype(dtype).itemsize) for shape, dtype in rooms)


def carve(workspace: DeviceArray, rooms: Sequence[Room]) -> Iterator[DeviceArray]:
    """The arrays that lie side by side in a workspace."""
    offset = 0
    for shape, dtype in rooms:
        yield workspace.part(offset, shape, dtype)
        offset += room_bytes([(shape, dtype)])


def listed(bind: Callable[[BindContext], Iterator[Launch]]) -> Bind:
    """A bind that collects what another one yields."""
    return lambda ctx: tuple(bind(ctx))
