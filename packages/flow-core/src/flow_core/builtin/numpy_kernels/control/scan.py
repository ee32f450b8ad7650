"""Kernels of loops: the launches of the body run once for each position.

Elements are copied from the sequences, and results to them.  Each carry has two places, which
change roles at each position, so that the launches exist twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import Part, carve, carved_bytes, kernel
from flow_core.builtin.numpy_kernels.control.body import (
    BodyKernels,
    bind_body,
    body_kernels,
    has_kernels,
)
from flow_core.device import Launch
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


def _bind(ctx: BindContext) -> Launch:
    kernels, parts = _kernels(ctx.query)
    carries, stop = ctx.attrs["carries"], ctx.attrs["carries"] + ctx.attrs["sequences"]
    slots, own = carve(ctx.workspace, *parts), ctx.workspace[carved_bytes(*parts) :]
    places = (ctx.outputs[:carries], slots[:carries])
    owned, step = kernels.owned(carries), np.zeros((), np.int64)

    def bound(source: int) -> tuple[Sequence[Launch], Sequence[Array]]:
        """Bind the body to read its carries from one of their two places and write the other."""
        given = (*places[source], *slots[carries:], *ctx.inputs[stop:])
        target, outside = places[1 - source], dict(zip(kernels.inputs, given, strict=True))
        outside |= {value: target[i] for value, i in owned.items()}
        launches, arrays = bind_body(kernels, ctx, own, outside, step)
        results = [arrays[value] for value in kernels.graph.results]
        for i, value in enumerate(kernels.graph.results[:carries]):
            if owned.get(value) != i:
                launches.append(partial(np.copyto, target[i], results[i]))
        return launches, results[carries:]

    return partial(
        _run, ctx, positions(ctx.attrs["length"], ctx.attrs["reverse"]), places,
        slots[carries:], step, (bound(0), bound(1)),
    )  # fmt: skip


def _run(
    ctx: BindContext,
    order: Sequence[int],
    places: Sequence[Sequence[Array]],
    slots: Sequence[Array],
    step: Array,
    bound: Sequence[tuple[Sequence[Launch], Sequence[Array]]],
) -> None:
    """Run a loop; the last position writes the carries to the outputs."""
    length, carries = len(order), ctx.attrs["carries"]
    elements = [*zip(slots, ctx.inputs[carries:], strict=False)]
    for place, first in zip(places[length % 2], ctx.inputs, strict=False):
        np.copyto(place, first)
    start: Any = 0 if ctx.step is None else int(ctx.step) * length
    for number, position in enumerate(order):
        launches, results = bound[(length - number) % 2]
        step[...] = start + position
        for slot, sequence in elements:
            np.copyto(slot, sequence[position, ...])
        for launch in launches:
            launch()
        for sequence, result in zip(ctx.outputs[carries:], results, strict=True):
            np.copyto(sequence[position, ...], result)


KERNELS: tuple[KernelSpec, ...] = tuple(
    kernel(op, _bind, accepts=_accepts, workspace=_workspace) for op in ("scan", "random_scan")
)
