"""The CPU and its numpy kernels, as a plugin."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator

from flow_core.builtin.ops_plugin import FAMILIES
from flow_core.plugins.specs import Available, DeviceSpec, KernelSpec

FLOW_PLUGIN_API = "1.0"

DEVICES = 1 << 10
"""How many "cpu" devices a machine may name: they are all the same cores and memory."""


def probe() -> Available:
    """The CPU is always there, as often as a placement likes."""
    return Available(DEVICES, f"simulated on {os.cpu_count()} cores")


def flow_register_devices() -> tuple[DeviceSpec, ...]:
    """The device type "cpu"."""
    return (DeviceSpec("cpu", probe, "flow_core.builtin.numpy_driver:NumpyDriver"),)


def flow_register_kernels() -> Iterator[KernelSpec]:
    """The numpy kernels of all families."""
    for family in FAMILIES:
        yield from importlib.import_module(f"flow_core.builtin.numpy_kernels.{family}").KERNELS
