"""Helpers that turn numpy calls on fixed arrays into launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.builtin.calls import call
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

Bind = Callable[[BindContext], Launch | Sequence[Launch]]
Rows = Callable[[KernelQuery, Sequence[KernelQuery]], bool]

ALIGN = 64


def scalar(value: float, like: Any) -> Any:
    """A 0-d array of an array's element type."""
    return np.array(value).astype(like.dtype)  # wraps numbers that the type does not have


def carve(workspace: Array, *parts: tuple[tuple[int, ...], DTypeLike]) -> tuple[Array, ...]:
    """Aligned views of a workspace, one per (shape, dtype)."""
    views, offset = [], 0
    for shape, dtype in parts:
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        views.append(workspace[offset : offset + nbytes].view(dtype).reshape(shape))
        offset += -(-nbytes // ALIGN) * ALIGN
    return tuple(views)


def carved_bytes(*parts: tuple[tuple[int, ...], DTypeLike]) -> int:
    """The size of workspace that `carve` needs for the same parts."""
    return sum(
        -(-prod(shape) * np.dtype(dtype).itemsize // ALIGN) * ALIGN for shape, dtype in parts
    )


def kernel(
    op: str,
    bind: Bind,
    *,
    accepts: Callable[[KernelQuery], bool] | None = None,
    workspace: Callable[[KernelQuery], int] | None = None,
    rows: Rows | None = None,
) -> KernelSpec:
    """A numpy `KernelSpec`."""
    return KernelSpec(op, "cpu", bind, accepts, 0, workspace, f"numpy.{op}", rows)


def ufunc_kernel(op: str, function: Callable[..., object]) -> KernelSpec:
    """The kernel of an op that is one ufunc of all its inputs."""
    return kernel(op, lambda ctx: call(function, *ctx.inputs, out=ctx.outputs[0]))
