"""Gradients of public functions at points where a formula of the gradient divides by zero."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import public_arrays
import public_layers
import public_math
import public_nn
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import FlowError

FAMILIES = (public_math, public_arrays, public_nn, public_layers)
CALLS: dict[str, public_math.Call] = {
    key: call
    for family in FAMILIES
    for key, call in family.CALLS.items()
    if any(x.dtype == np.float32 for x in call[1])
}
POINTS = (0.0, 1.0, -1.0)
INFINITE = {
    ("combined_margin_loss", 1.0): "the angle of a cosine of 1",
    ("combined_margin_loss", -1.0): "the angle of a cosine of -1",
    ("math.acos", 1.0): "a vertical tangent",
    ("math.acos", -1.0): "a vertical tangent",
    ("math.acosh", 1.0): "a vertical tangent",
    ("math.asin", 1.0): "a vertical tangent",
    ("math.asin", -1.0): "a vertical tangent",
    ("math.sqrt", 0.0): "a vertical tangent",
}
"""Functions and points with an infinite derivative."""
UNDEFINED = {("math.atan2", 0.0): "the angle of the origin has no limit; NaN in torch and JAX"}


def at(key: str, point: float) -> tuple[Any, list[Any]] | None:
    """Return the result and the gradients where all numbers are equal; None without gradients."""
    function, arrays, _ = CALLS[key]
    flow.clear_default_session()

    def variable(i: int, x: Any) -> Any:
        floating = x.dtype == np.float32
        initializer = flow.constant_initializer(point if floating else 0)
        return flow.identity(
            flow.get_variable(f"c{i}", x.shape, as_dtype(x.dtype), initializer, trainable=floating)
        )

    def job() -> Any:
        found = function(*[variable(i, x) for i, x in enumerate(arrays)])
        first = found[0] if isinstance(found, list | tuple) else found
        loss = flow.math.reduce_sum(first)
        flow.optimizer.SGD(1.0, momentum=0).minimize(loss)
        return first

    job.__annotations__ = {"return": tp.Numpy}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = flow.global_function("train")(job)()
        except (FlowError, ValueError):
            return None
    own = [f"c{i}" for i, x in enumerate(arrays) if x.dtype == np.float32]
    trained = flow.get_all_variables()
    return result, [point - trained[name].numpy() for name in own]


@pytest.mark.representative(
    r"\[(math\.(pow|atan2|sqrt|asin|l2|reduce_(std|euclidean|logsumexp))|nn\.KLDiv|.*norm)",
    "functions whose gradients divide",
)
@pytest.mark.parametrize("key", CALLS)
def test_gradients_are_finite_where_results_are(key: str) -> None:
    for point in POINTS:
        found = at(key, point)
        if found is None or not np.isfinite(found[0]).all():
            continue
        gradients = np.concatenate([g.ravel() for g in found[1]])
        if (key, point) in UNDEFINED:
            assert np.isnan(gradients).any()
        elif (key, point) in INFINITE:
            assert np.isinf(gradients).any()
            assert not np.isnan(gradients).any()
        else:
            assert np.isfinite(gradients).all(), point


@pytest.mark.exhaustive
def test_most_functions_have_a_gradient() -> None:
    assert sum(at(key, 1.0) is not None for key in CALLS) > 300
