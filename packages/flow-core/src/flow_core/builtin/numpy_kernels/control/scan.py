"""Kernels of loops: the launches of the body run once for each position.

Elements are copied from the sequences, and results to them.  Each carry has two places, which
change roles at each position, so that the launches exist twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.calls import repeated
from flow_core.builtin.numpy_kernels.binding import Part, carve, carved_bytes, kernel
from flow_core.builtin.numpy_kernels.control.body import (
    BodyKernels,
    bind_body,
    body_kernels,
    has_kernels,
)
from flow_core.device import Launch, Loop
from flow_core.ops.control.scan import positions, types_within
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec


def _accepts(query: KernelQuery) -> bool:
    return has_kernels(query, query.attrs["body"], types_within(query.inputs, query.attrs))


def _kernels(query: KernelQuery) -> tuple[BodyKernels, Sequence[Part]]:
    """Return the kernels of the body, and the parts of the workspace before its own."""
    types, carries = types_within(query.inputs, query.attrs), query.attrs["carries"]
    kernels = body_kernels(query, query.attrs["body"], types, carries)
    copied = types[: carries + query.attrs["sequences"]]
    return kernels, [(t.shape, t.dtype.numpy) for t in copied]


def _workspace(query: KernelQuery) -> int:
    kernels, parts = _kernels(query)
    return carved_bytes(*parts) + kernels.nbytes


def _bind(ctx: BindContext) -> Sequence[Launch]:
    kernels, parts = _kernels(ctx.query)
    carries, stop = ctx.attrs["carries"], ctx.attrs["carries"] + ctx.attrs["sequences"]
    slots, own = carve(ctx.workspace, *parts), ctx.workspace[carved_bytes(*parts) :]
    places = (ctx.outputs[:carries], slots[:carries])
    owned, step = kernels.owned(carries), np.zeros((), np.int64)

    def bound(source: int) -> tuple[Sequence[Launch], Sequence[tuple[Array, Array]]]:
        """Bind the body to read its carries from one of their two places and write the other."""
        given = (*places[source], *slots[carries:], *ctx.inputs[stop:])
        target, outside = places[1 - source], dict(zip(kernels.inputs, given, strict=True))
        outside |= {value: target[i] for value, i in owned.items()}
        launches, arrays = bind_body(kernels, ctx, own, outside, step)
        results = [arrays[value] for value in kernels.graph.results]
        for i, value in enumerate(kernels.graph.results[:carries]):
            if owned.get(value) != i:
                launches.append(partial(np.copyto, target[i], results[i]))
        return launches, [*zip(results[carries:], ctx.outputs[carries:], strict=True)]

    (first, results), (second, more) = bound(0), bound(1)
    elements = [*zip(slots[carries:], ctx.inputs[carries:stop], strict=True)]
    order = positions(ctx.attrs["length"], ctx.attrs["reverse"])
    begin = zip(places[len(order) % 2], ctx.inputs, strict=False)
    return (
        *(partial(np.copyto, place, start) for place, start in begin),
        repeated(Loop(order, elements, (first, second), (results, more), step, ctx.step)),
    )


KERNELS: tuple[KernelSpec, ...] = tuple(
    kernel(op, _bind, accepts=_accepts, workspace=_workspace) for op in ("scan", "random_scan")
)
