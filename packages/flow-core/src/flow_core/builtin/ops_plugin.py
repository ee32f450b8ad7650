"""Plugin of the op families of the core."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from flow_core.plugins.specs import OpSpec

FLOW_PLUGIN_API = "1.0"

FAMILIES: tuple[str, ...] = (
    "math.unary", "nn.activation", "math.binary", "math.reduce", "math.convert", "math.matmul",
    "control.scan", "control.cond",
    "nn.softmax", "nn.ctc_loss", "nn.norm", "nn.dropout", "nn.recurrent", "nn.experts",
    "nn.conv", "nn.pool", "nn.upsample", "array.shape", "array.pad", "array.select",
    "array.index", "array.scatter", "array.sort", "array.cumulative", "array.unique",
    "array.valid_rows", "array.binary_parts", "nn.partial_fc", "nn.quantize",
    "nn.linear_quantize", "array.source", "training.optim", "training.summed_updates",
    "training.indexed_updates", "training.schedules", "training.variable", "training.ssp",
    "system.summary", "system.io", "system.fused", "data_movement.boxing", "system.python_kernel",
    "data_movement.parallel_cast", "data_movement.mirrored",
)  # fmt: skip
"""Modules that define ``OPS`` in `flow_core.ops` and ``KERNELS`` in `numpy_kernels`."""


def flow_register_ops() -> Iterator[OpSpec]:
    """Yield the ops of all families."""
    for family in FAMILIES:
        yield from importlib.import_module(f"flow_core.ops.{family}").OPS
