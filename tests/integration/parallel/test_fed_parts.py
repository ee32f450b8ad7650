"""Fed arrays are copied in where their parts are wanted; nothing of them crosses devices."""

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.observe.oracle import verify
from flow_core.sharding.topology import Device

ROWS, COLUMNS = 7, 6


def doubled(
    axis: int | None, hierarchy: tuple[int, ...] | None = None, devices: str = "0:0-3"
) -> Any:
    """A job whose input is wanted in parts along an axis, or whole on all devices."""
    asked = flow.distribute.broadcast() if axis is None else flow.distribute.split(axis)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((ROWS, COLUMNS))) -> tp.Numpy:
        with flow.scope.placement("cpu", devices, hierarchy):
            return flow.math.relu(x.with_distribute(asked)) * 2.0

    return job


def fed(job: Any) -> dict[str, tuple[str, Any]]:
    """The device and region of each fed buffer, by its name."""
    plan = job.plan()
    rows = zip(plan.feeds, plan.fed, strict=True)
    return {plan.buffers[i].name: (plan.buffers[i].device, region) for i, (_, region) in rows}


X = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS) - 20


@pytest.mark.parametrize("axis", [0, 1])
def test_each_device_gets_its_part(axis: int) -> None:
    job = doubled(axis)
    for x in (X, np.asfortranarray(X), X[::-1, ::-1]):
        np.testing.assert_array_equal(job(x), np.maximum(x, 0) * 2)
    found = fed(job)
    assert [device for device, _ in found.values()] == [Device("cpu", 0, i) for i in range(4)]
    sizes = [region[axis][1] - region[axis][0] for _, region in found.values()]
    assert sizes == ([2, 2, 2, 1] if axis == 0 else [2, 2, 1, 1])
    assert not [e for e in job.plan().ledger if e.value.startswith("Input_")]
    assert verify(job).ok


def test_what_is_wanted_whole_is_fed_once() -> None:
    job = doubled(None)
    np.testing.assert_array_equal(job(X), np.maximum(X, 0) * 2)
    assert fed(job) == {"Input_x:0": (Device("cpu", 0, 0), ((0, ROWS), (0, COLUMNS)))}


def test_replicas_of_a_part_get_it_from_the_first_of_them() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-3", (2, 2)):
            w = flow.get_variable(
                "w",
                (6, 4),
                initializer=flow.ones_initializer(),
                parallel_distribution=["B", "S(1)"],
            )
            return flow.matmul(x, w)

    x = np.arange(48, dtype=np.float32).reshape(8, 6)
    np.testing.assert_array_equal(job(x), x @ np.ones((6, 4), np.float32))
    found = fed(job)
    assert [device for device, _ in found.values()] == [Device("cpu", 0, 0), Device("cpu", 0, 2)]
    assert [region[0] for _, region in found.values()] == [(0, 4), (4, 8)]
    (entry,) = [e for e in job.plan().ledger if e.value == "Input_x:0"]
    assert entry.source == "cpu[0:0,0:2] S(0)"
    assert entry.nbytes == 8 * 6 * 4


def test_an_array_may_be_wanted_in_several_ways() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((ROWS, COLUMNS))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            rows = flow.math.relu(x.with_distribute(flow.distribute.split(0)))
            columns = flow.math.relu(x.with_distribute(flow.distribute.split(1)))
            whole = flow.math.relu(x.with_distribute(flow.distribute.broadcast()))
        with flow.scope.placement("cpu", "0:0"):
            return rows + columns * 2.0 + whole * 4.0 + x

    np.testing.assert_array_equal(job(X), np.maximum(X, 0) * 7 + X)
    assert len(fed(job)) == 5
    assert verify(job).ok


@pytest.mark.parametrize("micro", [1, 2])
def test_micro_batches_are_cut_before_parts(micro: int) -> None:
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(micro)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((8, 3))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            w = flow.get_variable("w", (3, 2), initializer=flow.ones_initializer())
            y = flow.matmul(x, w)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0).minimize(y)
        return y

    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    np.testing.assert_array_equal(job(x), x @ np.ones((3, 2), np.float32))
    assert len(fed(job)) == 2 * micro


def test_steps_in_flight_keep_only_what_they_take() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((ROWS, COLUMNS))) -> tp.Callback[tp.Numpy]:
        with flow.scope.placement("cpu", "0:0-1"):
            return flow.math.relu(x.with_distribute(flow.distribute.split(0)))

    seen: list[Any] = []
    for i in range(5):
        x = X + i
        job(x)(seen.append)
        x[:] = -1  # the step has what it takes
    flow.sync_default_session()
    for i, y in enumerate(seen):
        np.testing.assert_array_equal(y, np.maximum(X + i, 0))
    rows = [window[0] for _, window in job.executable().windows]
    assert rows == [slice(0, 4), slice(4, 7)]
