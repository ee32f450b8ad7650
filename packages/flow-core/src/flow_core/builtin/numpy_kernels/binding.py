"""Helpers that bind NumPy calls to fixed arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.alignment import aligned
from flow_core.base.arrays import Array
from flow_core.builtin.calls import call
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

Bind = Callable[[BindContext], Launch | Sequence[Launch]]
Part = tuple[tuple[int, ...], Any]
"""The shape and the numpy type of a part of a workspace."""
PartsOf = Callable[[KernelQuery], Iterable[Part]]
Batchable = Callable[[KernelQuery, Sequence[KernelQuery]], bool]


def scalar(value: float, like: Any) -> Any:
    """Return ``value`` as a 0-d array with the element type of ``like``."""
    return np.array(value).astype(like.dtype)  # wraps values outside of the type's range


def carve(workspace: Array, *parts: tuple[tuple[int, ...], DTypeLike]) -> tuple[Array, ...]:
    """Return aligned views of a workspace, one per (shape, dtype)."""
    views, offset = [], 0
    for shape, dtype in parts:
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        views.append(workspace[offset : offset + nbytes].view(dtype).reshape(shape))
        offset += aligned(nbytes)
    return tuple(views)


def carved_bytes(*parts: tuple[tuple[int, ...], DTypeLike]) -> int:
    """Return the workspace size in bytes that `carve` needs for the same parts."""
    return sum(aligned(prod(shape) * np.dtype(dtype).itemsize) for shape, dtype in parts)


def carved(parts: PartsOf) -> Callable[[KernelQuery], int]:
    """Return the function that returns the workspace size in bytes for given parts."""
    return lambda query: carved_bytes(*parts(query))


def kernel(
    op: str,
    bind: Bind,
    *,
    accepts: Callable[[KernelQuery], bool] | None = None,
    workspace: Callable[[KernelQuery], int] | None = None,
    parts: PartsOf | None = None,
    batchable: Batchable | None = None,
) -> KernelSpec:
    """Return the spec of a NumPy kernel, with the bytes or with the parts of its workspace."""
    workspace = carved(parts) if parts else workspace
    return KernelSpec(op, "cpu", bind, accepts, 0, workspace, f"numpy.{op}", batchable)


def ufunc_kernel(op: str, function: Callable[..., object]) -> KernelSpec:
    """Return the kernel of an op that applies one ufunc to all its inputs."""
    return kernel(op, lambda ctx: call(function, *ctx.inputs, out=ctx.outputs[0]))
