"""Ops for the inputs of a graph: fed placeholders and literal arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype, int64
from flow_core.base.shapes import num_elements
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.declare import Attributes, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import like_input, linear, split_all_axes, with_nondecreasing
from flow_core.plugins.specs import REQUIRED, InferContext, LocalContext, Sample


def _declared(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = tuple(ctx.attrs["shape"])
    ctx.check(all(n >= 0 for n in shape), f"shape {shape}", "sizes of at least 0")
    return (tensor_type(shape, as_dtype(ctx.attrs["dtype"])),)


class Input(OpDef):
    """A placeholder that each step feeds."""

    schema = "input() -> out"
    attrs = {"shape": REQUIRED, "dtype": REQUIRED, "batch_axis": 0}
    infer = staticmethod(_declared)
    sbp = staticmethod(split_all_axes)


class Copy(OpDef):
    """A copy in separate memory."""

    schema = "copy(in) -> out"
    infer = staticmethod(like_input)
    sbp = staticmethod(with_nondecreasing(linear))
    gradient = staticmethod(lambda g: (g.dy,))
    reference = staticmethod(np.copy)

    def samples(self, rng: Rng) -> Samples:
        yield Sample((rng.normal(size=(3, 4)),))


class Literal(OpDef):
    """Numbers known at compile time, in C order."""

    schema = "literal() -> out"
    attrs = {"shape": REQUIRED, "dtype": REQUIRED, "data": REQUIRED}
    sbp = staticmethod(split_all_axes)

    def infer(self, ctx: InferContext) -> Types:
        (type_,) = _declared(ctx)
        count = len(ctx.attrs["data"])
        fits = count == num_elements(type_.shape)
        ctx.check(fits, f"{count} numbers", f"{type_.size} for {type_}")
        return (type_,)

    def localize(self, ctx: LocalContext) -> Attributes:
        part, data = ctx.outputs[0], ctx.attrs["data"]
        window = tuple(slice(*bounds) for bounds in part.region)
        chosen = np.arange(len(data)).reshape(part.type.shape)[window].reshape(-1)
        return {"shape": part.shape, "data": tuple(data[i] for i in chosen)}

    def reference(self, *, shape: tuple[int, ...], dtype: str, data: tuple[Any, ...]) -> Array:
        return np.array(data, as_dtype(dtype).numpy).reshape(shape)

    def samples(self, _: Rng) -> Samples:
        for shape, dtype, data in (
            ((2, 3), "float16", (1.5, 2.0, -3.0, 4.0, 5.0, 6.5)),
            ((3,), "float32", (0.1, -7.0, 1e9)), ((2, 1), "int64", (2**40, -5)),
            ((2,), "bool", (True, False)), ((), "uint8", (200,)),
            ((2,), "float64", (1 / 3, -2e100)), ((1,), "bfloat16", (2.5,)), ((0,), "int8", ()),
        ):  # fmt: skip
            yield Sample((), {"shape": shape, "dtype": dtype, "data": data})


class AdvanceStep(OpDef):
    """Increment a counter variable."""

    schema = "advance_step(step)"
    mutates = (0,)
    effect = True
    reference = staticmethod(lambda step: step + 1)

    def infer(self, ctx: InferContext) -> Types:
        (step,) = ctx.inputs
        fits = step.dtype is int64 and step.size == 1
        ctx.check(fits, f"a counter {step}", "int64[] or int64[1]")
        return ()

    def samples(self, _: Rng) -> Samples:
        for step in (np.array(0), np.array(41), np.array([2**40])):
            yield Sample((step,), gradient=False)


OPS = specs(Input, Literal, Copy, AdvanceStep)
