"""Run ops that have no GPU kernel on the host, if a setting allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec, TensorType, load
from flow_core.plugins.host import default_registry
from flow_cuda.device.config import settings
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.kernels.binding import are_numbers

WHY = "no GPU kernel: runs on the host, with copies in both directions"


def allowed(query: KernelQuery) -> bool:
    """Whether the setting allows it and the host has a kernel for the numeric op."""
    if not (settings().allow_cpu_fallback and are_numbers(query)):
        return False
    kernels = default_registry().kernels(query.op, "cpu")
    return any(k.accepts is None or k.accepts(query) for k in kernels)


def bind(ctx: BindContext) -> Launch:
    """Build a call that copies the inputs to the host, runs the CPU kernel, and copies back."""
    registry = default_registry()
    find = partial(registry.find_kernel, device_type="cpu")
    query = replace(ctx.query, find=find)
    kernel = find(query)
    inputs, outputs = (tuple(map(_empty, types)) for types in (query.inputs, query.outputs))
    size = kernel.workspace(query) if kernel.workspace else 0
    context = replace(
        ctx, query=query, inputs=inputs, outputs=outputs, workspace=np.empty(size, np.uint8)
    )
    bound = load(kernel.load)(context)
    launches = bound if isinstance(bound, tuple | list) else (bound,)
    changed = [(ctx.inputs[i], inputs[i]) for i in registry.ops[query.op].mutates]
    back = [*zip(ctx.outputs, outputs, strict=True), *changed]
    driver = GpuDriver((*ctx.inputs, *ctx.outputs)[0].hardware)
    into = tuple(zip(inputs, ctx.inputs, strict=True))
    return partial(_run, driver, into, launches, back)


def _empty(type_: TensorType) -> Any:
    return np.empty(type_.shape, type_.dtype.numpy)


def _run(
    driver: GpuDriver,
    into: Sequence[tuple[Any, Any]],
    launches: Sequence[Launch],
    back: Sequence[tuple[Any, Any]],
) -> None:
    """Run the CPU kernel of an op once."""
    for host, device in into:
        np.copyto(host, driver.copy_out(device))
    with np.errstate(all="ignore"):
        for launch in launches:
            launch()
    for device, host in back:
        driver.copy_in(device, host)


KERNELS: tuple[KernelSpec, ...] = (
    KernelSpec("*", "gpu", bind, allowed, -1, None, "cuda.on_the_host", unrecordable=WHY),
)
