"""Load the libraries that a device needs: for the probe, and for ``flow doctor``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence

from flow_core.authoring.specs import Available, Unavailable
from flow_core.base.errors import described, install_command
from flow_cuda.codegen import nvrtc
from flow_cuda.driver.cublaslt_library import CublasLt

MODULES = ("cupy", "flow_cuda.driver.cupy_hardware")
"""The modules without which a device runs nothing."""

LEAST = 70
"""The lowest compute capability, times 10, for which kernels are compiled in tests."""

LAST_TOOLKIT = {70: 12, 75: 13}
"""The newest CUDA major version whose NVRTC compiles for a compute capability."""


def capability(number: int) -> str:
    """Return a compute capability as NVIDIA writes it.

    >>> capability(75), capability(121)
    ('7.5', '12.1')
    """
    return f"{number // 10}.{number % 10}"


def check(verdict: Available, capabilities: Sequence[int]) -> Available | Unavailable:
    """Return the verdict of the probe after loading what plans need on the devices.

    Args:
        capabilities: the compute capability, times 10, of each device.
    """
    lowest = min(capabilities, default=LEAST)
    major = max((m for least, m in LAST_TOOLKIT.items() if least <= lowest), default=12)
    extra = install_command(f"flow-cuda[cu{major}]")
    if lowest < LEAST:
        reason = f"compute capability {capability(lowest)}: flow-cuda needs {capability(LEAST)}"
        return Unavailable(reason, "hide the device: CUDA_VISIBLE_DEVICES")
    for name in MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  # foreign code; the error is the reason
            return Unavailable(f"{name} does not load: {described(error)}", extra)
    try:
        known, version = nvrtc.architectures(), ".".join(map(str, nvrtc.version()))
    except nvrtc.NvrtcError as error:
        return Unavailable(f"NVRTC does not load: {error.found}", extra)
    if lowest < min(known):
        least = capability(min(known))
        reason = f"NVRTC {version} compiles for compute capability {least} and newer"
        hint = f"{extra}: CUDA {major} is the last that supports {capability(lowest)}"
        return Unavailable(f"a device has {capability(lowest)}; {reason}", hint)
    return verdict


def lines(major: int) -> Iterator[str]:
    """Yield a line per library for ``flow doctor``, after loading it."""
    try:
        known, version = nvrtc.architectures(), ".".join(map(str, nvrtc.version()))
        ends = f"{capability(min(known))} to {capability(max(known))}"
        yield f"NVRTC: {version}, for compute capability {ends}"
    except nvrtc.NvrtcError as error:
        yield f"NVRTC: does not load: {error.found}"
    try:
        CublasLt(major)
        yield f"cuBLASLt: loads, of CUDA {major}"
    except (OSError, AttributeError) as error:
        yield f"cuBLASLt: does not load: {error}"
    try:
        yield f"cuDNN: loads, version {importlib.import_module('cudnn').backend_version()}"
    except Exception as error:  # noqa: BLE001  # the binding raises many types
        yield f"cuDNN: does not load: {described(error)}"
