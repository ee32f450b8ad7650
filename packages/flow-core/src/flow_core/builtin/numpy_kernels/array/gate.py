"""The kernel of `flow_core.ops.array.gate`, for plans that cannot alias input and output."""

from __future__ import annotations

from flow_core.builtin.numpy_kernels.array.shape import copied
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.plugins.specs import KernelSpec

KERNELS: tuple[KernelSpec, ...] = (kernel("gradient_gate", copied),)
