"""Batch normalization of a batch that is split: the statistics are those of the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

CHANNELS, BATCH = 4, 10


def train(devices: str, axis: int) -> tuple[Any, dict[str, Any], Any]:
    """Losses of some steps, what normalization has learnt, and the plan."""
    flow.clear_default_session()
    shape = (BATCH, 5, 3, CHANNELS) if axis == 3 else (BATCH, CHANNELS, 5, 3)
    init = flow.random_normal_initializer(stddev=0.3)

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder(shape), y: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            h = flow.nn.relu(flow.layers.batch_normalization(x * 2.0 + 1.0, axis=axis, name="bn"))
            h = flow.layers.dense(flow.flatten(h, 1), 5, kernel_initializer=init, name="o")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, h)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return loss

    rng = np.random.RandomState(0)
    losses = [
        job(rng.rand(*shape).astype("f4"), rng.randint(0, 5, BATCH).astype("i4")) for _ in range(4)
    ]
    names = ("bn-gamma", "bn-beta", "bn-moving_mean", "bn-moving_variance")
    found = flow.get_all_variables()
    return np.array(losses), {name: found[name].numpy() for name in names}, job.plan()


@pytest.mark.representative(r"\[3\]", "the others differ in sizes")
@pytest.mark.parametrize("axis", [1, 3])
def test_many_devices_equal_one(axis: int) -> None:
    losses, variables, _ = train("0:0", axis)
    for count in (2, 3, 4):
        many, others, plan = train(f"0:0-{count - 1}", axis)
        np.testing.assert_allclose(many, losses, 2e-5, 2e-6)
        for name, value in variables.items():
            np.testing.assert_allclose(others[name], value, 2e-5, 2e-6, err_msg=name)
        sent = sum(t.nbytes for t in plan.ledger if t.value.startswith("bn"))
        # all-reduces of the mean and the variance, then of the gradients of beta and gamma
        assert sent == 4 * 2 * (count - 1) * 4 * CHANNELS


def test_ops_that_are_made_of_a_norm_leave_names_to_those_behind_it() -> None:
    """A hint at what a norm gives is an op that is named after it, as are the norm's parts."""
    x = np.random.RandomState(0).rand(BATCH, CHANNELS, 5, 3).astype("f4")

    def outputs(devices: str) -> Any:
        flow.clear_default_session()

        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
            with flow.scope.placement("cpu", devices):
                h = flow.layers.batch_normalization(x, axis=1, name="bn")
                h = h.with_distribute(flow.distribute.split(0)) * 2.0
                rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
                flow.optimizer.SGD(rate, momentum=0).minimize(h)
            return h

        return job(x)

    np.testing.assert_allclose(outputs("0:0-1"), outputs("0:0"), 2e-5, 2e-6)
