"""Plugin of the device type "cpu" and its numpy kernels."""

from __future__ import annotations

import importlib
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from flow_core.base import thread_pools
from flow_core.builtin.ops_plugin import FAMILIES
from flow_core.plugins.batchable import elementwise_batchable
from flow_core.plugins.specs import Available, DeviceSpec, KernelSpec

FLOW_PLUGIN_API = "1.0"

DEVICES = 1 << 10
"""Maximum number of "cpu" devices per machine; all of them share its cores and memory."""


def probe() -> Available:
    """Report that the maximum number of devices is available, since all of them share the CPU."""
    return Available(DEVICES, f"simulated on {os.cpu_count()} cores")


def flow_register_devices() -> tuple[DeviceSpec, ...]:
    """Return the device type "cpu"."""
    return (DeviceSpec("cpu", probe, "flow_core.builtin.numpy_driver:NumpyDriver"),)


def flow_describe_machine() -> dict[str, str]:
    """Describe numpy, its linear algebra library, and the processor."""
    blas = thread_pools.blas()
    return {
        "numpy": np.__version__,
        "BLAS": "unknown" if blas is None else f"{blas.name}, at most {blas.cap} threads",
        "BLAS kernels": os.environ.get("OPENBLAS_CORETYPE", "those of the processor"),
        "processor": f"{platform.machine()} {_processor()}",
        "vector instructions": " ".join(thread_pools.cpu_features()),
    }


@cache
def _processor() -> str:
    """Return the model of the processor, on which the block sizes of products depend."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1] if found else platform.processor()


def flow_register_kernels() -> Iterator[KernelSpec]:
    """Yield the numpy kernels of all op families.

    NumPy computes the elements of an elementwise op independently of each other, so all kernels of
    elementwise ops can run the rows of several devices in one call (are batchable).
    """
    for family in FAMILIES:
        specs = importlib.import_module(f"flow_core.ops.{family}").OPS
        elementwise = {spec.type for spec in specs if spec.elementwise}
        for kernel in importlib.import_module(f"flow_core.builtin.numpy_kernels.{family}").KERNELS:
            yield (
                replace(kernel, batchable=elementwise_batchable)
                if kernel.op in elementwise
                else kernel
            )
