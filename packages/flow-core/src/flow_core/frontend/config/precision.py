"""Which half type mixed precision computes in: as asked, or what the job's devices are best at."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable

from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import KernelNotFoundError
from flow_core.frontend.config.function_config import HALVES
from flow_core.ir.graph import Attrs, Op, tensor_type
from flow_core.passes.mixed_precision import WHITE
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import KernelQuery, KernelSpec

_log = logging.getLogger("flow_core")

WIDENING = "numpy."
"""How the names of kernels begin that compute half types in float32."""
PRODUCT = Attrs({"transpose_a": False, "transpose_b": False, "alpha": 1.0})


def half_type(registry: Registry, ops: Iterable[Op], asked: str | None = None) -> str:
    """The half type whose products have the best kernels, by priority, on all devices of some ops.

    Where devices are equally good at both it is float16, as in OneFlow.  Says once per type of
    devices if these have nothing but kernels that compute in float32.

    Args:
        registry: of kernels.
        ops: of the job.
        asked: the half type that the job insists on.
    """
    devices = sorted({op.placement.device_type for op in ops if op.type in WHITE})
    found = {half: [kernel(registry, half, d) for d in devices] for half in HALVES}

    def rank(half: str) -> int:
        return min((k.priority if k else -1 for k in found[half]), default=0)

    chosen = asked or max(HALVES, key=rank)
    for device, spec in zip(devices, found[chosen], strict=True):
        if spec is not None and spec.name.startswith(WIDENING):
            _say_once(device, chosen)
    return chosen


def kernel(registry: Registry, half: str, device: str) -> KernelSpec | None:
    """The kernel of a product in a half type on a device."""
    matrix = tensor_type((64, 64), as_dtype(half))
    try:
        return registry.find_kernel(
            KernelQuery("matmul", PRODUCT, (matrix, matrix), (matrix,)), device
        )
    except KernelNotFoundError:
        return None


@functools.cache
def _say_once(device: str, half: str) -> None:
    """A note that mixed precision costs time here; at least it saves memory."""
    _log.warning(
        "mixed precision: no kernel of device type %r multiplies half types natively; %s is"
        " widened to float32 for each product, which is slower than float32 itself",
        device, half,
    )  # fmt: skip
