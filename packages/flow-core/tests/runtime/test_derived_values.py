"""Values that are computed from variables alone are computed again only after a write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.frontend.job.function import JobFunction
from flow_core.observe.document import document
from flow_core.observe.summary.screen import summary_tables
from flow_core.observe.tables import joined
from flow_core.observe.text import plan_report
from flow_core.plan import Plan

ROWS, SIZE = 3, 4


def weight() -> Any:
    normal = flow.random_normal_initializer()
    return flow.get_variable("w", (SIZE, SIZE), initializer=normal)


def predict_job(**how: Any) -> JobFunction:
    @flow.global_function(**how)
    def predict(x: tp.Numpy.Placeholder((ROWS, SIZE))) -> tp.Numpy:
        return flow.matmul(x, flow.transpose(weight(), perm=[1, 0]) * 2.0)

    return predict


def train_job() -> JobFunction:
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((ROWS, SIZE))) -> tp.Numpy:
        doubled = flow.transpose(weight(), perm=[1, 0]) * 2.0
        loss = flow.math.reduce_sum(flow.matmul(x, doubled))
        rates = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.SGD(rates).minimize(loss)
        return loss

    return train


def assign_in_job() -> None:
    @flow.global_function()
    def assign(x: tp.Numpy.Placeholder((SIZE, SIZE))) -> None:
        flow.assign(weight(), x)

    assign(np.full((SIZE, SIZE), 3, np.float32))


def train_twice() -> None:
    train = train_job()
    train(np.ones((ROWS, SIZE), np.float32))
    train(np.ones((ROWS, SIZE), np.float32))


WRITES: tuple[Callable[[], object], ...] = (
    lambda: flow.load_variables({"w": np.ones((SIZE, SIZE), np.float32)}),
    lambda: flow.train.CheckPoint().init(),
    assign_in_job,
    train_twice,
)


@pytest.fixture(autouse=True)
def fresh() -> None:
    flow.clear_default_session()


def check(predict: JobFunction) -> None:
    x = np.random.default_rng(0).random((ROWS, SIZE), np.float32)
    w = flow.get_all_variables()["w"].numpy().astype(float)
    np.testing.assert_allclose(predict(x), x @ (2 * w.T), rtol=1e-5)


@pytest.mark.parametrize("write", WRITES)
def test_predictions_follow_writes(write: Callable[[], object]) -> None:
    predict = predict_job()
    assert [task.type for task in predict.plan().derived] == ["transpose", "scalar_mul"]
    check(predict)
    write()
    check(predict)
    check(predict)


def test_values_are_computed_once_between_writes() -> None:
    predict = predict_job()
    check(predict)
    executable = predict.executable()
    calls = []
    derive = executable._derive

    def counted() -> None:
        calls.append(1)
        derive()

    executable._derive = counted
    check(predict)
    assert not calls
    flow.load_variables({"w": np.ones((SIZE, SIZE), np.float32)})
    check(predict)
    check(predict)
    assert calls == [1]


def test_report_states_how_many_tasks_wait_for_writes() -> None:
    job = predict_job()
    assert "2 when variables change" in plan_report(job)
    assert "2 when variables change" in joined(summary_tables(document(job)))


def test_train_jobs_compute_all_values_in_each_step() -> None:
    assert not train_job().plan().derived


def test_plans_with_derived_values_survive_their_json() -> None:
    plan = predict_job().plan()
    assert plan.derived
    assert Plan.from_json(plan.to_json()) == plan


def test_memory_of_intermediate_derived_values_is_reused() -> None:
    plan = predict_job().plan()
    temporary, kept = (task.outputs[0] for task in plan.derived)
    assert plan.buffers[temporary].last < 0
    assert plan.buffers[kept].kind == "constant"
