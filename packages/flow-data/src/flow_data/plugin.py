"""The plugin of flow-data: ops, kernels and the loader's pass.  It imports no decoder."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

from flow_core.plugins.specs import KernelSpec, OpSpec

FLOW_PLUGIN_API = "1.0"

FAMILIES: tuple[str, ...] = ("ragged",)
"""Modules of `flow_data.specs` with ``OPS``."""

KERNELS: Mapping[str, str] = {
    "tensor_to_tensor_buffer": "ragged:to_buffer",
    "tensor_buffer_to_tensor": "ragged:to_tensor",
    "tensor_buffer_to_tensor_list": "ragged:to_list",
    "tensor_list_split": "ragged:split",
    "tensor_list_to_tensor_buffer": "ragged:hand_on",
}
"""By op, the function of `flow_data.kernels` that binds it."""


def flow_register_ops() -> Iterator[OpSpec]:
    """The ops of all families."""
    for family in FAMILIES:
        yield from importlib.import_module(f"flow_data.specs.{family}").OPS


def flow_register_kernels() -> Iterator[KernelSpec]:
    """The kernels, loaded when a plan needs them."""
    for op, target in KERNELS.items():
        yield KernelSpec(op, "cpu", f"flow_data.kernels.{target}", name=f"data.{op}")
