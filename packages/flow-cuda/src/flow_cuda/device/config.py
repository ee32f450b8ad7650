"""Settings of flow-cuda, from environment variables and from a plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from flow_core.base.errors import ConfigError

TANH_GELU, LAYOUT, SYNC = "FLOW_CUDA_TANH_GELU", "FLOW_CUDA_LAYOUT", "FLOW_CUDA_SYNC"
LAYOUTS = ("auto", "nhwc", "nchw")
TENSOR_FLOAT_32 = "enable_tensor_float_32_compute"


@dataclass(frozen=True, slots=True)
class CudaSettings:
    """Kernel settings from environment variables."""

    # Whether matrix products may fuse GELU in its tanh approximation, the only form that cuBLASLt
    # has; it differs from the exact form by up to 5e-4.
    tanh_gelu: bool = False
    # "nhwc" or "nchw" for all convolutions; "auto" to choose according to the element type.
    layout: str = LAYOUTS[0]
    # Whether the host waits for each launch before the next one, and no graphs are captured, so
    # that an error names the launch that failed.
    synchronous: bool = False


def settings(env: Mapping[str, str] | None = None) -> CudaSettings:
    """Return the settings in environment variables (default: those of the process).

    >>> settings({"FLOW_CUDA_TANH_GELU": "1"}).tanh_gelu
    True
    """
    given = os.environ if env is None else env
    layout = given.get(LAYOUT) or LAYOUTS[0]
    if layout not in LAYOUTS:
        raise ConfigError(f"setting {LAYOUT}", found=repr(layout), allowed=" or ".join(LAYOUTS))
    return CudaSettings(_flag(given, TANH_GELU), layout, _flag(given, SYNC))


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "0")
    if text not in ("0", "1", ""):
        raise ConfigError(f"setting {name}", found=repr(text), allowed="0 or 1")
    return text == "1"


def allows_tf32(asked: Mapping[str, object]) -> bool:
    """Whether kernels may round float32 to the 10 mantissa bits of tensor cores (TF32).

    Plans allow the rounding unless the program calls
    ``flow.config.enable_tensor_float_32_compute(False)``; a query without a plan's settings does
    not allow it.

    Args:
        asked: ``KernelQuery.settings``, or ``PassContext.settings``.
    """
    return asked.get(TENSOR_FLOAT_32) is True
