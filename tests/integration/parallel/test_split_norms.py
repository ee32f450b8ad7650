"""LARS and LAMB where variables are split: norms of the whole, from sums of squares of parts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from parallel_forms import assert_close, assert_same, batches, emulated, mlp, train

import oneflow as flow
import oneflow.typing as tp
from flow_core.frontend.session.session import default_session
from flow_core.frontend.session.variable_storage import initial_value

RULES = ("lars", "lamb")
SPLIT = flow.distribute.split(0)


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    with emulated(4):
        yield


def optimizer(rule: str, weight_decay: float = 0.0, **options: Any) -> Any:
    rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
    if rule == "lars":
        made = flow.optimizer.LARS(rate, lars_coefficient=0.5, **options)
    else:
        made = flow.optimizer.LAMB(rate, **options)
    made.weight_decay = weight_decay
    return made


def rows(x: Any) -> Any:
    """A perceptron whose first weight is split by its units."""
    return mlp(x, model_distribute=SPLIT)


def penalized(x: Any) -> Any:
    regularizer = flow.regularizers.l1_l2(l1=0.01, l2=0.02)
    return mlp(x, kernel_regularizer=regularizer, model_distribute=SPLIT)


def make_job(rule: str, devices: str, body: Any, mode: str | None = None, **options: Any) -> Any:
    hierarchy = options.pop("hierarchy", None)
    dtype = options.pop("dtype", flow.float32)
    factor = options.pop("factor", None)
    settings = flow.function_config()
    if mode:
        settings.train.optimizer_placement_optimization_mode(mode)
        settings.train.optimizer_placement_optimization_threshold(1)

    @flow.global_function(type="train", function_config=settings)
    def job(
        x: tp.Numpy.Placeholder((24, 12)), y: tp.Numpy.Placeholder((24,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", devices, hierarchy):
            logits = body(flow.cast(x, dtype))
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = loss if factor is None else loss * factor
            optimizer(rule, **options).minimize(flow.math.reduce_mean(loss))
        return loss

    return job


def regions(name: str) -> set[Any]:
    return {part.region for part in default_session().stored()[name].parts.values()}


def compare(rule: str, devices: str, body: Any, mode: str | None = None, **options: Any) -> Any:
    """Trains on some devices and on one, and checks that the results are the same."""
    hierarchy = options.pop("hierarchy", None)
    flow.clear_default_session()
    one = train(make_job(rule, "0:0", body, **options))
    flow.clear_default_session()
    job = make_job(rule, devices, body, mode, hierarchy=hierarchy, **options)
    assert_close(train(job), one)
    return job


@pytest.mark.slow
def test_the_same_bits_in_every_run() -> None:
    runs = []
    for _ in range(2):
        flow.clear_default_session()
        runs.append(train(make_job("lamb", "0:0-2", rows)))
    assert_same(*runs)


@pytest.mark.representative(
    r"\[lamb-3\]", "two states, two powers and an uneven split; LARS has one state"
)
@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("rule", RULES)
def test_states_split_equal_one_device(rule: str, count: int) -> None:
    job = compare(rule, f"0:0-{count - 1}", mlp, "distributed_split")
    state = "m" if rule == "lamb" else "momentum"
    assert len(regions("h-weight")) == len(regions(f"h-weight-{state}")) == count
    job.plan().assert_budget(no="all_to_all")


@pytest.mark.slow
@pytest.mark.representative(r"\[lamb-rows\]", "two states and two powers; LARS has one state")
@pytest.mark.parametrize("body", [rows, penalized])
@pytest.mark.parametrize("rule", RULES)
def test_a_split_model_equals_one_device(rule: str, body: Any) -> None:
    job = compare(rule, "0:0-2", body)
    assert len(regions("h-weight")) == 3
    moved = [e.value for e in job.plan().ledger if e.nbytes]
    assert not [value for value in moved if value.startswith("h-weight-")]  # no state of it


@pytest.mark.slow
@pytest.mark.representative(r"\[lamb\]", "two states and two powers; LARS has one state")
@pytest.mark.parametrize("rule", RULES)
def test_parts_of_parts(rule: str) -> None:
    """Over a grid of 2 x 2, weights are (B, S) and become (S(0), S)."""

    def body(x: Any) -> Any:
        return mlp(x, model_distribute=flow.distribute.broadcast())

    compare(rule, "0:0-3", body, "distributed_split", hierarchy=(2, 2))
    assert len(regions("h-weight")) == 4


@pytest.mark.representative(r"\[lamb\]", "two states and two powers; LARS has one state")
@pytest.mark.parametrize("rule", RULES)
def test_weight_decay_counts_in_the_norms(rule: str) -> None:
    flow.clear_default_session()
    plain = train(make_job(rule, "0:0", rows))[1]["h-weight"]
    compare(rule, "0:0-3", rows, weight_decay=0.3)
    assert not np.allclose(default_session().stored()["h-weight"].numpy(), plain, atol=1e-4)


@pytest.mark.slow
@pytest.mark.representative(r"\[lamb\]", "two states and two powers; LARS has one state")
@pytest.mark.parametrize("rule", RULES)
def test_double_precision_keeps_its_digits(rule: str) -> None:
    flow.clear_default_session()
    one = train(make_job(rule, "0:0", rows, dtype=flow.float64))
    flow.clear_default_session()
    many = train(make_job(rule, "0:0-2", rows, dtype=flow.float64))
    assert one[1]["h-weight"].dtype == np.float64
    for name, value in one[1].items():
        np.testing.assert_allclose(many[1][name], value, rtol=1e-11, atol=1e-13, err_msg=name)


@pytest.mark.slow
@pytest.mark.representative(r"\[lamb\]", "two states and two powers; LARS has one state")
@pytest.mark.parametrize("rule", RULES)
def test_a_step_that_overflows_is_skipped_on_all_devices(rule: str) -> None:
    """Parts, states and powers of the betas stay as they are."""
    policy = flow.optimizer.loss_scale.dynamic_loss_scale(2.0**100, 2000)
    job = make_job(rule, "0:0-2", rows, factor=1e20, loss_scale_policy=policy)
    job(*batches(1)[0])
    stored = {k: v.numpy() for k, v in default_session().stored().items()}
    states = [k for k in stored if k.startswith("h-weight-")]
    assert states
    flow.clear_default_session()
    make_job(rule, "0:0-2", rows, factor=1e20, loss_scale_policy=policy).prepare()
    for name in ("h-weight", *states):
        first = initial_value(default_session().declared[name])
        np.testing.assert_array_equal(stored[name], first, err_msg=name)


@pytest.mark.representative(r"\[lamb\]", "two states and two powers; LARS has one state")
@pytest.mark.parametrize("rule", RULES)
def test_a_dynamic_loss_scale_changes_nothing_else(rule: str) -> None:
    policy = flow.optimizer.loss_scale.dynamic_loss_scale(2.0**8, 2000)
    compare(rule, "0:0-2", rows, loss_scale_policy=policy)


@pytest.mark.representative(r"\[lamb\]", "two states and two powers; LARS has one state")
@pytest.mark.parametrize("rule", RULES)
def test_variables_that_an_earlier_job_has_split(rule: str) -> None:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((24, 12))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0-2"):
            return rows(x)

    one = train(make_job(rule, "0:0", mlp))
    flow.clear_default_session()
    predict(batches(1)[0][0])
    many = train(make_job(rule, "0:0-2", mlp))
    assert_close(many, one)
    assert len(regions("h-weight")) == 3
