"""Tokens of Megatron-LM's files in jobs: devices, resuming, the end of the samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing.tokens import write_tokens

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import DataError, InferenceError, JobError


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    return write_tokens(tmp_path / "text", [rng.integers(0, 500, n) for n in (30, 11, 50, 9)])


def token_job(prefix: str, devices: str = "0:0", **options: Any) -> Any:
    @flow.global_function()
    def job() -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            return flow.data.MegatronGPTMMapDataLoader(
                prefix, seq_length=8, num_samples=16, batch_size=4, random_seed=5, **options
            )

    return job


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"parallel_distribution": ["S(0)"]},
        {"nd_sbp": ["B"]},
        {"parallel_distribution": [flow.distribute.split(0)]},
        {"parallel_distribution": [flow.distribute.broadcast()], "dtype": flow.int32},
    ],
)
def test_devices_read_their_parts_of_one_sequence_of_batches(prefix: str, options: Any) -> None:
    flow.config.cpu_device_num(2)
    one, two = token_job(prefix), token_job(prefix, "0:0-1", **options)
    for _ in range(4):
        found = two()
        np.testing.assert_array_equal(one(), found)
        assert found.shape == (4, 9)
        assert found.dtype == options.get("dtype", flow.int64).numpy


def test_a_step_after_the_last_sample_is_an_error(prefix: str) -> None:
    job = token_job(prefix, shuffle=False)
    batches = [job() for _ in range(6)]  # 24 samples: two epochs of 100 tokens hold that many
    np.testing.assert_array_equal(batches[0][1:, 0], batches[0][:-1, -1])
    with pytest.raises(DataError, match=r"(?s)num_samples=16.*num_samples=batch_size"):
        job()


def test_a_restored_train_job_continues(prefix: str, tmp_path: Path) -> None:
    def train_job() -> Any:
        @flow.global_function(type="train")
        def train() -> tp.Numpy:
            x = flow.data.megatron_gpt_mmap_data_loader(
                prefix, 8, 40, 4, random_seed=5, start_from_saved_progress=True, name="loader"
            )
            weight = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
            loss = flow.math.reduce_mean(flow.cast(x, flow.float) * weight)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [1e-6])
            flow.optimizer.SGD(rate).minimize(loss)
            return x

        return train

    train = train_job()
    first = [train() for _ in range(5)]
    flow.clear_default_session()
    train = train_job()
    for wanted in first[:3]:
        np.testing.assert_array_equal(train(), wanted)
    flow.checkpoint.save(str(tmp_path / "saved"))
    flow.clear_default_session()
    train = train_job()
    flow.load_variables(flow.checkpoint.get(str(tmp_path / "saved")))
    for wanted in first[3:]:
        np.testing.assert_array_equal(train(), wanted)


@pytest.mark.parametrize(
    ("options", "error", "found"),
    [
        ({"data_file_prefix": "/none"}, DataError, "/none.idx"),
        ({"dtype": flow.float}, InferenceError, "int32 or int64"),
        ({"seq_length": 0}, InferenceError, "seq_length 0"),
        ({"num_samples": -1}, InferenceError, "num_samples -1"),
        ({"split_sizes": (3, 1), "split_index": 2}, InferenceError, "split_index 2"),
        ({"split_sizes": (0, 0)}, InferenceError, "split_sizes"),
        ({"parallel_distribution": ["S(0)"], "nd_sbp": ["B"]}, InferenceError, "one of the two"),
        ({"parallel_distribution": ["Q"]}, JobError, "S\\(axis\\), B or P"),
    ],
)
def test_wrong_arguments(prefix: str, options: Any, error: Any, found: str) -> None:
    given = {"data_file_prefix": prefix, "seq_length": 8, "num_samples": 8, "batch_size": 4}

    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.data.megatron_gpt_mmap_data_loader(**{**given, **options})

    with pytest.raises(error, match=found):
        job()
