"""Helpers that make records of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flow_core.device import Launch
from flow_core.dtypes import DType
from flow_core.ir import TensorType
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec
from flow_cuda.program import C_TYPES

Bind = Callable[[BindContext], Launch | Sequence[Launch]]
Accepts = Callable[[KernelQuery], bool]

ALIGN = 64


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


def padded(nbytes: int) -> int:
    """Bytes with room up to the next multiple of `ALIGN`.

    >>> padded(1), padded(64)
    (64, 64)
    """
    return -(-nbytes // ALIGN) * ALIGN
