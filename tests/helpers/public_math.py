"""Calls of ``flow.math`` and of the top-level functions on elements, with what numpy gives.

A call is a function of the facade's blobs, the arrays that it is fed, and the function of arrays
that it must equal.  Its key starts with the public name.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf, erfc, lgamma
from typing import Any

import numpy as np

import oneflow as flow

Call = tuple[Callable[..., Any], tuple[Any, ...], Callable[..., Any]]

RNG = np.random.default_rng(3)


def f32(*shape: int, low: float = -2.0, high: float = 2.0) -> Any:
    return RNG.uniform(low, high, shape).astype(np.float32)


def i32(*shape: int, low: int = -5, high: int = 6) -> Any:
    return RNG.integers(low, high, shape).astype(np.int32)


def as8(truth: Any) -> Any:
    return np.asarray(truth).astype(np.int8)


def per_element(function: Callable[[float], float]) -> Callable[[Any], Any]:
    return lambda x: np.vectorize(function, otypes=[np.float64])(x).astype(x.dtype)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def gelu(x: Any) -> Any:
    return x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2


def gelu_slope(x: Any) -> Any:
    return (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2 + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


X = f32(4, 3)
UNIT = f32(4, 3, low=-0.95, high=0.95)
POSITIVE = f32(4, 3, low=0.1, high=4.0)
HALVES = np.array([[-2.5, -1.5, -0.5], [0.5, 1.5, 2.5], [-0.2, 0.0, 0.7], [3.0, -3.0, 9.9]], "f4")

UNARY: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "abs": (X, np.abs),
    "acos": (UNIT, np.arccos),
    "acosh": (POSITIVE + 1, np.arccosh),
    "asin": (UNIT, np.arcsin),
    "asinh": (X, np.arcsinh),
    "atan": (X, np.arctan),
    "atanh": (UNIT, np.arctanh),
    "ceil": (HALVES, np.ceil),
    "cos": (X, np.cos),
    "cosh": (X, np.cosh),
    "erf": (X, per_element(erf)),
    "erfc": (X, per_element(erfc)),
    "exp": (X, np.exp),
    "expm1": (X, np.expm1),
    "floor": (HALVES, np.floor),
    "gelu": (X, gelu),
    "lgamma": (POSITIVE, per_element(lgamma)),
    "log": (POSITIVE, np.log),
    "log1p": (POSITIVE, np.log1p),
    "log_sigmoid": (X, lambda x: np.log(sigmoid(x))),
    "negative": (X, np.negative),
    "reciprocal": (POSITIVE, np.reciprocal),
    "reciprocal_no_nan": (
        np.array([2.0, 0.0, -4.0, 1.0], np.float32),
        lambda x: np.divide(1, x, out=np.zeros_like(x), where=x != 0),
    ),
    "relu": (X, lambda x: np.maximum(x, 0)),
    "rint": (HALVES, np.rint),
    "round": (HALVES, np.rint),
    "rsqrt": (POSITIVE, lambda x: 1 / np.sqrt(x)),
    "sigmoid": (X, sigmoid),
    "sigmoid_v2": (X, sigmoid),
    "sign": (HALVES, np.sign),
    "sin": (X, np.sin),
    "sinh": (X, np.sinh),
    "softplus": (X * 20, lambda x: np.logaddexp(x, 0)),
    "sqrt": (POSITIVE, np.sqrt),
    "square": (X, np.square),
    "tan": (UNIT, np.tan),
    "tanh": (X, np.tanh),
    "tanh_v2": (X, np.tanh),
}

Y, ROW, COLUMN, ONE = f32(4, 3), f32(1, 3), f32(4, 1), f32(1)
N, M = i32(4, 3), i32(4, 3, low=1)
SIGNS = np.array([[1, -1, 0], [2, 2, -2], [0, 0, 1], [5, -5, 4]], np.float32)


def cut(x: Any, y: Any) -> Any:
    return np.trunc(x / y).astype(x.dtype)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": lambda x, y: as8(x == y),
    "not_equal": lambda x, y: as8(x != y),
    "less": lambda x, y: as8(x < y),
    "less_equal": lambda x, y: as8(x <= y),
    "greater": lambda x, y: as8(x > y),
    "greater_equal": lambda x, y: as8(x >= y),
    "logical_and": lambda x, y: as8((x != 0) & (y != 0)),
    "squared_difference": lambda x, y: (x - y) ** 2,
}
SHAPES = {"": (X, Y), "a row": (X, ROW), "two sides": (COLUMN, ROW), "one first": (ONE, X)}

CALLS: dict[str, Call] = {
    f"math.{name}": (getattr(flow.math, name), (x,), wanted) for name, (x, wanted) in UNARY.items()
}
CALLS |= {
    f"math.{name}: {label}": (getattr(flow.math, name), pair, wanted)
    for name, wanted in BINARY.items()
    for label, pair in (SHAPES | {"integers": (N, M), "ties": (SIGNS, np.roll(SIGNS, 1))}).items()
}
CALLS |= {
    f"math.{name}: {label}": (getattr(flow.math, name), (x, y), wanted)
    for name, wanted in {"divide": np.divide, "floordiv": np.floor_divide, "mod": np.mod}.items()
    for label, (x, y) in (SHAPES | {"signs": (X * 3, Y)}).items()
}
CALLS |= {
    "math.divide: integers": (flow.math.divide, (N, M), cut),
    "math.mod: integers": (flow.math.mod, (N, M), np.mod),
    "math.floordiv: integers": (flow.math.floordiv, (N, M), np.floor_divide),
    "math.atan2": (flow.math.atan2, (X, Y), np.arctan2),
    "math.pow": (flow.math.pow, (POSITIVE, Y), np.power),
    "math.pow: number": (lambda x: flow.math.pow(x, 2.0), (X,), np.square),
    "math.pow: whole number": (lambda x: flow.math.pow(x, 3), (X,), lambda x: x**3),
    "math.xdivy": (
        flow.math.xdivy,
        (np.array([0, 1, 2], "f4"), np.array([0, 2, 4], "f4")),
        lambda x, y: np.array([0, 0.5, 0.5]),
    ),
    "math.xlogy": (
        flow.math.xlogy,
        (np.array([0, 1, 2], "f4"), np.array([0, 2, 4], "f4")),
        lambda x, y: np.array([0, np.log(2), 2 * np.log(4)]),
    ),
    "math.add: numbers": (lambda x: 2 + (1.5 + x) + 3, (X,), lambda x: x + 6.5),
    "math.add: numbers and integers": (lambda x: flow.math.add(x, 2), (N,), lambda x: x + 2),
    "math.subtract: numbers": (lambda x: 2 - (x - 0.5), (X,), lambda x: 2.5 - x),
    "math.multiply: numbers": (lambda x: 2 * x * 0.25, (X,), lambda x: x / 2),
    "math.divide: numbers": (lambda x: (1 / x) / 4, (POSITIVE,), lambda x: 0.25 / x),
    "math.negative: operator": (lambda x: -x, (N,), np.negative),
    "math.add: operators": (
        lambda x, y: x / (y + 3) - x * y,
        (X, Y),
        lambda x, y: x / (y + 3) - x * y,
    ),
    "math.less: operators": (
        lambda x, y: (x < y) * 1 + (x <= y) * 2 + (x > y) * 4 + (x >= y) * 8,
        (SIGNS, np.roll(SIGNS, 1)),
        lambda x, y: as8((x < y) * 1 + (x <= y) * 2 + (x > y) * 4 + (x >= y) * 8),
    ),
    "math.equal: operators": (
        lambda x, y: flow.math.add(x == y, (x != y) * 2),
        (SIGNS, np.roll(SIGNS, 1)),
        lambda x, y: as8((x == y) * 1 + (x != y) * 2),
    ),
    "math.add_n": (lambda *xs: flow.math.add_n(xs), (X, Y, UNIT), lambda *xs: sum(xs)),
    "math.add_n: many": (lambda x: flow.math.add_n([x] * 20), (X,), lambda x: 20 * x),
    "math.add_n: one": (lambda x: flow.math.add_n([x]), (X,), lambda x: x),
    "math.polyval": (
        lambda x: flow.math.polyval([1.0, 3.0, -2.0], x),
        (X,),
        lambda x: x * x + 3 * x - 2,
    ),
    "math.sigmoid_grad": (flow.math.sigmoid_grad, (UNIT, X), lambda y, dy: dy * y * (1 - y)),
    "math.gelu_grad": (flow.math.gelu_grad, (X, Y), lambda x, dy: dy * gelu_slope(x)),
    "math.abs: integers": (flow.math.abs, (N,), np.abs),
    "math.clip_by_value": (
        lambda x: flow.math.clip_by_value(x, -1.0, 1.0),
        (X,),
        lambda x: np.clip(x, -1, 1),
    ),
    "clip_by_value": (
        lambda x: flow.clip_by_value(x, -1, 1.5),
        (X,),
        lambda x: np.clip(x, -1, 1.5),
    ),
    "clip_by_scalar": (
        lambda x: flow.clip_by_scalar(x, min_value=0.25),
        (X,),
        lambda x: np.maximum(x, 0.25),
    ),
    "clip": (lambda x: flow.clip(x, max_value=1), (N,), lambda x: np.minimum(x, 1)),
    "clamp": (lambda x: flow.clamp(x, -2, 2), (N,), lambda x: np.clip(x, -2, 2)),
    "where": (flow.where, (as8(X > 0), X, Y), np.where),
    "where: broadcast": (flow.where, (as8(COLUMN > 0), X, ROW), np.where),
    "where: int32 condition": (flow.where, (N, X, Y), lambda c, x, y: np.where(c != 0, x, y)),
    "masked_fill": (
        lambda x, m: flow.masked_fill(x, m, -1.5),
        (X, as8(Y > 0)),
        lambda x, m: np.where(m, -1.5, x),
    ),
    "cast": (lambda x: flow.cast(x, flow.int32), (HALVES,), lambda x: x.astype("i4")),
    "cast: to int8 and back": (
        lambda x: flow.cast(flow.cast(x, flow.int8), flow.float),
        (HALVES,),
        lambda x: x.astype("i1").astype("f4"),
    ),
    "cast: to double": (lambda x: flow.cast(x, flow.double), (X,), lambda x: x.astype("f8")),
    "math.l2_normalize": (
        lambda x: flow.math.l2_normalize(x, 1),
        (X,),
        lambda x: x / np.sqrt((x * x).sum(1, keepdims=True)),
    ),
    "math.l2_normalize: negative axis, small": (
        lambda x: flow.math.l2_normalize(x * 0.001, -2, 0.25),
        (X,),
        lambda x: x * 0.001 / 0.5,
    ),
    "math.in_top_k": (
        lambda t, p: flow.math.in_top_k(t, p, 1),
        (np.array([3, 1], "i4"), np.array([[0.0, 1, 2, 3], [3, 2, 1, 0]], "f4")),
        lambda t, p: as8([1, 0]),
    ),
    "in_top_k": (
        lambda t, p: flow.in_top_k(t, p, 2),
        (np.array([3, 1], "i4"), np.array([[0.0, 1, 2, 3], [3, 2, 1, 0]], "f4")),
        lambda t, p: as8([1, 1]),
    ),
    "math.top_k": (
        lambda x: flow.math.top_k(x, k=2),
        (X,),
        lambda x: np.argsort(-x, 1, kind="stable")[:, :2].astype("i4"),
    ),
    "math.top_k: axis 0": (
        lambda x: flow.math.top_k(x, axis=0, k=3),
        (X,),
        lambda x: np.argsort(-x, 0, kind="stable")[:3].astype("i4"),
    ),
    "math.argmax": (flow.math.argmax, (X,), lambda x: x.argmax(1).astype("i4")),
    "math.argmax: axis 0": (
        lambda x: flow.math.argmax(x, 0),
        (f32(3, 4, 2),),
        lambda x: x.argmax(0).astype("i4"),
    ),
    "math.argmax: one axis": (
        flow.math.argmax,
        (f32(7),),
        lambda x: x.argmax(keepdims=True).astype("i4"),
    ),
    "math.reduced_shape_elem_cnt": (
        lambda x: flow.math.reduced_shape_elem_cnt(x, [0, -1]),
        (f32(3, 4, 2),),
        lambda x: np.array([6], "i4"),
    ),
    "math.tril": (lambda x: flow.math.tril(x), (f32(2, 4, 3),), np.tril),
    "nn.tril": (
        lambda x: flow.nn.tril(x, 1, fill_value=-7),
        (f32(3, 5),),
        lambda x: np.where(np.tri(3, 5, 1), x, -7),
    ),
    "math.fused_scale_tril": (
        lambda x: flow.math.fused_scale_tril(x, -1, 0.5, 2),
        (f32(4, 4),),
        lambda x: np.where(np.tri(4, 4, -1), 2 * x, 0.5),
    ),
    "nn.fused_scale_tril": (
        lambda x: flow.nn.fused_scale_tril(x, scale=0.5),
        (f32(2, 2, 4, 4),),
        lambda x: np.tril(x / 2),
    ),
}


def logsumexp(x: Any, axis: Any, keepdims: bool) -> Any:
    return np.log(np.exp(x).sum(axis, keepdims=keepdims))


REDUCE: dict[str, tuple[Any, Callable[..., Any]]] = {
    "sum": (f32(2, 3, 4), np.sum),
    "max": (f32(2, 3, 4), np.max),
    "min": (f32(2, 3, 4), np.min),
    "prod": (f32(2, 3, 4), np.prod),
    "mean": (f32(2, 3, 4), np.mean),
    "std": (f32(2, 3, 4), np.std),
    "variance": (f32(2, 3, 4), np.var),
    "any": (
        i32(2, 3, 4, low=0, high=2),
        lambda x, axis, keepdims: as8(x.any(axis, keepdims=keepdims)),
    ),
    "all": (
        i32(2, 3, 4, low=0, high=4),
        lambda x, axis, keepdims: as8(x.all(axis, keepdims=keepdims)),
    ),
    "euclidean_norm": (
        f32(2, 3, 4),
        lambda x, axis, keepdims: np.sqrt((x * x).sum(axis, keepdims=keepdims)),
    ),
    "logsumexp": (f32(2, 3, 4), logsumexp),
}


def reducing(function: Any, axis: Any, keepdims: bool) -> Callable[[Any], Any]:
    return lambda x: function(x, axis=axis, keepdims=keepdims)


def reduced(function: Any, axis: Any, keepdims: bool) -> Callable[[Any], Any]:
    axes = tuple(axis) if isinstance(axis, list) else axis
    return lambda x: np.atleast_1d(function(x, axis=axes, keepdims=keepdims))


CALLS |= {
    f"math.reduce_{name}: {axis}{' kept' * keepdims}": (
        reducing(getattr(flow.math, f"reduce_{name}"), axis, keepdims),
        (x,),
        reduced(wanted, axis, keepdims),
    )
    for name, (x, wanted) in REDUCE.items()
    for axis, keepdims in (
        (None, False),
        (None, True),
        (1, False),
        ([0, -1], True),
        ([0, 2], False),
    )
}
CALLS |= {
    f"math.two_stage_reduce_{name}": (
        reducing(getattr(flow.math, f"two_stage_reduce_{name}"), axis, True),
        (X,),
        reduced(wanted, axis, True),
    )
    for name, wanted, axis in (("max", np.max, 1), ("min", np.min, [0]))
}
CALLS |= {
    f"math.reduce_{name}: integers": (
        reducing(getattr(flow.math, f"reduce_{name}"), 0, False),
        (N,),
        reduced(wanted, 0, False),
    )
    for name, wanted in (
        ("sum", lambda x, axis, keepdims: x.sum(axis, dtype="i4")),
        ("max", np.max),
    )
}
