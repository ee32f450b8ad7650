"""The op families of core, as a plugin."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from flow_core.plugins.specs import OpSpec

FLOW_PLUGIN_API = "1.0"

FAMILIES: tuple[str, ...] = (
    "unary", "activation", "binary", "reduce", "convert", "matmul", "softmax", "norm", "dropout",
    "conv", "pool", "upsample", "shape", "pad", "select", "index", "scatter", "sort", "unique",
    "counted", "partial_fc", "quantize",
    "source", "optim", "summed_updates", "indexed_updates", "schedules", "variable", "ssp",
    "summary", "io", "fused", "boxing", "python_kernel",
    "parallel_cast", "mirrored",
)  # fmt: skip
"""Modules of `flow_core.ops` with ``OPS``, and of the numpy kernels with ``KERNELS``."""


def flow_register_ops() -> Iterator[OpSpec]:
    """The ops of all families."""
    for family in FAMILIES:
        yield from importlib.import_module(f"flow_core.ops.{family}").OPS
