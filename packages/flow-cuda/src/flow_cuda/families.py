"""The kernel families, imported when kernels are registered."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from flow_core.authoring.specs import KernelSpec

FAMILIES = (
    "elementwise", "rows", "norm", "reduce", "move", "draw", "update", "index", "matmul", "window",
    "order", "dnn",
)  # fmt: skip


def kernels() -> Iterator[KernelSpec]:
    """Yield the kernels of all families."""
    for family in FAMILIES:
        yield from importlib.import_module(f"flow_cuda.kernels.{family}").KERNELS
