"""Kernels of readers and of synthetic batches, for use outside of loaders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, TensorType
from flow_core.ir.initializers import generate
from flow_data.loading.source import Source, open_source


def read(ctx: BindContext) -> Launch:
    """Return a launch that reads the batch of the running step."""
    rows = len(ctx.outputs[0])
    source = open_source(ctx.query.op, ctx.attrs, ctx.seed, rows)
    return partial(_read, source, ctx.step, ctx.outputs)


def _read(source: Source, step: Any, outputs: Sequence[Any]) -> None:
    for row, ref in enumerate(source.refs(int(step))):
        source.read(ref, row, outputs)


def random(ctx: BindContext) -> Launch:
    """Return a launch that writes the same random numbers in each step."""
    out, attrs = ctx.outputs[0], ctx.attrs
    region = attrs["region"]
    first = region[0][0] if region else 0
    type_: TensorType = ctx.query.outputs[0]
    shape = (attrs["batch_size"], *type_.shape[1:])
    numbers = generate(attrs["initializer"], shape, type_.dtype, ctx.seed)
    return partial(np.copyto, out, numbers[first : first + len(out)].astype(out.dtype))
