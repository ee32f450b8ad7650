"""Kernels of dropout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from flow_core.base.philox import Uniform
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes, kernel, scalar
from flow_core.builtin.numpy_kernels.drawing import Part, drawing, scratch_part
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec


def _mask_parts(query: KernelQuery) -> Part:
    return scratch_part(query.outputs[0].shape, query.attrs["place"])


def _mask_bytes(query: KernelQuery) -> int:
    return carved_bytes(_mask_parts(query))


def _random_mask(ctx: BindContext) -> Launch:
    seed = ctx.attrs["seed"]
    keep = ctx.outputs[0].view(np.bool_)
    (drawn,) = carve(ctx.workspace, _mask_parts(ctx.query))
    above = partial(np.less, scalar(ctx.attrs["rate"], drawn))
    generator = Uniform(ctx.seed if seed is None else seed)
    return drawing(generator, keep, ctx.attrs["place"], (drawn,), ctx.step, above)


def _masked(ctx: BindContext) -> Sequence[Launch]:
    """Convert the mask to the output's type first; this is faster than a mixed-type product."""
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
