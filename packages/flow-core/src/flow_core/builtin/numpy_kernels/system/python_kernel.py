"""The kernel of ops that a program implements as Python functions."""

from __future__ import annotations

from functools import partial

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.ops.system.python_kernel import PYTHON_KERNEL, PythonOp, known, results_of
from flow_core.plugins.specs import BindContext, KernelSpec


def _bind(ctx: BindContext) -> Launch:
    return partial(_call, known[ctx.attrs["op"]], ctx.inputs, ctx.outputs)


def _call(op: PythonOp, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> None:
    for target, result in zip(outputs, results_of(op, inputs), strict=True):
        np.copyto(target, result, casting="unsafe")


KERNELS: tuple[KernelSpec, ...] = (kernel(PYTHON_KERNEL, _bind),)
