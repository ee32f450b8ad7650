"""Kernels that sample classes; they call NumPy's sorts, which allocate memory in each step."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.base.philox import Uniform
from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes, kernel
from flow_core.builtin.numpy_kernels.widening import widened
from flow_core.device import Launch
from flow_core.ops.nn.partial_fc import mapped, sample, scatter_sampled_rows
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec


def _draws(query: KernelQuery) -> tuple[tuple[int, ...], DTypeLike]:
    return query.inputs[0].shape[:1], np.float32


def _sample(ctx: BindContext) -> Launch:
    (draws,) = carve(ctx.workspace, _draws(ctx.query))
    seed = ctx.attrs["seed"]
    generator = Uniform(ctx.seed if seed is None else seed)
    return partial(_put_sample, ctx, generator, draws)


def _put_sample(ctx: BindContext, generator: Uniform, draws: Array) -> None:
    (weight, label), (where, chosen, rows), attrs = ctx.inputs, ctx.outputs, ctx.attrs
    generator.fill(draws, int(ctx.step), 0, attrs["first"])
    classes = len(weight) if attrs["classes"] is None else attrs["classes"]
    where[...] = mapped(label, classes, attrs["parts"], attrs["num_sample"])
    chosen[...] = sample(label, draws, attrs)
    np.take(weight, chosen - attrs["first"], axis=0, out=rows, mode="clip")


def _grad(ctx: BindContext) -> Launch:
    (dy, chosen, _), (out,) = ctx.inputs, ctx.outputs
    return partial(scatter_sampled_rows, dy, chosen, out, ctx.attrs)


KERNELS: tuple[KernelSpec, ...] = (
    widened(
        "distributed_partial_fc_sample",
        _sample,
        workspace=lambda query: carved_bytes(_draws(query)),
    ),
    kernel("distributed_partial_fc_sample_grad", _grad),
)
