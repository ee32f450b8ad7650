"""Elementwise ops of one input and constant numbers: arithmetic, comparisons and clipping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import int8
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.math.broadcasting import check_kinds, linear_in, number
from flow_core.ops.rules import (
    floating,
    floating_like_input,
    linear,
    nondecreasing,
    nonincreasing,
    same_inputs,
    split_all_axes,
    with_nondecreasing,
    with_nonincreasing,
)
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import B, P, Signature, Signatures


def _scalar_infer(ctx: InferContext) -> tuple[TensorType, ...]:
    check_kinds(ctx, "fiu")
    return (ctx.inputs[0],)


def _scalar_logical_infer(ctx: InferContext) -> tuple[TensorType, ...]:
    return (tensor_type(ctx.inputs[0].shape, int8),)


def _pow_gradient(g: GradContext) -> Sequence[Sym | None]:
    exponent = g.attrs["exponent"]
    if exponent == 0:
        return (None,)
    return (g.dy * g.one("scalar_pow", g.x, exponent=exponent - 1) * exponent,)


def _operand_samples(
    *operands: float, attr: str = "operand", smooth: bool = True
) -> Callable[[np.random.Generator], Iterator[Sample]]:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for operand, shape in zip(operands, ((7,), (3, 5), (2, 1, 4), (0, 2), ()), strict=False):
            yield Sample((rng.uniform(0.3, 3.0, shape),), {attr: operand}, smooth)
        if attr == "operand":
            for dtype in (np.int8, np.int32, np.uint8):
                x = rng.integers(0, 9, (3, 4)).astype(dtype)
                yield Sample((x,), {attr: 3}, gradient=False, note=str(x.dtype))

    return samples


def _scalar_spec(name: str, reference: Any, gradient: Any, sbp: Any, **changes: Any) -> OpSpec:
    spec = OpSpec(
        type=name,
        inputs=("in",),
        infer=_scalar_infer,
        attrs={"operand": REQUIRED},
        sbp=sbp,
        gradient=gradient,
        reference=reference,
        samples=_operand_samples(2.5, -1.0, 0, 3, 1.5),
        elementwise=True,
        inplace=(0,),
    )
    return replace(spec, **changes)


def _scaled_sbp(ctx: SbpContext) -> Signatures:
    operand = number(ctx.attrs["operand"], np.empty(0, ctx.inputs[0].dtype.numpy))
    ordered = nondecreasing if operand > 0 else nonincreasing
    return (*linear(ctx), *(ordered(ctx, 0) if operand and floating(ctx) else ()))


def _added_sbp(ctx: SbpContext) -> Signatures:
    """Preserve sums only if the operand is 0, and order unless integers may wrap around."""
    if not ctx.attrs["operand"]:
        return (*linear(ctx), *nondecreasing(ctx, 0))
    return (*split_all_axes(ctx), *(nondecreasing(ctx, 0) if floating(ctx) else ()))


def _power_sbp(ctx: SbpContext) -> Signatures:
    """Do not pass P(max) to a fractional power, since parts of a maximum may be negative."""
    exponent = float(ctx.attrs["exponent"])
    if exponent == 0:
        return (*split_all_axes(ctx), Signature((P,), (B,)))
    if not exponent.is_integer():
        return (*split_all_axes(ctx), (nondecreasing if exponent > 0 else nonincreasing)(ctx, 0)[1])
    odd = exponent % 2 == 1 and exponent > 0
    basic = linear if exponent == 1 else split_all_axes
    return (*basic(ctx), *(nondecreasing(ctx, 0) if odd else ()))


SCALAR_OPS = (
    _scalar_spec(
        "scalar_add", lambda x, operand: x + number(operand, x), lambda g: (g.dy,),
        _added_sbp,
    ),
    _scalar_spec(
        "scalar_mul", lambda x, operand: x * number(operand, x),
        lambda g: (g.one("scalar_mul", g.dy, operand=g.attrs["operand"]),), _scaled_sbp,
    ),
    _scalar_spec(
        "scalar_pow", lambda x, exponent: np.power(x, exponent), _pow_gradient, _power_sbp,
        infer=floating_like_input, attrs={"exponent": REQUIRED},
        samples=_operand_samples(2.0, 0.5, -1.0, 3.0, 0.0, attr="exponent"),
    ),
)  # fmt: skip

COMPARISONS = {
    "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "less": np.less, "less_equal": np.less_equal,
}  # fmt: skip


ORDERS: Mapping[str, Callable[[Any], Any]] = {
    "greater": with_nondecreasing, "greater_equal": with_nondecreasing,
    "less": with_nonincreasing, "less_equal": with_nonincreasing,
}  # fmt: skip
"""SBP rules of comparisons, which depend on their monotonicity in the first operand."""


def _scalar_comparison(kind: str, function: Any) -> OpSpec:
    return _scalar_spec(
        f"scalar_logical_{kind}",
        lambda x, operand: function(x, number(operand, x)).astype(np.int8),
        None,
        ORDERS.get(kind, lambda sbp: sbp)(split_all_axes),
        infer=_scalar_logical_infer,
        samples=_operand_samples(1.5, 1.0, 2.0, 0.0, 1.0, smooth=False),
        inplace=(),
    )


LOGICAL_NOT = _scalar_spec(
    "logical_not", lambda x: np.logical_not(x).astype(np.int8), None, split_all_axes,
    infer=_scalar_logical_infer, attrs={}, inplace=(),
    samples=lambda rng: iter(
        Sample((rng.integers(0, 2, (3, 4)).astype(t),), gradient=False)
        for t in (np.int8, np.float64, np.bool_)
    ),
)  # fmt: skip


# limits

LIMITS = {"floating_min": None, "integral_min": None, "floating_max": None, "integral_max": None}


def limits(x: Array, attrs: Mapping[str, AttrValue]) -> tuple[Any, Any]:
    """Return the lower and the upper bound of a clip op with these attributes."""
    dtype = np.asarray(x).dtype
    if dtype.kind not in "iu":
        return attrs.get("floating_min"), attrs.get("floating_max")
    ends = np.iinfo(dtype)
    given = (attrs.get("integral_min"), attrs.get("integral_max"))
    low, high = (None if v is None else min(max(v, ends.min), ends.max) for v in given)
    return low, high


def _clip(x: Array, **attrs: AttrValue) -> Array:
    low, high = limits(x, attrs)
    return np.clip(x, low, high).astype(x.dtype)


def _clip_grad(dy: Array, x: Array, **attrs: AttrValue) -> Array:
    low, high = limits(x, attrs)
    inside = (x >= (-np.inf if low is None else low)) & (x <= (np.inf if high is None else high))
    return np.where(inside, dy, 0)


def _clip_samples(name: str, sides: tuple[str, ...], grad: bool) -> Callable[[Any], Any]:
    bounds = [
        {"floating_min": -0.5, "integral_min": -1, "floating_max": 1.25, "integral_max": 2},
        {"floating_min": 0.25, "integral_min": 0, "floating_max": 0.75, "integral_max": 3},
    ]
    some, others = ({k: v for k, v in row.items() if k.endswith(sides)} for row in bounds)

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for shape, attrs in (((7,), some), ((3, 5), others), ((0, 2), some)):
            arrays = [rng.uniform(-2, 2, shape) for _ in range(1 + grad)]
            yield Sample(tuple(arrays), attrs, gradient=not grad)
        for attrs in (some, others):
            numbers = [rng.integers(-4, 5, (3, 4)).astype(np.int32) for _ in range(1 + grad)]
            yield Sample(tuple(numbers), attrs, gradient=False, note="int32")

    return samples


def _clip_specs(suffix: str, *sides: str) -> tuple[OpSpec, OpSpec]:
    """Return a clip op and its gradient op."""
    name = f"clip_by_scalar{suffix}"
    attrs = {k: REQUIRED for k in LIMITS if k.endswith(sides)}

    def gradient(g: GradContext) -> Sequence[Sym | None]:
        return (g.one(f"{name}_grad", g.dy, g.x, **g.attrs),)

    spec = _scalar_spec(
        name, _clip, gradient, with_nondecreasing(split_all_axes), inputs=("x",), outputs=("y",),
        attrs=attrs, samples=_clip_samples(name, sides, grad=False),
    )  # fmt: skip
    back = replace(
        spec, type=f"{name}_grad", inputs=("dy", "x"), outputs=("dx",), infer=same_inputs,
        sbp=linear_in(0), gradient=None, reference=_clip_grad, inplace=(0, 1),
        samples=_clip_samples(name, sides, grad=True),
    )  # fmt: skip
    return spec, back


FAMILY: tuple[OpSpec, ...] = (
    *SCALAR_OPS,
    *(_scalar_comparison(kind, function) for kind, function in COMPARISONS.items()),
    LOGICAL_NOT,
    *_clip_specs("", "min", "max"),
    *_clip_specs("_min", "min"),
    *_clip_specs("_max", "max"),
)
