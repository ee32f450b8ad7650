"""Placeholders with an open first size: a plan per size, one set of variables."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import AnnotationError, FeedError, InferenceError
from flow_core.frontend.job.function import PLANS_KEPT

RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 3)).astype(np.float32)
Y = (X @ np.ones((3, 1), np.float32)).astype(np.float32)


def trainer() -> Any:
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((None, 3)), y: tp.Numpy.Placeholder((None, 1))) -> tp.Numpy:
        w = flow.get_variable("w", (3, 1))
        loss = flow.math.square(flow.matmul(x, w) - y)
        flow.optimizer.Adam(0.1, do_bias_correction=True).minimize(loss)
        return loss

    return train


def predictor() -> Any:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((None, 3))) -> tp.Numpy:
        return flow.matmul(x, flow.get_variable("w", (3, 1)))

    return predict


def weight() -> Any:
    return flow.get_all_variables()["w"].numpy()


def test_an_epoch_with_a_smaller_last_batch() -> None:
    train, predict = trainer(), predictor()
    w, m, v = np.zeros((3, 1)), np.zeros((3, 1)), np.zeros((3, 1))
    step = 0
    for _ in range(3):
        for batch in (slice(0, 4), slice(4, 8), slice(8, 10)):
            x, y = X[batch], Y[batch]
            error = x @ w - y
            np.testing.assert_allclose(train(x, y), error**2, rtol=1e-4, atol=1e-6)
            g = 2 * x.T @ error / len(x)
            step += 1
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            rate = 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            w = w - rate * m / (np.sqrt(v) + 1e-8)
            np.testing.assert_allclose(weight(), w, rtol=1e-4, atol=1e-6)
    assert len(train.plans) == 2
    assert int(flow.get_all_variables()["System-Train-TrainStep-train"].numpy()[0]) == step
    np.testing.assert_allclose(predict(X), X @ w, rtol=1e-4, atol=1e-5)
    assert predict(X[:1]).shape == (1, 1)


def test_a_size_that_had_a_plan_keeps_it() -> None:
    predict = predictor()
    for size in (4, 2, 4):
        predict(X[:size])
    first = predict.executable()
    predict(X[:2])
    predict(X[:4])
    assert predict.executable() is first
    assert predict.plans == (((((2, 3)),),), ((((4, 3)),),))


def test_asynchronous_calls_of_several_sizes() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((None, 3))) -> tp.Callback[tp.Numpy]:
        return x * 2

    found: list[Any] = []
    for size in (3, 1, 3, 2, 1):
        job(X[:size])(found.append)
    flow.sync_default_session()
    for size, result in zip((3, 1, 3, 2, 1), found, strict=True):
        np.testing.assert_array_equal(result, X[:size] * 2)


def test_several_devices() -> None:
    flow.config.cpu_device_num(2)
    train = trainer()
    for size in (4, 10, 3):
        assert train(X[:size], Y[:size]).shape == (size, 1)


def test_checkpoints_before_the_first_call(tmp_path: Path) -> None:
    predict = predictor()
    flow.load_variables({"w": np.ones((3, 1), np.float32)})
    flow.checkpoint.save(str(tmp_path / "model"))
    np.testing.assert_allclose(predict(X), Y, rtol=1e-5)


def test_lists_and_open_sizes_together() -> None:
    @flow.global_function()
    def job(
        pair: tp.Tuple[tp.Numpy.Placeholder((None, 3)), tp.Numpy.Placeholder((2,))],
        items: tp.ListNumpy.Placeholder((5,)),
    ) -> tp.Bundle[tp.Numpy]:
        return [pair[0] * 2, pair[1], flow.math.reduce_sum(items)]

    two = np.ones(2, np.float32)
    for size in (3, 2):
        for count in (5, 4):
            found = job((X[:size], two), [np.ones(count, np.float32)])
            np.testing.assert_array_equal(found[0], X[:size] * 2)
            assert found[2] == count
    assert len(job.plans) == 4


def test_the_annotated_form() -> None:
    @flow.global_function()
    def job(x: Annotated[tp.Numpy, tp.shape(None, 3), flow.float32]) -> tp.Numpy:
        return x

    for size in (1, 4):
        assert job(X[:size]).shape == (size, 3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (X[:, :2], r"shape \(10, 2\)\n.*shape \(None, 3\)"),
        (X[:0], r"shape \(0, 3\)\n.*shape \(None, 3\)"),
        (X[0], r"shape \(3,\)\n.*shape \(None, 3\)"),
        (flow.distribute.rows(X[:2], 0), "rows of a batch\n.*a whole array"),
    ],
)
def test_wrong_shapes(value: Any, text: str) -> None:
    predict = predictor()
    with pytest.raises(FeedError, match=text):
        predict(value)


def test_only_the_first_size_of_an_array_is_open() -> None:
    for make, shape in (
        (tp.Numpy.Placeholder, (3, None)),
        (tp.ListNumpy.Placeholder, (None, 3)),
    ):
        with pytest.raises(AnnotationError, match="positive integers"):
            make(shape)  # type: ignore[operator]
    assert str(tp.Numpy.Placeholder((None, 3))).startswith("Numpy.Placeholder((None, 3)")


def test_a_fixed_batch_in_the_function_is_an_error_of_its_line() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((None, 3))) -> tp.Numpy:
        return flow.reshape(x, (4, 3))

    assert job(X[:4]).shape == (4, 3)
    with pytest.raises(InferenceError, match=r"\(5, 3\).*does not reshape") as found:
        job(X[:5])
    assert __file__ in str(found.value)


def test_the_plans_that_are_kept_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((None,))) -> tp.Numpy:
        return x

    with caplog.at_level(logging.WARNING, "flow_core"):
        for size in range(1, PLANS_KEPT + 3):
            assert job(np.ones(size, np.float32)).shape == (size,)
    assert len(job.plans) == PLANS_KEPT
    assert len([r for r in caplog.records if "plans are dropped" in r.getMessage()]) == 1
