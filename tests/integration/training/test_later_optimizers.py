"""Adagrad, Lion, averages of weights, and losses that are minimized twice."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import InferenceError, JobError

START = np.array([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0]])
TARGET = np.array([[0.5, -2.5, 2.0], [0.0, 0.25, -1.0]])


@pytest.fixture(autouse=True)
def devices() -> None:
    flow.config.cpu_device_num(4)


def weight(dtype: Any = flow.double, name: str = "w") -> Any:
    return flow.get_variable(name, START.shape, dtype, flow.zeros_initializer())


def steps(optimizer: Any, count: int = 5, devices: str = "0:0") -> list[Any]:
    """Return the weight after each step of a job that minimizes the distance from a target."""

    @flow.global_function("train")
    def job(target: tp.Numpy.Placeholder(TARGET.shape, flow.double)) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            loss = flow.math.reduce_sum(flow.math.square(weight() - target))
            optimizer.minimize(loss)
            return loss

    flow.load_variables({"w": START})
    found = []
    for _ in range(count):
        job(TARGET)
        found.append(flow.get_all_variables()["w"].numpy())
    return found


@pytest.mark.parametrize("devices", ["0:0", "0:0-1"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adagrad(decay: float, devices: str) -> None:
    optimizer = flow.optimizer.Adagrad(0.3, epsilon=1e-6, weight_decay=decay)
    w, total = START.copy(), np.zeros_like(START)
    for found in steps(optimizer, devices=devices):
        g = 2 * (w - TARGET)
        total += g * g
        w = w - 0.3 * (g / (np.sqrt(total) + 1e-6) + decay * w)
        np.testing.assert_allclose(found, w, rtol=1e-6)


@pytest.mark.parametrize("devices", ["0:0", "0:0-1"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lion(decay: float, devices: str) -> None:
    optimizer = flow.optimizer.Lion(0.05, beta1=0.8, beta2=0.9, weight_decay=decay)
    w, m = START.copy(), np.zeros_like(START)
    for found in steps(optimizer, devices=devices):
        g = 2 * (w - TARGET)
        w = w - 0.05 * (np.sign(0.8 * m + 0.2 * g) + decay * w)
        m = 0.9 * m + 0.1 * g
        np.testing.assert_allclose(found, w, rtol=1e-6, atol=1e-7)


# ---------------------------------------------------------------------- averages of weights


@pytest.mark.parametrize("devices", ["0:0", "0:0-1"])
@pytest.mark.parametrize("dtype", [flow.double, flow.float, flow.float16])
def test_averages_follow_the_weights(dtype: Any, devices: str) -> None:
    @flow.global_function("train")
    def job() -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            w = weight(dtype)
            assert flow.optimizer.average_weights(0.6) == ["w-average"]
            loss = flow.math.reduce_sum(flow.math.square(w))
            flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
            return loss

    flow.load_variables({"w": START.astype(flow.convert_oneflow_dtype_to_numpy_dtype(dtype))})
    average = np.zeros_like(START)
    for step in range(6):
        before = flow.get_all_variables()["w"].numpy().astype(np.float64)
        job()
        average += max(1 / (step + 1), 0.4) * (before - average)
        found = flow.get_all_variables()["w-average"].numpy()
        assert found.dtype == (np.float64 if dtype is flow.double else np.float32)
        np.testing.assert_allclose(found, average, rtol=1e-5)


def test_averages_of_some_variables() -> None:
    @flow.global_function("train")
    def job() -> tp.Numpy:
        loss = flow.math.reduce_sum(weight() - weight(name="v"))
        flow.optimizer.average_weights(variables=["v"])
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    job()
    names = set(flow.get_all_variables())
    assert "v-average" in names
    assert "w-average" not in names


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((1.0,), "0 <= decay < 1"), ((0.9, ["x"]), r"variables \['x'\]"), ((float("nan"),), "finite")],
)
def test_wrong_averages_are_refused(arguments: Any, text: str) -> None:
    @flow.global_function("train")
    def job() -> tp.Numpy:
        loss = flow.math.reduce_sum(weight())
        flow.optimizer.average_weights(*arguments)
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    with pytest.raises(InferenceError, match=text) as error:
        job()
    assert "test_later_optimizers.py" in str(error.value)


# ------------------------------------------------------------------------ minimize called twice


def test_a_loss_is_minimized_once() -> None:
    @flow.global_function("train")
    def job() -> tp.Numpy:
        loss = flow.math.reduce_sum(flow.math.square(weight()))
        flow.optimizer.SGD(0.1).minimize(loss)
        flow.optimizer.Adam(0.1).minimize(loss)
        return loss

    with pytest.raises(JobError, match="applied twice") as error:
        job()
    lines = re.findall(r"test_later_optimizers\.py:(\d+)", str(error.value))
    assert int(lines[0]) == int(lines[1]) + 1


def test_optimizers_of_different_variables_may_share_a_loss() -> None:
    @flow.global_function("train")
    def job() -> tp.Numpy:
        loss = flow.math.reduce_sum(flow.math.square(weight() - weight(name="v")))
        flow.optimizer.SGD(0.1, momentum=0, variables=["w"]).minimize(loss)
        flow.optimizer.SGD(0.2, momentum=0, variables=["v"]).minimize(loss)
        return loss

    flow.load_variables({"w": START, "v": TARGET})
    job()
    found = flow.get_all_variables()
    np.testing.assert_allclose(found["w"].numpy(), START - 0.2 * (START - TARGET))
    np.testing.assert_allclose(found["v"].numpy(), TARGET + 0.4 * (START - TARGET))
