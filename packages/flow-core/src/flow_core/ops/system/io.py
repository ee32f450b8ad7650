"""Inputs of a graph: fed placeholders and literal arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.base.shapes import num_elements
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.rules import like_input, linear, split_all_axes, with_nondecreasing
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample


def _declared(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = tuple(ctx.attrs["shape"])
    ctx.check(all(n >= 0 for n in shape), f"shape {shape}", "sizes of at least 0")
    return (tensor_type(shape, as_dtype(ctx.attrs["dtype"])),)


def _literal(ctx: InferContext) -> tuple[TensorType, ...]:
    (type_,) = _declared(ctx)
    count = len(ctx.attrs["data"])
    ctx.check(count == num_elements(type_.shape), f"{count} numbers", f"{type_.size} for {type_}")
    return (type_,)


def _literal_reference(*, shape: tuple[int, ...], dtype: str, data: tuple[Any, ...]) -> Array:
    return np.array(data, as_dtype(dtype).numpy).reshape(shape)


def _copy_gradient(g: GradContext) -> tuple[Sym]:
    return (g.dy,)


def _copy_samples(rng: np.random.Generator) -> Any:
    yield Sample((rng.normal(size=(3, 4)),))


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="input",
        inputs=(),
        infer=_declared,
        attrs={"shape": REQUIRED, "dtype": REQUIRED, "batch_axis": 0},
        sbp=split_all_axes,
        doc="A placeholder that each step feeds.",
    ),
    OpSpec(
        type="literal",
        inputs=(),
        infer=_literal,
        attrs={"shape": REQUIRED, "dtype": REQUIRED, "data": REQUIRED},
        sbp=split_all_axes,
        reference=_literal_reference,
        doc="Numbers known at compile time, in C order.",
    ),
    OpSpec(
        type="copy",
        inputs=("in",),
        infer=like_input,
        sbp=with_nondecreasing(linear),
        gradient=_copy_gradient,
        reference=np.copy,
        samples=_copy_samples,
        doc="A copy in separate memory.",
    ),
    OpSpec(
        type="advance_step",
        inputs=("step",),
        outputs=(),
        infer=lambda _: (),
        mutates=(0,),
        effect=True,
        doc="Increment a counter variable.",
    ),
)
