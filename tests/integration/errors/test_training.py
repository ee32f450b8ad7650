"""Wrong losses, and jobs that train when they should not, or do not when they should."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mistakes import PAIR, SGD_LINE, ZEROS, here, line_of, mistake, sgd, weight

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CompatibilityWarning, InferenceError, JobError


def test_minimize_makes_a_predict_job_train() -> None:
    lines = []

    @flow.global_function(type="predict")
    def job() -> tp.Numpy:
        w = flow.nn.dropout(weight(), 0.5)
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.5])
        lines.append(here(1))
        flow.optimizer.SGD(schedule, momentum=0).minimize(w)
        return w

    with pytest.warns(CompatibilityWarning, match=r'type="train"') as caught:
        before, after = job(), job()
    assert {(w.filename, w.lineno) for w in caught} == {(__file__, lines[0].line)}
    np.testing.assert_allclose(after, before - 0.5 / before.size, rtol=1e-6)
    assert job.kind == "train"
    saved = flow.get_all_variables()
    assert saved["System-Train-TrainStep-job"].numpy().tolist() == [2]


def test_micro_batches_of_a_predict_job_that_trains() -> None:
    config = flow.FunctionConfig()
    config.train.num_gradient_accumulation_steps(2)

    @flow.global_function(type="predict", function_config=config)
    def job(x: PAIR) -> None:
        sgd(weight() * x)

    with mistake(JobError, r"2 micro-batches(.|\n)*type=.train") as line:
        line.append(SGD_LINE)
        job(ZEROS)


def test_a_train_job_without_minimize() -> None:
    @flow.global_function(type="train")
    def job() -> tp.Numpy:
        return weight()

    with mistake(JobError, r'minimize(.|\n)*type="predict"') as line:
        line.append(line_of(job.function))
        job()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda x: sgd(3.0), "float|3.0"),
        (lambda x: sgd(None), "None"),
        (lambda x: sgd(x), "trainable variables"),
        (lambda x: sgd([weight(), weight((2, 3))]), "one loss twice"),
        (
            lambda x: sgd([weight(), flow.math.reduce_sum(x)]),
            "losses of types",
        ),
    ],
)
def test_wrong_losses(body: Callable[[Any], None], text: str) -> None:
    @flow.global_function(type="train")
    def job(x: PAIR) -> tp.Numpy:
        body(x)
        return x

    with mistake(JobError, text) as line:
        line.append(SGD_LINE)
        job(ZEROS)


def test_two_train_jobs_of_one_name() -> None:
    def make() -> Any:
        @flow.global_function(type="train")
        def job() -> None:
            sgd(weight())

        return job

    first = make()
    line = line_of(first.function).line
    with pytest.raises(JobError, match=rf"train job 'job' \(at .*:{line}\)\n.*:{line}\n"):
        make()


def test_wrong_uses_of_global_function() -> None:
    with mistake(JobError, "did you mean train") as line:
        line.append(here(1))
        flow.global_function(type="trian")
    with mistake(JobError, "made by flow.function_config") as line:
        line.append(here(1))
        flow.global_function(type="train", function_config={})


RATE = flow.optimizer.PiecewiseConstantScheduler([], [0.1])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: flow.optimizer.SGD("0.1"), "a number for a constant rate"),
        (lambda: flow.optimizer.SGD(True), "a number for a constant rate"),
        (lambda: flow.optimizer.Adam(float("nan")), "lr_scheduler=nan"),
        (lambda: flow.optimizer.Adam(RATE, beta1=float("inf")), "beta1=inf"),
        (lambda: flow.optimizer.SGD(RATE, momentum=None), "momentum=None"),
        (lambda: flow.optimizer.SGD(RATE, grad_clipping=1.0), r"by_global_norm\(limit\)"),
        (lambda: flow.optimizer.SGD(RATE, loss_scale_policy=128), "loss_scale, called"),
        (lambda: flow.optimizer.Adam(RATE, beta1="0.9"), "beta1='0.9'"),
        (lambda: flow.optimizer.RMSProp(RATE, epsilon=None), "epsilon=None"),
        (lambda: flow.optimizer.LARS(RATE, lars_coefficient="1"), "lars_coefficient"),
        (lambda: flow.optimizer.CosineScheduler("0.1", 10), "base_lr='0.1'"),
        (lambda: flow.optimizer.CosineScheduler(0.1, 10, warmup=5), "warmup=5"),
    ],
)
def test_wrong_arguments_of_optimizers(make: Callable[[], Any], text: str) -> None:
    with mistake(InferenceError, text) as line:
        line.append(line_of(make))
        make()


@pytest.mark.parametrize("rate", [0.5, np.float32(0.5), 1])
def test_a_number_is_a_constant_rate(rate: Any) -> None:
    @flow.global_function(type="train")
    def job(x: PAIR) -> tp.Numpy:
        loss = flow.math.reduce_mean(x * weight())
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    for step in range(3):
        found = job(np.ones((2, 3), np.float32))
        assert found == pytest.approx(1 - step * rate / 6)


def test_a_loss_without_a_way_back() -> None:
    @flow.global_function(type="train")
    def job(x: PAIR) -> tp.Numpy:
        loss = flow.cast(flow.math.argmax(x * weight()), flow.float)
        sgd(loss)
        return loss

    with mistake(JobError, "argmax(.|\n)*have no gradient") as line:
        line.append(SGD_LINE)
        job(ZEROS)
