"""Gradient accumulation: micro-batches of a step, one update, the same result."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from parallel_forms import assert_close, assert_same, dense, emulated, make_job, mlp, trained

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import ConfigError, FlowError, GraphError, JobError


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    with emulated(4):
        yield


def config(steps: int) -> Any:
    settings = flow.function_config()
    settings.train.num_gradient_accumulation_steps(steps)
    return settings


@pytest.mark.slow
@pytest.mark.representative(
    "momentum-0:0-1|clipped", "two devices, and a norm over all micro-batches"
)
@pytest.mark.parametrize(
    ("rule", "devices_"),
    [(rule, "0:0-2") for rule in ("adam", "clipped")]
    + [("momentum", ids) for ids in ("0:0", "0:0-1", "0:0-2", "0:0-3")],
)
def test_micro_batches_add_up_to_the_batch(rule: str, devices_: str) -> None:
    whole = trained("0:0", rule=rule)
    parts = trained(devices_, rule=rule, config=config(4))
    again = trained(devices_, rule=rule, config=config(4))
    assert_close(parts, whole)
    assert_same(again, parts)


def test_the_function_sees_a_micro_batch_and_results_are_packed() -> None:
    seen = []

    @flow.global_function(type="train", function_config=config(3))
    def job(x: tp.Numpy.Placeholder((6, 2))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        seen.append(x.shape)
        w = flow.get_variable("w", (2, 1), initializer=flow.constant_initializer(1.0))
        y = flow.matmul(x, w)
        loss = flow.math.reduce_mean(y)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0])).minimize(loss)
        return y, loss, flow.identity(w)

    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    y, loss, w = job(x)
    assert seen == [(2, 2), (6, 2)]
    np.testing.assert_array_equal(y, x.sum(1, keepdims=True))
    np.testing.assert_array_equal(loss, x.sum(1).reshape(3, 2).mean(1))
    np.testing.assert_array_equal(w, np.ones((2, 1)))
    _, _, w = job(x)
    np.testing.assert_allclose(w, 1 - x.mean(0)[:, None], rtol=1e-6)


def test_memory_is_that_of_a_micro_batch() -> None:
    def deep(x: Any) -> Any:
        for i in range(6):
            x = flow.math.tanh(dense(x, 12, f"h{i}"))
        return dense(x, 5, "o")

    (whole,) = make_job("0:0", deep, batch=960).plan().arenas
    flow.clear_default_session()
    (parts,) = make_job("0:0", deep, batch=960, config=config(8)).plan().arenas
    assert parts.nbytes < 0.4 * whole.nbytes  # the fed batch is there at once


def test_each_micro_batch_draws_its_own_numbers() -> None:
    @flow.global_function(type="train", function_config=config(2))
    def job(x: tp.Numpy.Placeholder((8, 50))) -> tp.Numpy:
        w = flow.get_variable("w", (50,), initializer=flow.constant_initializer(1.0))
        y = flow.nn.dropout(x * w, rate=0.5)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0])).minimize(y)
        return y

    kept = job(np.ones((8, 50), np.float32)) > 0
    assert (kept[:4] != kept[4:]).any()


@pytest.mark.representative(
    r"\[0:0-2\]", "micro-batches and devices together; one device is a special case"
)
@pytest.mark.parametrize("ids", ["0:0", "0:0-2"])
def test_dropout_is_that_of_the_whole_batch(ids: str) -> None:
    def body(x: Any) -> Any:
        h = flow.nn.dropout(flow.math.tanh(dense(x, 16, "h")), rate=0.4, name="drop")
        return dense(flow.nn.dropout(h, rate=0.3, name="again"), 5, "o")

    assert_close(trained(ids, body, config=config(3)), trained("0:0", body))


def test_moving_averages_move_once_per_micro_batch() -> None:
    @flow.global_function(type="train", function_config=config(2))
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        y = flow.layers.batch_normalization(x, axis=1, momentum=0.5, name="bn")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0])).minimize(y)
        return y

    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    job(x)
    mean = flow.get_all_variables()["bn-moving_mean"].numpy()
    np.testing.assert_allclose(mean, 0.25 * x[:2].mean(0) + 0.5 * x[2:].mean(0), rtol=1e-5)


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(JobError, match=r"5 micro-batches[\s\S]*\(24, 12\)"):
        make_job("0:0", config=config(5)).plan()
    with pytest.raises(ConfigError):
        config(0)


def test_a_learning_rate_of_what_is_fed_is_refused() -> None:
    @flow.global_function(type="train", function_config=config(2))
    def job(x: tp.Numpy.Placeholder((4, 12)), rate: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        loss = flow.math.reduce_mean(mlp(x))
        flow.identity(rate, name="rate")
        schedule = flow.optimizer.CustomScheduler("rate/out_0")
        flow.optimizer.SGD(schedule).minimize(loss)
        return loss

    with pytest.raises(GraphError, match="learning rates and steps"):
        job.plan()


def test_errors_say_that_the_function_sees_a_micro_batch() -> None:
    @flow.global_function("train", config(2))
    def job(x: tp.Numpy.Placeholder((8, 2, 3))) -> tp.Numpy:
        w = flow.get_variable("w", (8, 2, 3), initializer=flow.ones_initializer())
        loss = x * w
        flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
        return loss

    with pytest.raises(FlowError, match="broadcast") as caught:
        job(np.zeros((8, 2, 3), np.float32))
    assert any("1/2 of the rows" in note for note in caught.value.__notes__)
