"""Values of blobs during the execution of an eager job function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from flow_core.base.errors import JobError
from flow_typing import ListNumpy, Numpy


@pytest.fixture(autouse=True)
def eager() -> Any:
    flow.clear_default_session()
    flow.enable_eager_execution()
    yield
    flow.clear_default_session()


def numbers(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 8 - 1


def test_values_match_the_arguments_of_the_call() -> None:
    seen = []

    @flow.global_function()
    def job(x: Numpy.Placeholder((2, 3))) -> Numpy:
        y = flow.math.relu(x)
        seen.append(y.numpy())
        return y + 1

    for x in (numbers(2, 3), -numbers(2, 3)):
        assert np.array_equal(job(x), np.maximum(x, 0) + 1)
        assert np.array_equal(seen[-1], np.maximum(x, 0))
    assert len(seen) == 2


def test_python_control_flow_may_depend_on_values() -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((3,))) -> Numpy:
        return x * 2 if flow.math.reduce_sum(x).numpy()[0] > 0 else -x

    assert job(np.ones(3, np.float32)).tolist() == [2, 2, 2]
    assert job(-np.ones(3, np.float32)).tolist() == [1, 1, 1]


def test_variable_updates_run_once() -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((2,))) -> Numpy:
        weight = flow.get_variable("w", (2,), initializer=flow.ones_initializer())
        flow.assign(weight, weight + x)
        (weight * 2).numpy()
        return x

    for _ in range(3):
        job(np.array([1, 2], np.float32))
    assert flow.get_all_variables()["w"].numpy().tolist() == [4, 7]


def test_random_numbers_match_those_of_the_job() -> None:
    seen = []

    @flow.global_function()
    def job(x: Numpy.Placeholder((64,))) -> Numpy:
        y = flow.random.bernoulli(x / 2, seed=3)
        seen.append(y.numpy())
        return y

    for _ in range(3):
        assert np.array_equal(job(np.ones(64, np.float32)), seen[-1])
    assert not np.array_equal(seen[0], seen[1])


def test_values_on_each_device_of_the_mirrored_view() -> None:
    flow.config.cpu_device_num(2)
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())
    config.default_placement_scope(flow.scope.placement("cpu", "0:0-1"))

    @flow.global_function(function_config=config)
    def job(x: ListNumpy.Placeholder((4, 2))) -> ListNumpy:
        y = x + 1
        assert y.numpy_size() == 2
        assert [a.shape for a in y.numpy_list()] == [(3, 2), (2, 2)]
        assert np.array_equal(y.numpy(1), xs[1] + 1)
        return y

    xs = [numbers(3, 2), numbers(2, 2)]
    assert np.array_equal(job(xs)[0], xs[0] + 1)


def test_values_contain_valid_rows_only() -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((2, 3))) -> Numpy:
        places = flow.argwhere(x)
        assert np.array_equal(places.numpy(), np.argwhere(fed))
        return x

    fed = np.eye(2, 3, dtype=np.float32)
    job(fed)


def test_lazy_placeholders_have_no_values() -> None:
    flow.enable_eager_execution(False)

    @flow.global_function()
    def job(x: Numpy.Placeholder((2,))) -> Numpy:
        return x + x.numpy()

    with pytest.raises(JobError, match="enable_eager_execution"):
        job(np.ones(2, np.float32))
