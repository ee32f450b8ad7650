"""Kernels of branches: the launches of one of two bodies run.  Both bodies have one workspace."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.calls import joined
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.builtin.numpy_kernels.control.body import (
    BodyKernels,
    bind_body,
    body_kernels,
    has_kernels,
)
from flow_core.device import Launch
from flow_core.ops.control.cond import bodies
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec


def _accepts(query: KernelQuery) -> bool:
    return all(has_kernels(query, body, query.inputs[1:]) for body in bodies(query.attrs))


def _kernels(query: KernelQuery) -> Sequence[BodyKernels]:
    types, results = query.inputs[1:], len(query.outputs)
    return [body_kernels(query, body, types, results) for body in bodies(query.attrs)]


def _workspace(query: KernelQuery) -> int:
    return max(kernels.nbytes for kernels in _kernels(query))


def _bind(ctx: BindContext) -> Launch:
    launches = [_launches(ctx, kernels) for kernels in _kernels(ctx.query)]
    return partial(_run, ctx.inputs[0], *launches)


def _launches(ctx: BindContext, kernels: BodyKernels) -> Sequence[Launch]:
    owned = kernels.owned(len(ctx.outputs))
    given = dict(zip(kernels.inputs, ctx.inputs[1:], strict=True))
    given |= {value: ctx.outputs[i] for value, i in owned.items()}
    launches, arrays = bind_body(kernels, ctx, ctx.workspace, given, ctx.step)
    for i, value in enumerate(kernels.graph.results):
        if owned.get(value) != i:
            launches.append(partial(np.copyto, ctx.outputs[i], arrays[value]))
    return tuple(joined(launches))


def _run(on: Array, then: Sequence[Launch], otherwise: Sequence[Launch]) -> None:
    for launch in then if on[0] != 0 else otherwise:
        launch()


KERNELS: tuple[KernelSpec, ...] = tuple(
    kernel(op, _bind, accepts=_accepts, workspace=_workspace) for op in ("cond", "random_cond")
)
