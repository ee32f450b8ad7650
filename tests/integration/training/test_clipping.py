"""Clipping by the global norm equals a computation in float64, whatever the size of the norm."""

from collections.abc import Iterator
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from parallel_forms import emulated

import oneflow as flow
import oneflow.typing as tp

SHAPES = {"w": (4, 3), "b": (5,)}
BACKENDS = {"numpy": ("flow-onednn",), "onednn": ()}


@pytest.fixture(autouse=True, params=BACKENDS)
def devices(request: pytest.FixtureRequest) -> Iterator[None]:
    with emulated(2, without=BACKENDS[request.param]):
        yield


def gradients(size: float) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {k: (size * rng.uniform(-1, 1, shape)).astype("f4") for k, shape in SHAPES.items()}


def clipped(
    given: dict[str, Any], limit: float, ids: str = "0:0", micro: int = 1, split: bool = False
) -> dict[str, Any]:
    """Return the change of variables that start at 0, for given gradients and a rate of 1."""
    settings = flow.function_config()
    settings.train.num_gradient_accumulation_steps(micro)
    rows = 2 * micro

    @flow.global_function("train", settings)
    def job(
        w: tp.Numpy.Placeholder((rows, *SHAPES["w"])), b: tp.Numpy.Placeholder((rows, *SHAPES["b"]))
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", ids):
            parts = []
            for name, fed in {"w": w, "b": b}.items():
                variable = flow.get_variable(
                    name, SHAPES[name], initializer=flow.zeros_initializer(),
                    distribute=flow.distribute.split(0) if split else flow.distribute.auto(),
                )  # fmt: skip
                parts.append(flow.math.reduce_sum(fed * variable, axis=[*range(1, len(fed.shape))]))
            loss = parts[0] + parts[1]
            clip = flow.optimizer.grad_clipping.by_global_norm(limit)
            flow.optimizer.SGD(1.0, momentum=0, grad_clipping=clip).minimize(loss)
            return loss

    job(*(np.stack([x] * rows) for x in given.values()))
    return {name: -flow.get_all_variables()[name].numpy() for name in given}


def expected(given: dict[str, Any], limit: float) -> dict[str, Any]:
    wide = {k: x.astype(np.float64) for k, x in given.items()}
    norm = np.sqrt(sum(np.sum(x * x) for x in wide.values()))
    return {k: x * min(1.0, limit / norm) for k, x in wide.items()}


def check(given: dict[str, Any], limit: float, **how: Any) -> None:
    found = clipped(given, limit, **how)
    for name, want in expected(given, limit).items():
        np.testing.assert_allclose(found[name], want, rtol=4e-6)


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e15, 1e25, 1e37])
def test_any_norm_is_clipped(size: float) -> None:
    check(gradients(size), 0.5)


@pytest.mark.parametrize("limit", [1e-30, 1e-18, 1e20])
@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_any_limit_holds(size: float, limit: float) -> None:
    if limit / size > 1e-38:
        check(gradients(size), limit)


FORMS: dict[str, dict[str, Any]] = {
    "two devices": {"ids": "0:0-1"},
    "split variables": {"ids": "0:0-1", "split": True},
    "micro-batches": {"micro": 2},
}


@pytest.mark.parametrize("form", FORMS)
def test_huge_norms_are_clipped_in_all_forms(form: str) -> None:
    check(gradients(1e25), 0.5, **FORMS[form])


def test_an_infinite_gradient_leaves_no_finite_change_but_zero() -> None:
    given = gradients(1.0)
    given["w"][1, 2] = inf
    found = clipped(given, 0.5)
    assert np.isnan(found["w"][1, 2])
    found["w"][1, 2] = 0
    assert not any(np.any(x) for x in found.values())


def test_a_gradient_that_is_nan_makes_all_changes_nan() -> None:
    given = gradients(1.0)
    given["b"][0] = nan
    assert all(np.isnan(x).all() for x in clipped(given, 0.5).values())
