"""Reductions of ``flow.math`` and their gradients, compared with numpy in float64.

The numbers are near the limits of their type, special, or points where a formula of the gradient
divides by zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import as_dtype

nan, inf = np.nan, np.inf
Function = Callable[..., Any]


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return np.logaddexp.reduce(x, axis=axis, keepdims=keepdims)


def norm(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return np.sqrt(np.square(x).sum(axis=axis, keepdims=keepdims))


REDUCTIONS: dict[str, Function] = {
    "reduce_mean": np.mean, "reduce_variance": np.var, "reduce_std": np.std,
    "reduce_euclidean_norm": norm, "reduce_logsumexp": logsumexp, "reduce_max": np.max,
    "reduce_min": np.min, "reduce_sum": np.sum, "reduce_prod": np.prod,
}  # fmt: skip
STATISTICS = [name for name in REDUCTIONS if name not in ("reduce_sum", "reduce_prod")]
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 2e-5, "float64": 1e-12}


def reduced(name: str, x: Any, dtype: str, **options: Any) -> Any:
    """Return a reduction of numbers of some type, as float64."""
    kind = as_dtype(dtype)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(x.shape, flow.double)) -> tp.Numpy:
        y = getattr(flow.math, name)(flow.cast(x, kind), **options)
        return flow.cast(y, flow.double)

    return job(x)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", STATISTICS)
def test_many_numbers_near_100(name: str, dtype: str) -> None:
    x = np.random.default_rng(0).uniform(50, 150, (2, 2048))
    x = x.astype(as_dtype(dtype).numpy).astype(float)
    for axis in (None, 1):
        exact = REDUCTIONS[name](x, axis=axis)
        np.testing.assert_allclose(
            reduced(name, x, dtype, axis=axis).reshape(np.shape(exact)), exact, TOLERANCE[dtype]
        )


@pytest.mark.parametrize("name", ["reduce_std", "reduce_euclidean_norm"])
def test_squares_beyond_float16(name: str) -> None:
    x = np.array([[-3000.0, 3000, 1000], [500, 600, 700]])
    np.testing.assert_allclose(
        reduced(name, x, "float16", axis=1), REDUCTIONS[name](x, axis=1), 1e-3
    )


ROWS = [
    [-inf, -inf, -inf], [inf, 1, 2], [-inf, 1, 2], [inf, -inf, 0], [nan, 1, 2], [inf, inf, inf],
    [0, 0, 0], [-0.0, 0, 1], [2, 2, 2], [-1, 0, 1],
]  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_special_values(name: str, dtype: str) -> None:
    x = np.array(ROWS, float)
    with warnings.catch_warnings(action="ignore"):
        exact = REDUCTIONS[name](x, axis=1)
    found = [
        reduced(name, x, dtype, axis=1),
        reduced(name, x, dtype, axis=[1], keepdims=True)[:, 0],
    ]
    for y in found:
        np.testing.assert_allclose(y, exact, TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_means_of_integers_are_truncated_and_do_not_overflow(dtype: str, axis: int | None) -> None:
    limits = np.iinfo(dtype)
    x = np.array([[limits.max, limits.max - 5, 100], [limits.min, limits.min, 3]], dtype)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(x.shape, as_dtype(dtype))) -> tp.Numpy:
        return flow.math.reduce_mean(x, axis=axis)

    total = x.astype(object).sum(axis, keepdims=True)
    count = x.size // total.size
    exact = [abs(n) // count * (1 if n > 0 else -1) for n in total.reshape(-1)]
    assert job(x).tolist() == exact


def gradient(function: Function, x: Any) -> Any:
    """Return the gradient of the sum of a function's results."""

    @flow.global_function(type="train")
    def job() -> tp.Numpy:
        v = flow.get_variable("v", x.shape, flow.double, flow.zeros_initializer())
        flow.optimizer.SGD(1.0, momentum=0).minimize(flow.math.reduce_sum(function(v)))
        return v

    flow.load_variables({"v": x})
    job()
    return x - flow.get_all_variables()["v"].numpy()


POINTS = np.array([[0.0, 0, 0], [2, 2, 2], [0, 2, 3], [-1, 0.5, 4]])


@pytest.mark.parametrize("name", [*STATISTICS, "reduce_sum", "reduce_prod"])
def test_gradients_are_finite(name: str) -> None:
    """Where the function is smooth, they are finite differences; at a kink, torch's subgradient."""
    function, exact = getattr(flow.math, name), REDUCTIONS[name]
    found = gradient(lambda v: function(v, axis=1), POINTS)
    assert np.isfinite(found).all()
    kinks = {"reduce_euclidean_norm": [0], "reduce_std": [0, 1], "reduce_max": [0, 1],
             "reduce_min": [0, 1]}.get(name, [])  # fmt: skip
    for row, x in enumerate(POINTS):
        if row in kinks:
            shared = 1 / 3 if name in ("reduce_max", "reduce_min") else 0
            np.testing.assert_allclose(found[row], shared)
            continue
        steps = 1e-6 * np.eye(3)
        slopes = [(exact(x + step) - exact(x - step)) / 2e-6 for step in steps]
        np.testing.assert_allclose(found[row], slopes, rtol=1e-5, atol=1e-7)


def test_gradients_of_logsumexp_at_infinities() -> None:
    """A row without a finite number has no slope; as in torch, that of +inf is undefined."""
    x = np.array([[-inf, -inf], [-inf, 1], [inf, 1]])
    grads: list[Any] = []

    @flow.global_function(type="train")
    def job() -> tp.Numpy:
        v = flow.get_variable("u", x.shape, flow.double, flow.zeros_initializer())
        flow.watch_diff(v, lambda diff: grads.append(diff.numpy()))
        loss = flow.math.reduce_sum(flow.math.reduce_logsumexp(v, axis=1))
        flow.optimizer.SGD(0.0, momentum=0).minimize(loss)
        return loss

    flow.load_variables({"u": x})
    job()
    np.testing.assert_array_equal(grads[0], [[0, 0], [0, 1], [nan, 0]])


@pytest.mark.parametrize("p", [2, 3])
def test_distances_of_equal_points_have_finite_gradients(p: int) -> None:
    def loss(v: Any) -> Any:
        zeros = flow.zeros_like(v)
        return flow.nn.TripletMarginLoss(v, zeros, zeros, margin=1.0, p=p, eps=0.0)

    assert np.isfinite(gradient(loss, np.zeros((2, 3)))).all()


def test_a_mean_over_a_split_axis_does_not_overflow() -> None:
    """Each device divides by the elements of all devices before it rounds to float16."""
    x = np.random.default_rng(0).uniform(90, 110, (2048, 2))

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(x.shape, flow.double)) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            half = flow.cast(x, flow.float16)
            half = flow.parallel_cast(half, distribute=flow.distribute.split(0))
            return flow.cast(flow.math.reduce_mean(half, axis=0), flow.double)

    np.testing.assert_allclose(job(x), x.mean(0), 2e-3)
