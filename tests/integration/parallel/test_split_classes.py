"""Softmax cross entropy of logits whose classes are split: numbers per example cross, no logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

BATCH, WIDTH, CLASSES = 6, 5, 11
SPLIT = flow.distribute.split(1)


def train(devices: str, hierarchy: tuple[int, ...] | None = None) -> tuple[Any, Any, Any]:
    """Losses per example of some steps, the weights, and the plan."""
    flow.clear_default_session()
    init = flow.random_normal_initializer(stddev=0.3)

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder((BATCH, WIDTH)), y: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", devices, hierarchy):
            parts = SPLIT if hierarchy is None else None
            weight = flow.get_variable(
                "w", (WIDTH, CLASSES), initializer=init, distribute=parts or flow.distribute.auto()
            )
            logits = flow.matmul(x, weight)
            if hierarchy is not None:
                logits = flow.hierarchical_parallel_cast(
                    logits, parallel_distribution=["S(0)", "S(1)"]
                )
            else:
                logits = logits.with_distribute(SPLIT)
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits, name="loss")
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.5])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return loss

    rng = np.random.RandomState(0)
    feeds = [(rng.randn(BATCH, WIDTH), rng.randint(0, CLASSES, BATCH)) for _ in range(4)]
    losses = [job((20 * x).astype("f4"), y.astype("i4")) for x, y in feeds]
    return np.array(losses), flow.get_all_variables()["w"].numpy(), job.plan()


@pytest.mark.parametrize("count", [2, 3, 4])
def test_split_classes_equal_one_device(count: int) -> None:
    losses, weights, _ = train("0:0")
    many, others, plan = train(f"0:0-{count - 1}")
    np.testing.assert_allclose(many, losses, 2e-5, 1e-5)
    np.testing.assert_allclose(others, weights, 2e-5, 1e-5)
    # the greatest logits, the sums of powers and the logits at the labels are all-reduced
    sent = {
        t.value: t.nbytes
        for t in plan.ledger
        if t.value.startswith("loss/") and "grad" not in t.value
    }
    reduced = ("loss/reduce_max:0", "loss/reduce_sum:0", "loss/dim_gather:0")
    assert [sent[value] for value in reduced] == [2 * (count - 1) * 4 * BATCH] * 3
    assert sum(sent.values()) == sum(sent[value] for value in reduced)


def test_the_batch_may_be_split_too() -> None:
    losses, weights, _ = train("0:0")
    many, others, _ = train("0:0-3", (2, 2))
    np.testing.assert_allclose(many, losses, 2e-5, 1e-5)
    np.testing.assert_allclose(others, weights, 2e-5, 1e-5)


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_the_loss_of_no_class_is_infinite(label: int) -> None:
    flow.clear_default_session()

    @flow.global_function()
    def job(
        x: tp.Numpy.Placeholder((2, CLASSES)), y: tp.Numpy.Placeholder((2,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            return flow.nn.sparse_softmax_cross_entropy_with_logits(y, x.with_distribute(SPLIT))

    found = job(np.zeros((2, CLASSES), "f4"), np.array([label, 3], "i4"))
    np.testing.assert_allclose(found, [np.inf, np.log(CLASSES)], 1e-6)
