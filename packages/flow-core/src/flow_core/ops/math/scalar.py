"""Elementwise ops of one input and constant numbers: arithmetic, comparisons and clipping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import int8
from flow_core.ir.graph import AttrValue, tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.math.broadcasting import check_kinds, number
from flow_core.ops.rules import (
    floating,
    floating_like_input,
    linear,
    nondecreasing,
    nonincreasing,
    same_inputs,
    signatures,
    split_all_axes,
    with_nondecreasing,
    with_rows,
)
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import B, P, Signatures


class Numeric(OpDef):
    """An elementwise op on numbers, with the type of its first input."""

    elementwise = True
    inplace: tuple[int, ...] = (0,)

    def infer(self, ctx: InferContext) -> Types:
        check_kinds(ctx, "fiu")
        return (ctx.inputs[0],)


class Scalar(Numeric):
    """An op of one input and a number, its attribute."""

    attrs = {"operand": REQUIRED}
    drawn: tuple[float, ...] = (2.5, -1.0, 0, 3, 1.5)  # the numbers in the samples
    smooth: bool = True  # whether the samples have derivatives

    def samples(self, rng: Rng) -> Samples:
        (attr,) = self.attrs
        for value, shape in zip(self.drawn, ((7,), (3, 5), (2, 1, 4), (0, 2), ()), strict=True):
            yield Sample((rng.uniform(0.3, 3.0, shape),), {attr: value}, self.smooth)
        for dtype in (np.int8, np.int32, np.uint8) if attr == "operand" else ():
            x = rng.integers(0, 9, (3, 4)).astype(dtype)
            yield Sample((x,), {attr: 3}, gradient=False, note=str(x.dtype))


class ScalarAdd(Scalar):
    schema = "scalar_add(in) -> out"
    gradient = staticmethod(lambda g: (g.dy,))
    reference = staticmethod(lambda x, operand: x + number(operand, x))

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Preserve sums only if the operand is 0, and order unless integers may wrap around."""
        if not ctx.attrs["operand"]:
            return (*linear(ctx), *nondecreasing(ctx, 0))
        return (*split_all_axes(ctx), *(nondecreasing(ctx, 0) if floating(ctx) else ()))


class ScalarMul(Scalar):
    schema = "scalar_mul(in) -> out"
    gradient = staticmethod(lambda g: (g.one("scalar_mul", g.dy, operand=g.attrs["operand"]),))
    reference = staticmethod(lambda x, operand: x * number(operand, x))

    def sbp(self, ctx: SbpContext) -> Signatures:
        operand = number(ctx.attrs["operand"], np.empty(0, ctx.inputs[0].dtype.numpy))
        ordered = nondecreasing if operand > 0 else nonincreasing
        return (*linear(ctx), *(ordered(ctx, 0) if operand and floating(ctx) else ()))


class ScalarPow(Scalar):
    schema = "scalar_pow(in) -> out"
    attrs = {"exponent": REQUIRED}
    drawn = (2.0, 0.5, -1.0, 3.0, 0.0)
    infer = staticmethod(floating_like_input)
    reference = staticmethod(lambda x, exponent: np.power(x, exponent))

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Do not pass P(max) to a fractional power, since parts of a maximum may be negative."""
        exponent = float(ctx.attrs["exponent"])
        if exponent == 0:
            return signatures(*split_all_axes(ctx), (P, B))
        if not exponent.is_integer():
            ordered = nondecreasing if exponent > 0 else nonincreasing
            return (*split_all_axes(ctx), ordered(ctx, 0)[1])
        odd = exponent % 2 == 1 and exponent > 0
        basic = linear if exponent == 1 else split_all_axes
        return (*basic(ctx), *(nondecreasing(ctx, 0) if odd else ()))

    def gradient(self, g: GradContext) -> Gradients:
        exponent = g.attrs["exponent"]
        if exponent == 0:
            return (None,)
        return (g.dy * g.one("scalar_pow", g.x, exponent=exponent - 1) * exponent,)


COMPARISONS = {
    "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "less": np.less, "less_equal": np.less_equal,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScalarComparison(Scalar):
    """A row for each of `COMPARISONS`."""

    type: str
    compared: Callable[..., Any]
    schema = "(in) -> out"
    inplace = ()
    drawn = (1.5, 1.0, 2.0, 0.0, 1.0)
    smooth = False
    infer = staticmethod(lambda ctx: (tensor_type(ctx.inputs[0].shape, int8),))

    def sbp(self, ctx: SbpContext) -> Signatures:
        orders = {"greater": nondecreasing, "less": nonincreasing}
        ordered = orders.get(self.type.removeprefix("scalar_logical_").removesuffix("_equal"))
        return (*split_all_axes(ctx), *(ordered(ctx, 0) if ordered else ()))

    def reference(self, x: Array, operand: float) -> Any:
        return self.compared(x, number(operand, x)).astype(np.int8)


class LogicalNot(OpDef):
    schema = "logical_not(in) -> out"
    elementwise = True
    infer = staticmethod(lambda ctx: (tensor_type(ctx.inputs[0].shape, int8),))
    sbp = staticmethod(split_all_axes)
    reference = staticmethod(lambda x: np.logical_not(x).astype(np.int8))

    def samples(self, rng: Rng) -> Samples:
        for dtype in (np.int8, np.float64, np.bool_):
            yield Sample((rng.integers(0, 2, (3, 4)).astype(dtype),), gradient=False)


def limits(x: Array, attrs: Mapping[str, AttrValue]) -> tuple[Any, Any]:
    """Return the lower and the upper bound of a clip op with these attributes."""
    dtype = np.asarray(x).dtype
    if dtype.kind not in "iu":
        return attrs.get("floating_min"), attrs.get("floating_max")
    ends = np.iinfo(dtype)
    given = (attrs.get("integral_min"), attrs.get("integral_max"))
    low, high = (None if v is None else min(max(v, ends.min), ends.max) for v in given)
    return low, high


@dataclass(frozen=True, slots=True)
class Limited(Numeric):
    """A row for each op with some of the limits of `clip_by_scalar`, or the gradient of one."""

    type: str
    attrs: Attributes

    def samples(self, rng: Rng) -> Samples:
        bounds: list[dict[str, float]] = [
            {"floating_min": -0.5, "integral_min": -1, "floating_max": 1.25, "integral_max": 2},
            {"floating_min": 0.25, "integral_min": 0, "floating_max": 0.75, "integral_max": 3},
        ]
        some, others = ({k: v for k, v in row.items() if k in self.attrs} for row in bounds)
        count = len(self.inputs)
        for shape, attrs in (((7,), some), ((3, 5), others), ((0, 2), some)):
            arrays = tuple(rng.uniform(-2, 2, shape) for _ in range(count))
            yield Sample(arrays, attrs, gradient=count == 1)
        for attrs in (some, others):
            arrays = tuple(rng.integers(-4, 5, (3, 4)).astype(np.int32) for _ in range(count))
            yield Sample(arrays, attrs, gradient=False, note="int32")


class Clip(Limited):
    schema = "(x) -> y"
    sbp = staticmethod(with_nondecreasing(split_all_axes))
    gradient = staticmethod(lambda g: (g.one(f"{g.op.type}_grad", g.dy, g.x, **g.attrs),))

    def reference(self, x: Array, **attrs: AttrValue) -> Array:
        low, high = limits(x, attrs)
        return np.clip(x, low, high).astype(x.dtype)


class ClipGrad(Limited):
    schema = "(dy, x) -> dx"
    inplace = (0, 1)
    infer = staticmethod(same_inputs)
    sbp = staticmethod(with_rows(split_all_axes, ((P, B), P)))

    def reference(self, dy: Array, x: Array, **attrs: AttrValue) -> Array:
        low, high = limits(x, attrs)
        above, below = -np.inf if low is None else low, np.inf if high is None else high
        return np.where((x >= above) & (x <= below), dy, 0)


MIN = {"floating_min": REQUIRED, "integral_min": REQUIRED}
MAX = {"floating_max": REQUIRED, "integral_max": REQUIRED}

FAMILY = specs(
    ScalarAdd, ScalarMul, ScalarPow,
    *(ScalarComparison(f"scalar_logical_{kind}", f) for kind, f in COMPARISONS.items()),
    LogicalNot,
    Clip("clip_by_scalar", MIN | MAX), ClipGrad("clip_by_scalar_grad", MIN | MAX),
    Clip("clip_by_scalar_min", MIN), ClipGrad("clip_by_scalar_min_grad", MIN),
    Clip("clip_by_scalar_max", MAX), ClipGrad("clip_by_scalar_max_grad", MAX),
)  # fmt: skip
