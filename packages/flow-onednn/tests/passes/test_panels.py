"""Weights of products of few rows in panels, outside of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.arrays import Array
from flow_core.frontend.job.function import JobFunction
from flow_onednn.kernels.few_rows import PACK, PANEL_ROWS, PRODUCT
from flow_onednn.native import compiler

pytestmark = pytest.mark.usefixtures("onednn")


@pytest.fixture(autouse=True)
def fresh() -> None:
    if not compiler.available():
        pytest.skip("there is no C compiler")
    flow.clear_default_session()


def variable(name: str, *shape: int) -> Any:
    uniform = flow.random_uniform_initializer(-1.0, 1.0)
    return flow.get_variable(name, shape, initializer=uniform)


def net(x: Any) -> Any:
    x = flow.nn.relu(flow.nn.bias_add(flow.matmul(x, variable("a", 50, 20)), variable("ab", 20)))
    return flow.matmul(x, variable("b", 3, 20), transpose_b=True)


def exact(x: Array, values: dict[str, Array]) -> Array:
    hidden = np.maximum(x.astype(float) @ values["a"] + values["ab"], 0)
    found: Array = hidden @ values["b"].T
    return found


def predict_job(rows: int) -> JobFunction:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((rows, 50))) -> tp.Numpy:
        return net(x)

    return predict


def check(predict: JobFunction, rows: int) -> None:
    values = {name: blob.numpy() for name, blob in flow.get_all_variables().items()}
    x = np.random.default_rng(1).standard_normal((rows, 50), np.float32)
    np.testing.assert_allclose(predict(x), exact(x, values), 1e-4, 1e-4)


def types(tasks: Any) -> list[str]:
    return [task.type for task in tasks]


def test_weights_are_packed_when_variables_change() -> None:
    predict = predict_job(4)
    plan = predict.plan()
    assert types(plan.tasks).count(PRODUCT) == types(plan.derived).count(PACK) == 2
    assert not {"matmul", "onednn_matmul", PACK} & set(types(plan.tasks))
    check(predict, 4)
    flow.load_variables({"a": np.full((50, 20), 0.25, np.float32)})
    check(predict, 4)


def test_many_rows_are_products_of_the_library() -> None:
    predict = predict_job(PANEL_ROWS + 1)
    assert types(predict.plan().tasks).count(PRODUCT) == 0
    check(predict, PANEL_ROWS + 1)


def test_training_does_not_pack() -> None:
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4, 50))) -> tp.Numpy:
        loss = flow.math.reduce_mean(net(x))
        rates = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.SGD(rates).minimize(loss)
        return loss

    plan = train.plan()
    assert not {PACK, PRODUCT} & {*types(plan.tasks), *types(plan.derived)}
