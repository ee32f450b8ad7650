"""``flow verify --resume``: jobs that resume on other numbers of devices, and mistakes in that."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from fuzzing.tokens import write_tokens
from parallel_forms import emulated

import oneflow as flow
import oneflow.typing as tp
from flow_core.base import planning
from flow_core.base.errors import JobError
from flow_core.checkpoint import store
from flow_core.cli.app import cli
from flow_core.observe.resume.matrix import ResumeMatrix, resume_matrix, resume_tables
from flow_core.observe.tables import joined

INIT = flow.random_normal_initializer(stddev=0.3)
STEP = "System-Train-TrainStep-train"


def train_job(devices: str = "0:0", micro_batches: int = 1, **settings: Any) -> Any:
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(micro_batches)
    for name, value in settings.items():
        getattr(config, name)(value)

    @flow.global_function(type="train", function_config=config)
    def train(
        x: tp.Numpy.Placeholder((12, 16)), y: tp.Numpy.Placeholder((12,), flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            x = flow.layers.dense(x, 32, flow.nn.relu, kernel_initializer=INIT, name="a")
            x = flow.nn.dropout(x, 0.3)
            x = flow.layers.dense(x, 10, kernel_initializer=INIT, name="b")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
            flow.optimizer.Adam(1e-2, do_bias_correction=True).minimize(loss)
        return loss

    return train


def pipeline_job() -> Any:
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((12, 16))) -> tp.Numpy:
        for i in range(4):
            with flow.scope.placement("gpu", f"0:{i}"):
                x = flow.layers.dense(x, 16, flow.math.tanh, kernel_initializer=INIT, name=f"l{i}")
        with flow.scope.placement("gpu", "0:3"):
            loss = flow.math.square(x)
            flow.optimizer.SGD(0.1, momentum=0.9).minimize(loss)
        return loss

    return train


def reading_job(files: str) -> Any:
    @flow.global_function(type="train")
    def train() -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            x = flow.data.megatron_gpt_mmap_data_loader(
                files, 8, 240, 12, random_seed=5, name="loader"
            )
        with flow.scope.placement("gpu", "0:0-1"):
            weight = flow.get_variable("w", (9, 1), initializer=flow.ones_initializer())
            loss = flow.math.reduce_sum(flow.matmul(flow.cast(x, flow.float), weight), axis=[1])
            flow.optimizer.SGD(1e-9, momentum=0).minimize(loss)
        return loss

    return train


def matrix(make: Any = train_job, devices: int = 4, *others: int, **options: Any) -> ResumeMatrix:
    with emulated(4):
        flow.config.cpu_device_num(4)
        return resume_matrix(make(), devices, others or (4, 3, 2, 1), **options)


@pytest.mark.representative("written|stages", "the others differ in one setting each")
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: train_job("0:0-3"), id="written for four devices"),
        pytest.param(train_job, id="for one device"),
        pytest.param(lambda: train_job("0:0-3", 2), id="micro-batches"),
        pytest.param(
            lambda: train_job("0:0-3", optimizer_placement_optimization_mode="distributed_split"),
            id="states in parts",
        ),
        pytest.param(pipeline_job, id="stages"),
    ],
)
def test_a_job_resumes_as_if_nothing_had_happened(make: Any) -> None:
    found = matrix(make)
    assert [run.devices for run in found.runs] == [4, 3, 2, 1]
    assert [run.start for run in found.runs] == [2] * 4
    assert all(run.state and run.samples and run.same for run in found.runs)
    assert found.runs[0].drift == 0
    assert found.ok
    assert joined(resume_tables(found)).count("each once") == 4


def test_records_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    files = write_tokens(tmp_path / "text", [rng.integers(0, 500, n) for n in (300, 110, 500)])
    assert matrix(lambda: reading_job(files), 2, 2, 1, 3).ok
    load = store.load
    monkeypatch.setattr(
        store, "load", lambda *args, **options: without(STEP, load(*args, **options))
    )
    again = matrix(lambda: reading_job(files), 2, 2, 1)
    assert [run.samples for run in again.runs] == [False, False]
    assert "LOST OR TWICE" in joined(resume_tables(again))


def without(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if name not in key}


MISTAKES: dict[str, tuple[Any, str]] = {
    "no step": (lambda values: without(STEP, values), "samples"),
    "no states": (lambda values: without("a-weight-m", values), "same"),
    "a late step": (lambda values: {**values, STEP: values[STEP] + 1}, "samples"),
    "a rounded weight": (
        lambda values: {**values, "a-weight": values["a-weight"].astype(np.float16)}, "state"
    ),
    "a scaled weight": (lambda values: {**values, "a-weight": 2 * values["a-weight"]}, "drift"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, what = MISTAKES[name]
    load = store.load
    monkeypatch.setattr(store, "load", lambda *args, **options: change(load(*args, **options)))
    found = matrix(train_job, 2, 2)
    assert not found.ok
    (run,) = found.runs
    assert not run.state
    assert run.drift > 1e-3 if what == "drift" else not getattr(run, what)


def test_a_job_that_does_not_train() -> None:
    def predict() -> Any:
        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
            return x + 1

        return job

    with pytest.raises(JobError, match='type "train"'):
        matrix(predict)


# ------------------------------------------------------------------------------------- command

PROGRAM = """
import oneflow as flow
import oneflow.typing as tp


@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((12, 4))) -> tp.Numpy:
    w = flow.get_variable("w", (4, 1), initializer=flow.ones_initializer())
    loss = flow.math.square(flow.matmul(x, w))
    flow.optimizer.SGD(0.1, momentum=0.9).minimize(loss)
    return loss


train([])
"""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A program; what the command changes in this process is restored."""
    monkeypatch.setattr(planning, "_active", [])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("ONEFLOW_EMULATE_GPUS", "4")
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def flow_verify(*arguments: object) -> Result:
    with emulated(4):
        return CliRunner().invoke(cli, ["verify", *map(str, arguments)])


def test_the_command(program: Path) -> None:
    found = flow_verify("--resume", "4:3,1", "--steps", 3, program)
    assert found.exit_code == 0, found.output
    assert "3 steps on 4 devices, a checkpoint, 3 further steps" in found.output
    as_json = json.loads(flow_verify("--resume", "2:2", "--json", f"{program}:train").output)
    assert as_json["ok"]
    assert [run["devices"] for run in as_json["runs"]] == [2]
    assert flow_verify("--resume", "4", program).exit_code == 2
    assert flow_verify("--resume", "4:0", program).exit_code == 2
