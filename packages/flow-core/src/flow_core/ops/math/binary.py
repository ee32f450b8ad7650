"""Elementwise ops of two inputs that broadcast, defined by one table, and related ops.

The gradient of an input that was broadcast is summed back to its shape by ``reduce_sum_like``.
As in OneFlow, comparisons and logical ops return int8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.base.dtypes import int8
from flow_core.base.shapes import broadcast_shapes
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.math import scalar
from flow_core.ops.math.broadcasting import check_kinds, number, sum_to_shape
from flow_core.ops.rules import (
    any_partial,
    broadcast_sbp,
    broadcast_type,
    floating,
    linear,
    nondecreasing,
    same_inputs,
)
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, Sbp, Signature, Signatures

Rule = tuple[tuple[Sbp, ...], Sbp]
Derivative = Callable[[GradContext], Sym]

SUM: Rule = ((P, P), P)
LEFT: Rule = ((P, B), P)
RIGHT: Rule = ((B, P), P)
MAX, MIN = EXTREMES
GREATEST: Rule = ((MAX, MAX), MAX)
LEAST: Rule = ((MIN, MIN), MIN)
RISES_LEFT: tuple[Rule, ...] = (((MAX, B), MAX), ((MIN, B), MIN))
RISES_RIGHT: tuple[Rule, ...] = (((B, MAX), MAX), ((B, MIN), MIN))
FALLS_LEFT: tuple[Rule, ...] = (((MAX, B), MIN), ((MIN, B), MAX))
FALLS_RIGHT: tuple[Rule, ...] = (((B, MAX), MIN), ((B, MIN), MAX))


@dataclass(frozen=True, slots=True)
class Binary:
    """A row of the table of elementwise ops.

    Attributes:
        name: op type.
        reference: numpy semantics.
        left, right: gradient of each input before it is summed back to the input's shape.
        kinds: kinds of element types that the op takes: f(loating), i(nteger), u(nsigned), b(ool).
        rules: SBP rules in addition to the splits.
        logical: whether the result is int8 for any input type.
        domain: interval from which samples are drawn.
        broadcasts: whether shapes may differ.
        ordered: whether the op preserves the order of integers, because no result wraps around.
    """

    name: str
    reference: Callable[[Any, Any], Any]
    left: Derivative | None = None
    right: Derivative | None = None
    kinds: str = "fiu"
    rules: tuple[Rule, ...] = ()
    logical: bool = False
    domain: tuple[float, float] = (0.3, 3.0)
    broadcasts: bool = True
    ordered: bool = False


def divided(x: Array, y: Array) -> Any:
    """Return quotients; integer quotients are truncated towards zero, as in C."""
    if np.asarray(x).dtype.kind == "f":
        return x / y
    return np.floor_divide(x - np.fmod(x, y), y)


def _xdivy(x: Array, y: Array) -> Array:
    """Return x / y, where 0 / 0 is 0; this is not linear in x, since parts of a 0 may differ from
    0.
    """
    return np.where(x == 0, 0.0, x / y)


def _xlogy(x: Array, y: Array) -> Array:
    """Return x log(y), where 0 log(0) is 0; like `_xdivy`, this is not linear in x."""
    return np.where(x == 0, 0.0, x * np.log(y))


def _masked(g: GradContext, comparison: str, value: Sym) -> Sym:
    """Emit ``value`` where a comparison of the two inputs holds, else 0."""
    mask = g.one(f"broadcast_{comparison}", *g.inputs)
    return g.one("where_scalar_y", mask, value, operand=0.0)


def _pow_base(g: GradContext) -> Sym:
    """Emit dy y x^(y - 1), and 0 for y = 0, also where x = 0."""
    x, y = g.inputs
    used = g.one("scalar_logical_not_equal", y, operand=0.0)
    slope = g.dy * y * g.one("broadcast_pow", x, y - 1)
    return g.one("where_scalar_y", used, slope, operand=0.0)


def _pow_exponent(g: GradContext) -> Sym:
    """Emit dy z log(x), and 0 for x <= 0, as in OneFlow."""
    x = g.inputs[0]
    positive = g.one("scalar_logical_greater", x, operand=0.0)
    return g.one("where_scalar_y", positive, g.dy * g.y * g.one("log", x), operand=0.0)


def _atan2_radius(g: GradContext) -> Sym:
    x, y = g.inputs
    return g.dy / (x * x + y * y)


def _nonzero(g: GradContext) -> Sym:
    """Emit dz where x is not 0, as OneFlow does for functions that are 0 at x = 0 for all y."""
    return g.one("where_scalar_y", g.inputs[0], g.dy, operand=0.0)


def _xdivy_right(g: GradContext) -> Sym:
    x, y = g.inputs
    return -(g.dy * g.one("xdivy", x, y * y))


def _flat(g: GradContext) -> Sym:
    """Emit zeros."""
    return g.one("zero_like", g.dy)


def _compare(name: str, function: Any, *rules: Rule) -> Binary:
    domain = (-2.0, 2.0)
    return Binary(
        f"broadcast_{name}", function, kinds="fiub", rules=rules, logical=True, domain=domain
    )


TABLE: tuple[Binary, ...] = (
    Binary(
        "broadcast_add", np.add, lambda g: g.dy, lambda g: g.dy,
        rules=(SUM, *RISES_LEFT, *RISES_RIGHT),
    ),
    Binary(
        "broadcast_sub", np.subtract, lambda g: g.dy, lambda g: -g.dy,
        rules=(SUM, *RISES_LEFT, *FALLS_RIGHT),
    ),
    Binary(
        "broadcast_mul", np.multiply,
        lambda g: g.dy * g.inputs[1], lambda g: g.dy * g.inputs[0], rules=(LEFT, RIGHT),
    ),
    Binary(
        "broadcast_div", divided,
        lambda g: g.dy / g.inputs[1], lambda g: -(g.dy * g.y / g.inputs[1]), rules=(LEFT,),
    ),
    Binary(
        "broadcast_floor_mod", np.mod,
        lambda g: g.dy, lambda g: -(g.dy * g.one("broadcast_floordiv", *g.inputs)),
    ),
    Binary("broadcast_floordiv", np.floor_divide, _flat, _flat),
    Binary("broadcast_pow", np.power, _pow_base, _pow_exponent, "f"),
    Binary(
        "broadcast_maximum", np.maximum,
        lambda g: _masked(g, "greater", g.dy), lambda g: _masked(g, "less_equal", g.dy),
        rules=(GREATEST, ((MIN, B), MIN), ((B, MIN), MIN)), ordered=True,
    ),
    Binary(
        "broadcast_minimum", np.minimum,
        lambda g: _masked(g, "less", g.dy), lambda g: _masked(g, "greater_equal", g.dy),
        rules=(LEAST, ((MAX, B), MAX), ((B, MAX), MAX)), ordered=True,
    ),
    Binary(
        "atan2", np.arctan2,
        lambda g: _atan2_radius(g) * g.inputs[1], lambda g: -(_atan2_radius(g) * g.inputs[0]),
        "f",
    ),
    Binary(
        "xdivy", _xdivy, lambda g: g.one("xdivy", _nonzero(g), g.inputs[1]), _xdivy_right,
        "f",
    ),
    Binary(
        "xlogy", _xlogy, lambda g: g.one("xlogy", _nonzero(g), g.inputs[1]),
        lambda g: g.dy * g.one("xdivy", *g.inputs), "f",
    ),
    _compare("equal", np.equal),
    _compare("not_equal", np.not_equal),
    _compare("greater", np.greater, *RISES_LEFT, *FALLS_RIGHT),
    _compare("greater_equal", np.greater_equal, *RISES_LEFT, *FALLS_RIGHT),
    _compare("less", np.less, *FALLS_LEFT, *RISES_RIGHT),
    _compare("less_equal", np.less_equal, *FALLS_LEFT, *RISES_RIGHT),
    _compare("logical_and", np.logical_and),
    _compare("logical_or", np.logical_or),
    _compare("logical_xor", np.logical_xor),
)  # fmt: skip

BY_NAME = {row.name: row for row in TABLE}

# names of OneFlow for ops of other rows, for inputs of the same shape only
SAME_SHAPE = {
    "multiply": "broadcast_mul", "pow": "broadcast_pow", "floordiv": "broadcast_floordiv",
    "elementwise_maximum": "broadcast_maximum", "elementwise_minimum": "broadcast_minimum",
}  # fmt: skip

# OneFlow's ops whose second input has one element and does not affect the result's shape
BY_TENSOR = {
    f"scalar_{kind}_by_tensor": f"broadcast_{kind}" for kind in ("add", "sub", "mul", "div")
}


def _infer(row: Binary) -> Callable[[InferContext], tuple[TensorType, ...]]:
    def infer(ctx: InferContext) -> tuple[TensorType, ...]:
        check_kinds(ctx, row.kinds)
        result = broadcast_type(ctx) if row.broadcasts else same_inputs(ctx)[0]
        return (tensor_type(result.shape, int8) if row.logical else result,)

    return infer


def _infer_by_tensor(ctx: InferContext) -> tuple[TensorType, ...]:
    x, scalar = ctx.inputs
    check_kinds(ctx, "fiu")
    if scalar.size != 1 or broadcast_type(ctx) != x:
        ctx.fail(f"a scalar of type {scalar} for {x}", f"{x.dtype}[1]")
    return (x,)


def _sbp(row: Binary) -> Callable[[SbpContext], Signatures]:
    def sbp(ctx: SbpContext) -> Signatures:
        # a sum of integer quotients is not the quotient of the sum
        cut = row.reference is divided and not ctx.inputs[0].dtype.is_floating
        truths = ctx.inputs[0].dtype.kind == "b"
        rules = () if cut or truths else row.rules
        if not (row.logical or row.ordered or floating(ctx)):  # integers wrap around
            rules = tuple(rule for rule in rules if rule[1] not in EXTREMES)
        return (*broadcast_sbp(ctx), *(Signature(ins, (out,)) for ins, out in rules))

    return sbp


def _gradient(row: Binary) -> Callable[[GradContext], Sequence[Sym | None]] | None:
    if row.logical:
        return None

    def gradient(g: GradContext) -> Sequence[Sym | None]:
        return [
            sum_to_shape(g, i, rule(g)) if rule and g.needed[i] else None
            for i, rule in enumerate((row.left, row.right))
        ]

    return gradient


SHAPES = (
    ((7,), (7,)), ((3, 5), (5,)), ((2, 3, 4), (3, 1)), ((4, 1), (1, 3)), ((5,), (2, 1, 5)),
    ((1,), (3,)), ((), (2, 2)),
)  # fmt: skip


def _pairs(row: Binary) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for a, b in SHAPES:
        if row.broadcasts or a == b:
            yield a, b
    yield (3, 4), (3, 4)


def _samples(row: Binary) -> Callable[[np.random.Generator], Iterator[Sample]]:
    """Return samples of a row, with nonzero integer divisors, and with ties where ties matter."""

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        smooth = row.left is not None
        for a, b in _pairs(row):
            yield Sample((rng.uniform(*row.domain, a), rng.uniform(*row.domain, b)), {}, smooth)
        yield Sample((np.zeros((0, 3)), np.zeros((0, 3))), {}, False, "no elements")
        for dtype in (np.int8, np.int32, np.int64, np.uint8) if "i" in row.kinds else ():
            yield Sample(_integers(rng, dtype), {}, False, np.dtype(dtype).name)
        if row.logical:
            ties = rng.integers(0, 2, (4, 5))
            yield Sample((ties * 1.0, rng.integers(0, 2, 5) * 1.0), {}, False, "ties")
            yield Sample((ties > 0, ties[:1] == 0), {}, False, "bool")

    return samples


def binary_spec(row: Binary) -> OpSpec:
    """Return the `OpSpec` of one row."""
    return OpSpec(
        type=row.name,
        inputs=("x", "y"),
        outputs=("z",),
        infer=_infer(row),
        sbp=_sbp(row),
        gradient=_gradient(row),
        reference=_as_int8(row.reference) if row.logical else row.reference,
        samples=_samples(row),
        elementwise=True,
        inplace=() if row.logical else (0, 1),
    )


def _as_int8(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: function(x, y).astype(np.int8)


def _integers(rng: np.random.Generator, dtype: DTypeLike) -> tuple[Array, Array]:
    low = 0 if dtype == np.uint8 else -9
    x, y = (rng.integers(low, 9, (3, 4)).astype(dtype) for _ in range(2))
    return np.maximum(x, y) if dtype == np.uint8 else x, np.where(y == 0, 1, y).astype(dtype)


def _same_shape_spec(name: str, row: Binary) -> OpSpec:
    return replace(binary_spec(replace(row, broadcasts=False)), type=name)


def _by_tensor_spec(name: str, row: Binary) -> OpSpec:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for a, b in (((3, 5), (1,)), ((4,), (1,)), ((2, 1, 3), ()), ((2, 2), (1, 1))):
            yield Sample((rng.uniform(*row.domain, a), rng.uniform(*row.domain, b)))
        x, y = _integers(rng, np.int32)
        yield Sample((x, y[0, :1]), gradient=False, note="int32")

    spec = binary_spec(row)
    return replace(
        spec, type=name, inputs=("x", "scalar"), outputs=("y",), infer=_infer_by_tensor,
        samples=samples, inplace=(0,),
    )  # fmt: skip


# choice


def _where_infer(ctx: InferContext) -> tuple[TensorType, ...]:
    """Infer the broadcast shape of all inputs, and the element type of the values."""
    values = ctx.inputs[1:]
    if any(t.dtype is not values[0].dtype for t in values):
        ctx.fail(", ".join(map(str, values)), "two values of one element type")
    try:
        shape = broadcast_shapes(*(t.shape for t in ctx.inputs))
    except ValueError as error:
        ctx.fail(str(error), "shapes that broadcast as in numpy")
    return (tensor_type(shape, values[0].dtype),)


def _where_sbp(ctx: SbpContext) -> Signatures:
    return (*broadcast_sbp(ctx), *any_partial(ctx, *range(1, len(ctx.inputs))))


def _where_scalar_sbp(ctx: SbpContext) -> Signatures:
    """Allow P only if the number is 0, since every device would add any other number."""
    partial = (Signature((B, P), (P,)),) if ctx.attrs["operand"] == 0 else ()
    return (*broadcast_sbp(ctx), *partial, *nondecreasing(ctx, 1))


def _where_gradient(g: GradContext) -> Sequence[Sym | None]:
    kept = ("where_scalar_y", "where_scalar_x")
    return (
        None,
        *(
            sum_to_shape(g, i, g.one(kept[i - 1], g.x, g.dy, operand=0.0)) if g.needed[i] else None
            for i in (1, 2)
        ),
    )


def _where_scalar_gradient(kind: str) -> Callable[[GradContext], Sequence[Sym | None]]:
    return lambda g: (None, sum_to_shape(g, 1, g.one(kind, g.x, g.dy, operand=0.0)))


def _where_samples(values: int) -> Callable[[np.random.Generator], Iterator[Sample]]:
    attrs = {"operand": 1.5} if values == 1 else {}

    def samples(rng: Any) -> Iterator[Sample]:
        for shapes in (((7,),) * 3, ((3, 1), (3, 5), (5,)), ((4,), (1,), (2, 4)), ((0, 2),) * 3):
            condition = rng.permutation(np.arange(np.prod(shapes[0])) % 3 - 1).astype(np.int8)
            condition = condition.reshape(shapes[0])
            arrays = tuple(rng.uniform(-2, 2, s) for s in shapes[1 : values + 1])
            yield Sample((condition, *arrays), attrs)
        for dtype in (np.int32, np.int64, np.bool_, np.float64):
            condition = rng.integers(0, 2, (3, 4)).astype(dtype)
            arrays = tuple(rng.integers(0, 9, (3, 4)) for _ in range(values))
            other = {"operand": -3} if attrs else {}
            yield Sample((condition, *arrays), other, False)

    return samples


def _where_spec(name: str, reference: Any, gradient: Any, **changes: Any) -> OpSpec:
    spec = OpSpec(
        type=name,
        inputs=("condition", "x", "y"),
        infer=_where_infer,
        sbp=_where_sbp,
        gradient=gradient,
        reference=reference,
        samples=_where_samples(2),
        elementwise=True,
        inplace=(1, 2),
    )
    return replace(spec, **changes)


def _where_scalar_spec(name: str, keeps: bool) -> OpSpec:
    def reference(condition: Array, value: Any, operand: float) -> Array:
        shape = np.broadcast_shapes(condition.shape, value.shape)
        other = np.full(shape, number(operand, value))
        return np.where((condition != 0) == keeps, value, other)

    return _where_spec(
        name, reference, _where_scalar_gradient(name), inputs=("condition", "x" if keeps else "y"),
        attrs={"operand": REQUIRED}, sbp=_where_scalar_sbp, samples=_where_samples(1),
        inplace=(1,),
    )  # fmt: skip


CHOICE_OPS = (
    _where_spec("where", lambda c, x, y: np.where(c != 0, x, y), _where_gradient),
    _where_scalar_spec("where_scalar_y", keeps=True),
    _where_scalar_spec("where_scalar_x", keeps=False),
)


# sums of many


def _add_n_infer(ctx: InferContext) -> tuple[TensorType, ...]:
    ctx.check(ctx.inputs, "no inputs", "one or more")
    check_kinds(ctx, "fiu")
    return same_inputs(ctx)


def _add_n_sbp(ctx: SbpContext) -> Signatures:
    """Return the SBP rules of a function that is nondecreasing in every input."""
    alone = (nondecreasing(ctx, i) for i in range(len(ctx.inputs) if floating(ctx) else 0))
    return (*linear(ctx), *(rule for rules in alone for rule in rules))


def _add_n_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for count, shape in ((1, (7,)), (2, (3, 5)), (3, (2, 1, 4)), (9, (5,)), (2, (0, 3))):
        yield Sample(tuple(rng.uniform(-2, 2, shape) for _ in range(count)))
    yield Sample(tuple(rng.integers(-9, 9, (3,)) for _ in range(3)), gradient=False)


ADD_N = OpSpec(
    type="add_n",
    inputs=("in*",),
    infer=_add_n_infer,
    sbp=_add_n_sbp,
    gradient=lambda g: (g.dy,) * len(g.inputs),
    reference=lambda *xs: sum(xs[1:], xs[0]),
    samples=_add_n_samples,
    elementwise=True,
    inplace=(0,),
)

OPS: tuple[OpSpec, ...] = (
    *map(binary_spec, TABLE),
    *(_same_shape_spec(name, BY_NAME[base]) for name, base in SAME_SHAPE.items()),
    *(_by_tensor_spec(name, BY_NAME[base]) for name, base in BY_TENSOR.items()),
    *scalar.FAMILY,
    *CHOICE_OPS,
    ADD_N,
)
