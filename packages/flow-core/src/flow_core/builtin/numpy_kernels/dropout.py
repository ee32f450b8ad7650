"""Kernels of dropout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from flow_core.builtin.numpy_kernels.binding import call, carve, carved_bytes, kernel, scalar
from flow_core.device import Launch
from flow_core.philox import Uniform
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

CHUNK = 1 << 14
"""Elements drawn at a time: a multiple of the generator's block, small enough for the cache."""


def _drawn(query: KernelQuery) -> int:
    return min(query.outputs[0].size, CHUNK)


def _mask_bytes(query: KernelQuery) -> int:
    return carved_bytes(((_drawn(query),), np.float32))


def _random_mask(ctx: BindContext) -> Launch:
    seed, step = ctx.attrs["seed"], ctx.step
    keep = ctx.outputs[0].reshape(-1).view(np.bool_)
    (drawn,) = carve(ctx.workspace, ((_drawn(ctx.query),), np.float32))
    rate = scalar(ctx.attrs["rate"], drawn)
    fill = Uniform(ctx.seed if seed is None else seed).fill
    chunks = [
        (start, drawn[: keep.size - start], keep[start : start + CHUNK])
        for start in range(0, keep.size, CHUNK)
    ]

    def launch() -> None:
        now = int(step)
        for start, numbers, kept in chunks:
            fill(numbers, now, 0, start)
            np.less(rate, numbers, kept)

    return launch


def _masked(ctx: BindContext) -> Sequence[Launch]:
    """The mask is copied into the output in its type, which costs less than a mixed product."""
    (x, mask), (out,) = ctx.inputs, ctx.outputs
    return (
        partial(np.copyto, out, mask, casting="unsafe"),
        call(np.multiply, out, scalar(ctx.attrs["scale"], out), out=out),
        call(np.multiply, out, x, out=out),
    )


KERNELS: tuple[KernelSpec, ...] = (
    kernel("random_mask_like", _random_mask, workspace=_mask_bytes),
    kernel("dropout", _masked),
    kernel("dropout_grad", _masked),
)
