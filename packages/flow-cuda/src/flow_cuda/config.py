"""Settings of flow-cuda that the environment gives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from flow_core.errors import ConfigError

TF32, FALLBACK = "FLOW_CUDA_TF32", "FLOW_CUDA_ALLOW_CPU_FALLBACK"
TANH_GELU = "FLOW_CUDA_TANH_GELU"


@dataclass(frozen=True, slots=True)
class CudaSettings:
    """What the environment says about kernels.

    Attributes:
        tf32: whether float32 products may use the tensor cores' 10 bits of mantissa.
        allow_cpu_fallback: whether ops without a kernel for the device run on the host.
        tanh_gelu: whether products may end with gelu in the form with tanh, the only one that the
            library has; it differs from the exact one by up to 5e-4.
    """

    tf32: bool = False
    allow_cpu_fallback: bool = False
    tanh_gelu: bool = False


def settings(env: Mapping[str, str] | None = None) -> CudaSettings:
    """The settings of an environment (default: the process's own).

    >>> settings({"FLOW_CUDA_TF32": "1"}).tf32
    True
    """
    given = os.environ if env is None else env
    return CudaSettings(*(_flag(given, name) for name in (TF32, FALLBACK, TANH_GELU)))


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "0")
    if text not in ("0", "1", ""):
        raise ConfigError(f"setting {name}", found=repr(text), allowed="0 or 1")
    return text == "1"
