"""Ops for the inputs of a graph: fed placeholders and literal arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype, int64
from flow_core.base.shapes import num_elements
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.rules import like_input, linear, split_all_axes, with_nondecreasing
from flow_core.plugins.specs import REQUIRED, InferContext, LocalContext, OpSpec, Sample


def _declared(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = tuple(ctx.attrs["shape"])
    ctx.check(all(n >= 0 for n in shape), f"shape {shape}", "sizes of at least 0")
    return (tensor_type(shape, as_dtype(ctx.attrs["dtype"])),)


def _literal(ctx: InferContext) -> tuple[TensorType, ...]:
    (type_,) = _declared(ctx)
    count = len(ctx.attrs["data"])
    ctx.check(count == num_elements(type_.shape), f"{count} numbers", f"{type_.size} for {type_}")
    return (type_,)


def _literal_part(ctx: LocalContext) -> Mapping[str, AttrValue]:
    part, data = ctx.outputs[0], ctx.attrs["data"]
    window = tuple(slice(*bounds) for bounds in part.region)
    chosen = np.arange(len(data)).reshape(part.type.shape)[window].reshape(-1)
    return {"shape": part.shape, "data": tuple(data[i] for i in chosen)}


def _literal_reference(*, shape: tuple[int, ...], dtype: str, data: tuple[Any, ...]) -> Array:
    return np.array(data, as_dtype(dtype).numpy).reshape(shape)


def _copy_gradient(g: GradContext) -> tuple[Sym]:
    return (g.dy,)


def _copy_samples(rng: np.random.Generator) -> Any:
    yield Sample((rng.normal(size=(3, 4)),))


def _infer_step(ctx: InferContext) -> tuple[TensorType, ...]:
    (step,) = ctx.inputs
    ctx.check(step.dtype is int64 and step.size == 1, f"a counter {step}", "int64[] or int64[1]")
    return ()


def _literal_samples(_: np.random.Generator) -> Iterator[Sample]:
    for shape, dtype, data in (
        ((2, 3), "float16", (1.5, 2.0, -3.0, 4.0, 5.0, 6.5)), ((3,), "float32", (0.1, -7.0, 1e9)),
        ((2, 1), "int64", (2**40, -5)), ((2,), "bool", (True, False)), ((), "uint8", (200,)),
        ((2,), "float64", (1 / 3, -2e100)), ((1,), "bfloat16", (2.5,)), ((0,), "int8", ()),
    ):  # fmt: skip
        yield Sample((), {"shape": shape, "dtype": dtype, "data": data})


def _step_samples(_: np.random.Generator) -> Iterator[Sample]:
    for step in (np.array(0), np.array(41), np.array([2**40])):
        yield Sample((step,), gradient=False)


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
        localize=_literal_part,
        reference=_literal_reference,
        samples=_literal_samples,
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
        infer=_infer_step,
        reference=lambda step: step + 1,
        samples=_step_samples,
        mutates=(0,),
        effect=True,
        doc="Increment a counter variable.",
    ),
)
