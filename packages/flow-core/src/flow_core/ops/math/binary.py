"""Elementwise ops of two inputs that broadcast, defined by one table, and related ops.

The gradient of an input that was broadcast is summed back to its shape by ``reduce_sum_like``.
As in OneFlow, comparisons and logical ops return int8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.base.dtypes import int8
from flow_core.base.shapes import Shape, broadcast_shapes
from flow_core.ir.graph import tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.math import scalar
from flow_core.ops.math.broadcasting import check_kinds, number, sum_to_shape
from flow_core.ops.rules import (
    Row,
    any_partial,
    broadcast_sbp,
    broadcast_type,
    floating,
    linear,
    nondecreasing,
    same_inputs,
    signatures,
)
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, Signatures

Derivative = Callable[[GradContext], Sym]

SUM: Row = ((P, P), P)
LEFT: Row = ((P, B), P)
RIGHT: Row = ((B, P), P)
MAX, MIN = EXTREMES
GREATEST: Row = ((MAX, MAX), MAX)
LEAST: Row = ((MIN, MIN), MIN)
RISES_LEFT: tuple[Row, ...] = (((MAX, B), MAX), ((MIN, B), MIN))
RISES_RIGHT: tuple[Row, ...] = (((B, MAX), MAX), ((B, MIN), MIN))
FALLS_LEFT: tuple[Row, ...] = (((MAX, B), MIN), ((MIN, B), MAX))
FALLS_RIGHT: tuple[Row, ...] = (((B, MAX), MIN), ((B, MIN), MAX))


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


SHAPES = (
    ((7,), (7,)), ((3, 5), (5,)), ((2, 3, 4), (3, 1)), ((4, 1), (1, 3)), ((5,), (2, 1, 5)),
    ((1,), (3,)), ((), (2, 2)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Binary(OpDef):
    """A row of the table of elementwise ops."""

    type: str
    function: Callable[[Any, Any], Any]  # numpy semantics
    left: Derivative | None = None  # gradient before it is summed back to the input's shape
    right: Derivative | None = None  # likewise
    # Kinds of element types that the op takes: f(loating), i(nteger), u(nsigned), b(ool).
    kinds: str = "fiu"
    rules: tuple[Row, ...] = ()  # SBP rules in addition to the splits
    domain: tuple[float, float] = (0.3, 3.0)  # interval from which samples are drawn
    broadcasts: bool = True  # whether shapes may differ
    # Whether the op preserves the order of integers, because no result wraps around.
    ordered: bool = False
    schema = "(x, y) -> z"
    elementwise = True

    def infer(self, ctx: InferContext) -> Types:
        check_kinds(ctx, self.kinds)
        return (broadcast_type(ctx),) if self.broadcasts else same_inputs(ctx)

    def sbp(self, ctx: SbpContext) -> Signatures:
        # a sum of integer quotients is not the quotient of the sum
        cut = self.function is divided and not floating(ctx)
        truths = ctx.inputs[0].dtype.kind == "b"
        rules = () if cut or truths else self.rules
        if not (self.ordered or floating(ctx)):  # integers wrap around
            rules = tuple(rule for rule in rules if rule[1] not in EXTREMES)
        return signatures(*broadcast_sbp(ctx), *rules)

    def reference(self, x: Array, y: Array) -> Any:
        return self.function(x, y)

    def samples(self, rng: Rng) -> Samples:
        """Yield samples with nonzero integer divisors."""
        smooth = self.left is not None
        for a, b in self._shapes():
            yield Sample((rng.uniform(*self.domain, a), rng.uniform(*self.domain, b)), {}, smooth)
        yield Sample((np.zeros((0, 3)), np.zeros((0, 3))), {}, False, "no elements")
        for dtype in (np.int8, np.int32, np.int64, np.uint8) if "i" in self.kinds else ():
            yield Sample(_integers(rng, dtype), {}, False, np.dtype(dtype).name)

    def _shapes(self) -> Iterator[tuple[Shape, Shape]]:
        yield from (pair for pair in SHAPES if self.broadcasts or pair[0] == pair[1])
        yield (3, 4), (3, 4)


class Arithmetic(Binary):
    """A row with derivatives."""

    inplace: tuple[int, ...] = (0, 1)

    def gradient(self, g: GradContext) -> Gradients:
        return [
            sum_to_shape(g, i, rule(g)) if rule and g.needed[i] else None
            for i, rule in enumerate((self.left, self.right))
        ]


class Comparison(Binary):
    """A row whose results are truth values."""

    def infer(self, ctx: InferContext) -> Types:
        (result,) = Binary.infer(self, ctx)
        return (tensor_type(result.shape, int8),)

    def reference(self, x: Array, y: Array) -> Any:
        return self.function(x, y).astype(np.int8)

    def samples(self, rng: Rng) -> Samples:
        yield from Binary.samples(self, rng)
        ties = rng.integers(0, 2, (4, 5))
        yield Sample((ties * 1.0, rng.integers(0, 2, 5) * 1.0), {}, False, "ties")
        yield Sample((ties > 0, ties[:1] == 0), {}, False, "bool")


def _compare(name: str, function: Any, *rules: Row) -> Comparison:
    return Comparison(
        f"broadcast_{name}", function, kinds="fiub", rules=rules, domain=(-2.0, 2.0), ordered=True
    )


def _integers(rng: np.random.Generator, dtype: DTypeLike) -> tuple[Array, Array]:
    low = 0 if dtype == np.uint8 else -9
    x, y = (rng.integers(low, 9, (3, 4)).astype(dtype) for _ in range(2))
    return np.maximum(x, y) if dtype == np.uint8 else x, np.where(y == 0, 1, y).astype(dtype)


TABLE: tuple[Binary, ...] = (
    Arithmetic(
        "broadcast_add", np.add, lambda g: g.dy, lambda g: g.dy,
        rules=(SUM, *RISES_LEFT, *RISES_RIGHT),
    ),
    Arithmetic(
        "broadcast_sub", np.subtract, lambda g: g.dy, lambda g: -g.dy,
        rules=(SUM, *RISES_LEFT, *FALLS_RIGHT),
    ),
    Arithmetic(
        "broadcast_mul", np.multiply,
        lambda g: g.dy * g.inputs[1], lambda g: g.dy * g.inputs[0], rules=(LEFT, RIGHT),
    ),
    Arithmetic(
        "broadcast_div", divided,
        lambda g: g.dy / g.inputs[1], lambda g: -(g.dy * g.y / g.inputs[1]), rules=(LEFT,),
    ),
    Arithmetic(
        "broadcast_floor_mod", np.mod,
        lambda g: g.dy, lambda g: -(g.dy * g.one("broadcast_floordiv", *g.inputs)),
    ),
    Arithmetic("broadcast_floordiv", np.floor_divide, _flat, _flat),
    Arithmetic("broadcast_pow", np.power, _pow_base, _pow_exponent, "f"),
    Arithmetic(
        "broadcast_maximum", np.maximum,
        lambda g: _masked(g, "greater", g.dy), lambda g: _masked(g, "less_equal", g.dy),
        rules=(GREATEST, ((MIN, B), MIN), ((B, MIN), MIN)), ordered=True,
    ),
    Arithmetic(
        "broadcast_minimum", np.minimum,
        lambda g: _masked(g, "less", g.dy), lambda g: _masked(g, "greater_equal", g.dy),
        rules=(LEAST, ((MAX, B), MAX), ((B, MAX), MAX)), ordered=True,
    ),
    Arithmetic(
        "atan2", np.arctan2,
        lambda g: _atan2_radius(g) * g.inputs[1], lambda g: -(_atan2_radius(g) * g.inputs[0]),
        "f",
    ),
    Arithmetic(
        "xdivy", _xdivy, lambda g: g.one("xdivy", _nonzero(g), g.inputs[1]), _xdivy_right,
        "f",
    ),
    Arithmetic(
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

BY_NAME = {row.type: row for row in TABLE}

# names of OneFlow for ops of other rows, for inputs of the same shape only
SAME_SHAPE = {
    "multiply": "broadcast_mul", "pow": "broadcast_pow", "floordiv": "broadcast_floordiv",
    "elementwise_maximum": "broadcast_maximum", "elementwise_minimum": "broadcast_minimum",
}  # fmt: skip

# OneFlow's ops whose second input has one element and does not affect the result's shape
BY_TENSOR = {
    f"scalar_{kind}_by_tensor": f"broadcast_{kind}" for kind in ("add", "sub", "mul", "div")
}


class ByTensor(Arithmetic):
    """A row of `BY_TENSOR`."""

    schema = "(x, scalar) -> y"
    inplace = (0,)

    def infer(self, ctx: InferContext) -> Types:
        x, scalar = ctx.inputs
        check_kinds(ctx, "fiu")
        if scalar.size != 1 or broadcast_type(ctx) != x:
            ctx.fail(f"a scalar of type {scalar} for {x}", f"{x.dtype}[1]")
        return (x,)

    def samples(self, rng: Rng) -> Samples:
        for a, b in (((3, 5), (1,)), ((4,), (1,)), ((2, 1, 3), ()), ((2, 2), (1, 1))):
            yield Sample((rng.uniform(*self.domain, a), rng.uniform(*self.domain, b)))
        x, y = _integers(rng, np.int32)
        yield Sample((x, y[0, :1]), gradient=False, note="int32")


def _by_tensor(type_: str, row: Binary) -> ByTensor:
    return ByTensor(type_, row.function, row.left, row.right, rules=row.rules)


class Choice(OpDef):
    """An op whose first input is the condition."""

    elementwise = True

    def infer(self, ctx: InferContext) -> Types:
        """Infer the broadcast shape of all inputs, and the element type of the values."""
        values = ctx.inputs[1:]
        if any(t.dtype is not values[0].dtype for t in values):
            ctx.fail(", ".join(map(str, values)), "two values of one element type")
        try:
            shape = broadcast_shapes(*(t.shape for t in ctx.inputs))
        except ValueError as error:
            ctx.fail(str(error), "shapes that broadcast as in numpy")
        return (tensor_type(shape, values[0].dtype),)

    def samples(self, rng: Rng) -> Samples:
        count = len(self.inputs) - 1
        attrs, others = ({"operand": 1.5}, {"operand": -3}) if count == 1 else ({}, {})
        for shapes in (((7,),) * 3, ((3, 1), (3, 5), (5,)), ((4,), (1,), (2, 4)), ((0, 2),) * 3):
            condition = rng.permutation(np.arange(np.prod(shapes[0])) % 3 - 1).astype(np.int8)
            condition = condition.reshape(shapes[0])
            values = (rng.uniform(-2, 2, s) for s in shapes[1 : count + 1])
            yield Sample((condition, *values), attrs)
        for dtype in (np.int32, np.int64, np.bool_, np.float64):
            whether = rng.integers(0, 2, (3, 4)).astype(dtype)
            arrays = (rng.integers(0, 9, (3, 4)) for _ in range(count))
            yield Sample((whether, *arrays), others, False)


class Where(Choice):
    schema = "where(condition, x, y) -> out"
    inplace = (1, 2)
    sbp = staticmethod(lambda ctx: (*broadcast_sbp(ctx), *any_partial(ctx, 1, 2)))
    reference = staticmethod(lambda condition, x, y: np.where(condition != 0, x, y))

    def gradient(self, g: GradContext) -> Gradients:
        def choose(kind: str, index: int) -> Sym | None:
            if not g.needed[index]:
                return None
            return sum_to_shape(g, index, g.one(kind, g.x, g.dy, operand=0.0))

        return None, choose("where_scalar_y", 1), choose("where_scalar_x", 2)


class WhereScalar(Choice):
    """A choice of a number where the condition is 0, or where it is not."""

    attrs = {"operand": REQUIRED}
    inplace = (1,)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Allow P only if the number is 0, since every device would add any other number."""
        partial = () if ctx.attrs["operand"] else (((B, P), P),)
        return signatures(*broadcast_sbp(ctx), *partial, *nondecreasing(ctx, 1))

    def gradient(self, g: GradContext) -> Gradients:
        return None, sum_to_shape(g, 1, g.one(g.op.type, g.x, g.dy, operand=0.0))

    def reference(self, condition: Array, value: Array, operand: float) -> Any:
        shape = np.broadcast_shapes(condition.shape, value.shape)
        keeps = (condition != 0) == (self.inputs[1] == "x")
        return np.where(keeps, value, np.full(shape, number(operand, value)))


class WhereScalarY(WhereScalar):
    schema = "where_scalar_y(condition, x) -> out"


class WhereScalarX(WhereScalar):
    schema = "where_scalar_x(condition, y) -> out"


class AddN(OpDef):
    schema = "add_n(in*) -> out"
    elementwise = True
    inplace = (0,)
    gradient = staticmethod(lambda g: (g.dy,) * len(g.inputs))
    reference = staticmethod(lambda *xs: sum(xs[1:], xs[0]))

    def infer(self, ctx: InferContext) -> Types:
        ctx.check(ctx.inputs, "no inputs", "one or more")
        check_kinds(ctx, "fiu")
        return same_inputs(ctx)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Return the SBP rules of a function that is nondecreasing in every input."""
        alone = (nondecreasing(ctx, i) for i in range(len(ctx.inputs) if floating(ctx) else 0))
        return (*linear(ctx), *(rule for rules in alone for rule in rules))

    def samples(self, rng: Rng) -> Samples:
        for count, shape in ((1, (7,)), (2, (3, 5)), (3, (2, 1, 4)), (9, (5,)), (2, (0, 3))):
            yield Sample(tuple(rng.uniform(-2, 2, shape) for _ in range(count)))
        yield Sample(tuple(rng.integers(-9, 9, (3,)) for _ in range(3)), gradient=False)


OPS = (
    *specs(*TABLE, Where, WhereScalarY, WhereScalarX, AddN),
    *specs(*(replace(BY_NAME[row], type=t, broadcasts=False) for t, row in SAME_SHAPE.items())),
    *specs(*(_by_tensor(type_, BY_NAME[row]) for type_, row in BY_TENSOR.items())),
    *scalar.FAMILY,
)
