"""Class sampling on one device and on several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from flow_core.base.errors import DataError, InferenceError
from flow_typing import Numpy

CLASSES, WIDTH, SAMPLES, BATCH = 24, 3, 12, 5


@pytest.fixture(autouse=True)
def session() -> Any:
    flow.clear_default_session()
    flow.config.cpu_device_num(4)
    yield
    flow.clear_default_session()


def job_on(where: str, samples: int = SAMPLES) -> Any:
    @flow.global_function(type="train")
    def job(label: Numpy.Placeholder((BATCH,), dtype=flow.int32)):  # type: ignore[no-untyped-def]
        with flow.scope.placement("cpu", where):
            weight = flow.get_variable(
                "w", (CLASSES, WIDTH), initializer=flow.random_uniform_initializer(-1, 1)
            )
            split = weight.with_distribute(flow.distribute.split(0))
            found = flow.distributed_partial_fc_sample(split, label, samples)
        loss = flow.math.square(found[2])
        rate = flow.optimizer.PiecewiseConstantScheduler([], [float(samples * WIDTH) / 2])
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return (weight, *found)

    return job


@pytest.mark.parametrize(("where", "parts"), [("0:0", 1), ("0:0-1", 2), ("0:0-3", 4)])
def test_each_part_samples_its_labels_first(where: str, parts: int) -> None:
    label = np.array([7, 2, 23, 7, 0], np.int32)
    job, seen = job_on(where), []
    for _ in range(2):
        weight, places, chosen, rows = (x.numpy() for x in job(label).get())
        assert np.array_equal(chosen[places], label)
        assert np.array_equal(rows, weight[chosen])
        for part, classes in enumerate(chosen.reshape(parts, -1)):
            low, high = part * CLASSES // parts, (part + 1) * CLASSES // parts
            own = np.unique(label[(label >= low) & (label < high)])
            assert len(set(classes)) == len(classes)
            assert ((classes >= low) & (classes < high)).all()
            assert np.array_equal(classes[: len(own)], own)
        want = weight.copy()
        want[chosen] -= rows
        assert np.allclose(flow.get_all_variables()["w"].numpy(), want, atol=1e-6)
        seen.append(chosen)
    assert not np.array_equal(*seen)


def test_class_counts_must_match_the_devices() -> None:
    with pytest.raises(InferenceError, match="10 samples of 24 classes on 4 devices"):
        job_on("0:0-3", 10)(np.zeros(BATCH, np.int32))


def test_more_labels_than_samples() -> None:
    with pytest.raises(DataError, match="larger num_sample"):
        job_on("0:0-3", 4)(np.arange(BATCH, dtype=np.int32)).get()
