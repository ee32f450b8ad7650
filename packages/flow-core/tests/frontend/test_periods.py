"""Parts of a job that run several times per step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oneflow as flow
from flow_core.base.errors import InferenceError, JobError
from flow_typing import Numpy

RNG = np.random.default_rng(3)


def numbers(*shape: int) -> Any:
    return RNG.integers(-32, 33, shape).astype(np.float32) / 16


@given(periods=st.integers(1, 4), rows=st.integers(1, 3), columns=st.integers(1, 3))
@settings(max_examples=8)
def test_ops_between_unpack_and_pack_process_one_part_at_a_time(
    periods: int, rows: int, columns: int
) -> None:
    shape, seen = (periods * rows, columns), []

    @flow.global_function()
    def job(x: Numpy.Placeholder(shape)) -> Numpy:  # type: ignore[valid-type]
        part = flow.unpack(x, periods)
        seen.append(part.shape)
        most = flow.math.reduce_max(part, axis=0, keepdims=True)
        return flow.pack(part - most, periods)

    x = numbers(*shape)
    parts = x.reshape(periods, rows, columns)
    want = (parts - parts.max(axis=1, keepdims=True)).reshape(shape)
    assert np.array_equal(job(x), want)
    assert seen[0] == (rows, columns)


def test_repeat_and_acc_accumulate_a_value() -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((2, 3))) -> Numpy:
        return flow.acc(flow.repeat(x, 4) * 2, 4)

    x = numbers(2, 3)
    assert np.array_equal(job(x), 8 * x)


def test_acc_over_some_periods_leaves_fewer() -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((6, 2))) -> Numpy:
        return flow.pack(flow.acc(flow.unpack(x, 6), 3), 2)

    x = numbers(6, 2)
    assert np.array_equal(job(x), x.reshape(2, 3, 2).sum(axis=1))


def test_nested_periods() -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((12, 2))) -> Numpy:
        outer = flow.unpack(x, 3)
        inner = flow.acc(flow.unpack(outer, 2), 2)
        return flow.pack(inner + flow.math.reduce_sum(outer, axis=0), 3)

    x = numbers(12, 2)
    parts = x.reshape(3, 2, 2, 2)
    want = parts.sum(axis=1) + parts.sum(axis=(1, 2))[:, None]
    assert np.allclose(job(x), want.reshape(6, 2))


def trained(periods: int, loss_packed: bool, scatter: str) -> Any:
    """Return the weights after a step on the batch, divided into ``periods`` parts."""
    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    where = {"one": "0:0", "two": "0:0-1"}[scatter]

    @flow.global_function(type="train")
    def job(x: Numpy.Placeholder((6, 4))) -> Numpy:
        with flow.scope.placement("cpu", where):
            weight = flow.get_variable("w", (4, 3), initializer=flow.ones_initializer())
            part = flow.unpack(x, periods) if periods > 1 else x
            loss = flow.math.square(flow.matmul(part, weight))
            packed = flow.pack(loss, periods) if periods > 1 else loss
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.125])
            flow.optimizer.SGD(rate, momentum=0).minimize(packed if loss_packed else loss)
            return packed

    job(np.arange(24, dtype=np.float32).reshape(6, 4) / 8)
    weights = flow.get_all_variables()["w"].numpy()
    flow.clear_default_session()
    return weights


@pytest.mark.parametrize("scatter", ["one", "two"])
def test_gradients_match_those_of_the_whole_batch(scatter: str) -> None:
    whole = trained(1, True, "one")
    assert np.allclose(trained(3, True, scatter), whole, atol=1e-5)
    assert np.allclose(trained(3, False, scatter), whole, atol=1e-5)


def test_mirrored_view_divides_the_batch_of_each_device() -> None:
    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())
    config.default_placement_scope(flow.scope.placement("cpu", "0:0-1"))

    @flow.global_function(function_config=config)
    def job(x: Numpy.Placeholder((8, 2))):  # type: ignore[no-untyped-def]
        return flow.pack(flow.math.relu(flow.unpack(x, 2)), 2)

    x = numbers(8, 2)
    assert np.array_equal(job(x).get().numpy(), np.maximum(x, 0))
    flow.clear_default_session()


@pytest.mark.parametrize(
    ("made", "error", "told"),
    [
        (lambda x: flow.unpack(x, 5), InferenceError, "5 parts"),
        (lambda x: flow.unpack(x, 0), InferenceError, "at least 1"),
        (lambda x: flow.pack(flow.unpack(x, 3), 2), InferenceError, "pack_num=2"),
        (lambda x: flow.acc(flow.unpack(x, 3), 2), InferenceError, "max_acc_num=2"),
        (lambda x: flow.unpack(x, 3) + flow.unpack(x, 2), JobError, "as many periods"),
        (lambda x: flow.unpack(x, 3), JobError, "return flow.acc"),
    ],
)
def test_invalid_periods_are_rejected(made: Any, error: type[Exception], told: str) -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((6, 4))) -> Numpy:
        return made(x)  # type: ignore[no-any-return]

    with pytest.raises(error, match=told):
        job(numbers(6, 4))
