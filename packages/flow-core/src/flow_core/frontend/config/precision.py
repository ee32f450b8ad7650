"""The 16-bit type of mixed precision: the requested type, or the best type for the devices."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable

from flow_core.base.dtypes import as_dtype
from flow_core.frontend.config.function_config import HALVES
from flow_core.ir.graph import Attrs, Op, tensor_type
from flow_core.passes.mixed_precision import WHITE
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import KernelQuery, KernelSpec

_log = logging.getLogger("flow_core")

WIDENING = "numpy."
"""Prefix of the names of kernels that compute half types in float32."""
PRODUCT = Attrs({"transpose_a": False, "transpose_b": False, "alpha": 1.0})


def half_type(registry: Registry, ops: Iterable[Op], requested: str | None = None) -> str:
    """Return the half type (float16 or bfloat16) in which mixed precision computes.

    Without a request, this is the type whose matrix products have the kernels of highest priority
    on all devices of the ops; of equal types, float16 is chosen, as in OneFlow.  Logs a warning,
    once per device type, if the device type has only kernels that compute in float32.
    """
    devices = _devices(ops)
    found = {half: [kernel(registry, half, d) for d in devices] for half in HALVES}

    def rank(half: str) -> int:
        return min((k.priority if k else -1 for k in found[half]), default=0)

    chosen = requested or max(HALVES, key=rank)
    for device, spec in zip(devices, found[chosen], strict=True):
        if _widens(spec):
            _warn_once(device, chosen)
    return chosen


def multiplies_half(registry: Registry, ops: Iterable[Op]) -> bool:
    """Return whether all devices of the ops have kernels for products in some half type."""
    devices = _devices(ops)
    return any(
        not any(_widens(kernel(registry, half, device)) for device in devices) for half in HALVES
    )


def _devices(ops: Iterable[Op]) -> list[str]:
    return sorted({op.placement.device_type for op in ops if op.type in WHITE})


def _widens(spec: KernelSpec | None) -> bool:
    return spec is not None and spec.name.startswith(WIDENING)


def kernel(registry: Registry, half: str, device: str) -> KernelSpec | None:
    """Return the kernel for a matrix product in a half type on a device."""
    matrix = tensor_type((64, 64), as_dtype(half))
    query = KernelQuery("matmul", PRODUCT, (matrix, matrix), (matrix,))
    return registry.accepting_kernel(query, device)


@functools.cache
def _warn_once(device: str, half: str) -> None:
    """Warn that mixed precision saves memory but no time on a device type."""
    _log.warning(
        "mixed precision: no kernel of device type %r multiplies half types natively; %s is"
        " widened to float32 for each product, which is slower than float32 itself",
        device, half,
    )  # fmt: skip
