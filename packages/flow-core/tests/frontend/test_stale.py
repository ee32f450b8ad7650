"""Stale values of variables: their values some steps earlier."""

from __future__ import annotations

from typing import Any

import pytest

import oneflow as flow
from flow_core.base.errors import InferenceError
from flow_typing import Numpy


@pytest.fixture(autouse=True)
def session() -> Any:
    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    yield
    flow.clear_default_session()


def simulated(size: int, steps: int, change: Any) -> list[float]:
    """Simulate the values that steps use: the variable ``size - 1`` steps earlier."""
    history = [1.0]
    for _ in range(steps):
        used = history[max(0, len(history) - size)]
        history.append(change(history[-1], used))
    return [history[max(0, step - size + 1)] for step in range(steps)]


@pytest.mark.parametrize("where", ["0:0", "0:0-1"])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("by_ref", [False, True])
def test_values_lag_by_the_size_of_the_ring(size: int, where: str, by_ref: bool) -> None:
    @flow.global_function()
    def job() -> Numpy:
        with flow.scope.placement("cpu", where):
            weight = flow.get_variable("w", (5,), initializer=flow.ones_initializer())
            ref, value = flow.experimental.ssp_variable_proxy(weight, buffer_size=size)
            flow.assign(ref, (ref if by_ref else value) * 2)
            return value

    want = simulated(size, 9, lambda w, used: 2 * (w if by_ref else used))
    assert [job().tolist() for _ in range(9)] == [[w] * 5 for w in want]


def test_training_with_stale_weights() -> None:
    config = flow.FunctionConfig()
    config.enable_ssp(True)

    @flow.global_function(type="train", function_config=config)
    def job() -> Numpy:
        with flow.experimental.scope.config(ssp_num_stages=4, ssp_stage_id=1):
            weight = flow.get_variable("w", (5,), initializer=flow.ones_initializer())
        rate = flow.optimizer.PiecewiseConstantScheduler([], [-5.0])
        flow.optimizer.SGD(rate, momentum=0).minimize(weight + 0)
        return weight + 0

    assert [job()[0] for _ in range(9)] == simulated(3, 9, lambda w, used: w + 1)


def test_empty_ring_is_rejected() -> None:
    @flow.global_function()
    def job() -> Numpy:
        weight = flow.get_variable("w", (5,), initializer=flow.ones_initializer())
        return flow.experimental.ssp_variable_proxy(weight, buffer_size=0)[1]

    with pytest.raises(InferenceError, match="buffer_size=0"):
        job()
