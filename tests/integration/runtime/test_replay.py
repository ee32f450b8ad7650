"""Recorded steps: the ring, replays with the recorded bits, and the first op that differs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from processes import run

import oneflow as flow
import oneflow.typing as tp
from flow_core.base import planning
from flow_core.base.config import Settings
from flow_core.base.errors import ConfigError, ReplayError
from flow_core.base.formats.recorded_steps import (
    RecordedStep,
    Recording,
    read_recording,
    write_recording,
)
from flow_core.cli.app import cli
from flow_core.frontend.session import session as sessions
from flow_core.frontend.session.recorder import LONGEST, Recorder, recorder_of
from flow_core.observe.replay.run import (
    Replay,
    first_difference,
    job_named,
    position_of,
    replay_step,
    variables_before,
)
from flow_core.plugins.host import load_plugins
from flow_core.runtime.executable import Executable
from flow_core.runtime.observers import observed_executable

K = 3
INIT = flow.random_normal_initializer(stddev=0.5)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    """The recorder of a default session with emulated devices."""
    flow.clear_default_session()
    settings = Settings(
        emulate_gpus=4,
        disabled_plugins=("flow-onednn",),
        replay=str(tmp_path / "steps.zip"),
        replay_steps=K,
    )
    session = sessions.Session(load_plugins(settings), settings)
    sessions._default[:] = [session]
    assert session.recorder is not None
    yield session.recorder
    flow.clear_default_session()
    sessions._default.clear()


def train_job(devices: str = "0:0", init: Any = INIT) -> Any:
    @flow.global_function(type="train")
    def train(
        x: tp.Numpy.Placeholder((16, 8)), y: tp.Numpy.Placeholder((16,), flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            h = flow.layers.dense(x, 8, flow.math.tanh, kernel_initializer=init, name="first")
            h = flow.nn.dropout(h, rate=0.5, name="dropout")
            scores = flow.layers.dense(h, 4, kernel_initializer=INIT, name="second")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, scores, name="loss")
            flow.optimizer.Adam(0.01, do_bias_correction=True).minimize(loss)
        return loss

    return train


def batches(count: int) -> Iterator[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield rng.random((16, 8), np.float32), rng.integers(0, 4, 16).astype(np.int32)


def replayed(recorder: Recorder, job: Any, step: int, **options: Any) -> Replay:
    recording = recorder.recording()
    position = position_of(recording, job.name, step)
    jobs = job_named(sessions.default_session().jobs)
    values = variables_before(recording, position, jobs)
    return replay_step(job, recording.steps[position], values, **options)


# --------------------------------------------------------------------------------------- bits


@pytest.mark.parametrize("devices", ["0:0", "0:0-1"])
def test_each_of_the_last_steps_has_its_bits_again(recorder: Recorder, devices: str) -> None:
    job, results, weights = train_job(devices), [], []
    for x, y in batches(2 * K + 1):
        before = {} if not weights else flow.get_all_variables()
        weights.append({name: value.numpy() for name, value in before.items()})
        results.append(job(x, y))
    for back in range(1, K + 1):
        found = replayed(recorder, job, -back)
        assert found.step == len(results) - back
        assert found.same is True
        assert np.array_equal(found["loss:1"], results[-back])
        for name, value in weights[-back].items():
            assert np.array_equal(found.start[name], value), (back, name)
    assert {op.name for op in found.ops} >= {"first-matmul", "dropout", "loss"}
    assert found.ops[-1].line.startswith(__file__)


def test_a_replay_changes_neither_the_variables_nor_the_counter(recorder: Recorder) -> None:
    job = train_job()
    for x, y in batches(4):
        job(x, y)
    before = {name: value.numpy() for name, value in flow.get_all_variables().items()}
    assert str(flow.replay(job, -2)).startswith("<step 2 of job 'train' with the values of ")
    first, second = (flow.replay(job, -2)["loss"] for _ in range(2))
    assert np.array_equal(first, second)
    assert job.step == 4
    for name, value in flow.get_all_variables().items():
        assert np.array_equal(value.numpy(), before[name]), name


def test_arrays_that_the_program_overwrites_were_copied(recorder: Recorder) -> None:
    job = train_job()
    x, y = np.empty((16, 8), np.float32), np.empty(16, np.int32)
    results = []
    for new_x, new_y in batches(4):
        x[...], y[...] = new_x, new_y
        results.append(job(x, y).copy())
    found = replayed(recorder, job, -3)
    assert found.same is True
    assert np.array_equal(found["loss:1"], results[-3])


USES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "an op": (lambda x: flow.math.reduce_sum(x, [0], name="op"), True),
    "an op in its place": (lambda x: flow.math.relu(x, name="op"), False),
    "a view": (lambda x: flow.math.reduce_sum(flow.reshape(x, (32, 256)), [0], name="op"), True),
    "a result": (lambda x: flow.identity(x, name="op"), False),
    "parts": (lambda x: flow.math.exp(x.with_distribute(flow.distribute.split(0))), False),
}
"""Uses of a fed array, and whether the step may read it where it is kept."""


@pytest.mark.parametrize("use", USES)
def test_steps_read_large_fed_arrays_where_they_are_kept(recorder: Recorder, use: str) -> None:
    """The programs overwrite the arrays after each step; recorded and other steps alternate."""
    function, is_direct = USES[use]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((64, 128)), y: tp.Numpy.Placeholder(())) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0-1" if use == "parts" else "0:0"):
            return function(x) if use == "a result" else function(x) * y

    x, y, fed, results = np.empty((64, 128), np.float32), np.ones((), np.float32), [], []
    for i in range(6 * K):
        x[...] = np.random.default_rng(i).random(x.shape, np.float32)
        fed.append(x.copy())
        results.append(job(x, constant(y.copy()) if i % 2 else y))
        x[...] = -1
        plain = Executable.run(job.executable(), [fed[-1], y])
        assert np.array_equal(plain[0], results[-1])
    assert bool(job.executable()._moved) == is_direct
    for kept, want in zip(recorder._kept, fed[-len(recorder._kept) :], strict=True):
        assert np.array_equal(kept.feeds[0], want)
    slots = [kept.slot for kept in recorder._kept]
    assert any(slot is not None and slot.launches is not None for slot in slots) == is_direct
    for back in range(1, K + 1):
        assert replayed(recorder, job, -back).same is True


def test_train_steps_read_large_fed_arrays_where_they_are_kept(recorder: Recorder) -> None:
    """Tasks with effects do not read them; the program overwrites the array after each step."""

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((64, 128))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0"):
            h = flow.layers.dense(x, 4, flow.math.tanh, kernel_initializer=INIT, name="first")
            loss = flow.math.reduce_mean(h * h)
            flow.optimizer.SGD(0.1, momentum=0.9).minimize(loss)
        return loss

    x = np.empty((64, 128), np.float32)
    for i in range(6 * K):
        x[...] = np.random.default_rng(i).random(x.shape, np.float32)
        job(x)
        x[...] = -1
    executable = job.executable()
    specs = sessions.default_session().registry.ops
    assert any(specs[task.type].effect for task in executable.plan.tasks)
    assert executable._moved
    for back in range(1, K + 1):
        assert replayed(recorder, job, -back).same is True


def constant(x: Any) -> Any:
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    ("made", "is_kept"),
    [
        (lambda x: x, False),
        (constant, True),
        (lambda x: constant(np.concatenate([x, x]))[16:], True),
        (lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(16, 8), True),
        (lambda x: constant(x[:]), False),  # the array itself may change
        (lambda x: np.frombuffer(bytearray(x), np.float32).reshape(16, 8), False),
    ],
)
def test_arrays_that_nothing_can_change_are_kept_without_a_copy(
    recorder: Recorder, made: Callable[[Any], Any], is_kept: bool
) -> None:
    job = train_job()
    fed = [(made(x), y) for x, y in batches(4)]
    for x, y in fed:
        job(x, y)
        assert (recorder._kept[-1].feeds[0] is x) == is_kept
    assert replayed(recorder, job, -3).same is True


def test_casts_of_fed_arrays_are_kept_without_a_copy(recorder: Recorder) -> None:
    job = train_job()
    for x, y in batches(4):
        wide = x.astype(np.float64)
        job(wide, y)
        wide[...] = 0
        assert recorder._kept[-1].feeds[0].base is None  # no part of the memory for copies
    assert replayed(recorder, job, -3).same is True


def test_assignments_between_steps_and_other_jobs_are_replayed(recorder: Recorder) -> None:
    job = train_job()

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((16, 8))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0"):
            return flow.layers.dense(x, 8, kernel_initializer=INIT, name="first")

    predicted = []
    for i, (x, y) in enumerate(batches(6)):
        job(x, y)
        predicted.append(predict(x))
        if i == 4:
            sessions.default_session().assign({"first-bias": np.ones(8, np.float32)})
    for back in (1, 2, 3):
        assert replayed(recorder, job, -back).same is True
        found = replayed(recorder, predict, -back)
        assert np.array_equal(found["first-bias_add"], predicted[-back])


def test_batches_of_several_sizes_are_replayed(recorder: Recorder) -> None:
    @flow.global_function()
    def doubled(x: tp.Numpy.Placeholder((None, 2))) -> tp.Numpy:
        return flow.math.exp(x, name="exp")

    for rows in (2, 3, 2):
        doubled(np.full((rows, 2), rows, np.float32))
    assert replayed(recorder, doubled, -2)["exp"].shape == (3, 2)
    assert replayed(recorder, doubled, -1).same is True


def test_fed_scalars_are_replayed(recorder: Recorder) -> None:
    @flow.global_function()
    def doubled(x: tp.Numpy.Placeholder(())) -> tp.Numpy:
        return flow.math.exp(x, name="exp")

    results = [doubled(np.array(i, np.float32)) for i in range(K + 1)]
    assert np.array_equal(replayed(recorder, doubled, -K)["exp"], results[1])


# ------------------------------------------------------------------------------------ the ring


def test_copies_of_fed_arrays_are_adjacent_in_memory(recorder: Recorder) -> None:
    """Separate arrays of some pages each take longer to write."""
    job = train_job()
    for x, y in batches(K):
        job(x, y)
    bases = {id(step.feeds[0].base) for step in recorder._kept}
    assert len(bases) == 1


def test_the_ring_holds_few_copies_of_the_variables(recorder: Recorder) -> None:
    job = train_job()
    for x, y in batches(5 * LONGEST * K):
        job(x, y)
    assert len(recorder._snapshots) <= 2
    assert K <= len(recorder._kept) <= (LONGEST + 1) * K
    kept = [id(array) for step in recorder._kept for array in step.feeds]
    for x, y in batches(LONGEST * K):
        job(x, y)
    assert {id(array) for step in recorder._kept for array in step.feeds} & {*kept}


def test_steps_that_are_not_recorded_run_as_usual() -> None:
    flow.clear_default_session()

    @flow.global_function()
    def plain(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        return 2 * x

    plain([1, 2])
    assert type(plain.executable()) is Executable
    with pytest.raises(ReplayError, match="no recorded steps"):
        flow.replay(plain)


def test_a_file_has_the_arrays_that_were_written(tmp_path: Path) -> None:
    half = np.arange(3).astype(ml_dtypes.bfloat16)
    step = RecordedStep("job", 7, (half, np.array(True)), (None, np.zeros((0, 2), np.int64)))
    file = tmp_path / "steps.zip"
    write_recording(file, Recording(4, (step,), {0: {"w": np.array(1.5)}}))
    found = read_recording(file)
    assert (found.count, found.steps[0].job, found.steps[0].step) == (4, "job", 7)
    assert found.steps[0].feeds[0].dtype == half.dtype
    assert found.steps[0].feeds[0].tolist() == half.tolist()
    assert found.steps[0].results is not None
    assert found.steps[0].results[1].shape == (0, 2)  # type: ignore[union-attr]
    assert found.variables[0]["w"] == 1.5
    assert [path.name for path in tmp_path.iterdir()] == ["steps.zip"]


# --------------------------------------------------------------------------------- differences


def test_the_first_op_whose_bits_differ_is_named(recorder: Recorder) -> None:
    job = train_job()
    for x, y in batches(2):
        job(x, y)
    recording = recorder.recording()
    position = position_of(recording, "train", -1)
    values = variables_before(recording, position, lambda _: job)
    one = replay_step(job, recording.steps[position], values)
    assert first_difference(one, replay_step(job, recording.steps[position], values)) is None
    changed = values["second-weight"].copy()
    changed[1, 2] = np.nextafter(changed[1, 2], 9)
    other = replay_step(job, recording.steps[position], {**values, "second-weight": changed})
    found = first_difference(one, other)
    assert found is not None
    assert found.op.name == "second-matmul"
    assert found.op.line.startswith(__file__)
    assert 0 < found.count <= 16
    assert 0 < (found.largest or 0) < 1e-5
    moved = values["second-bias-v"] + 1
    other = replay_step(job, recording.steps[position], {**values, "second-bias-v": moved})
    found = first_difference(one, other)
    assert found is not None
    assert found.op.type == "variable"


def test_the_same_step_on_other_devices(recorder: Recorder) -> None:
    job = train_job(init=flow.constant_initializer(0.25))
    ((x, y),) = batches(1)
    job(np.round(8 * x), y)  # products of the first layer are exact, whatever the order of the sums
    one = replayed(recorder, job, -1, until="dropout")
    two = replayed(recorder, job, -1, until="dropout", devices=2)
    assert [op.name for op in one.ops][-1] == [op.name for op in two.ops][-1] == "dropout"
    assert first_difference(one, two) is None


# -------------------------------------------------------------------------------------- errors


def test_steps_and_ops_that_do_not_exist_are_named(recorder: Recorder) -> None:
    job = train_job()
    for x, y in batches(2):
        job(x, y)
    with pytest.raises(ReplayError, match="steps 0 to 1"):
        flow.replay(job, 9)
    with pytest.raises(ReplayError, match="did you mean dropout"):
        flow.replay(job, until="dropouts")
    with pytest.raises(ReplayError, match="no op of that name"):
        flow.replay(job)["losses"]
    with pytest.raises(ReplayError, match="steps of train"):
        position_of(recorder.recording(), "eval", -1)
    with pytest.raises(ReplayError, match="no job of that name"):
        variables_before(recorder.recording(), 1, job_named([]))


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name, content in {"text": b"steps", "empty": b""}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ReplayError, match="reading"):
            read_recording(tmp_path / name)


def test_what_cannot_be_recorded_is_refused(tmp_path: Path, recorder: Recorder) -> None:
    settings = Settings(replay=str(tmp_path / "x"), trace="t.json")
    with pytest.raises(ConfigError, match="FLOW_REPLAY"):
        observed_executable(settings, recorder)

    class World:
        size = 2

    with pytest.raises(ConfigError, match="2 processes"):
        recorder_of(settings, {}, recorder.writes, World())  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------- command

PROGRAM = """
import numpy as np
import oneflow as flow
import oneflow.typing as tp

INIT = flow.random_normal_initializer(stddev=0.5)


@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((16, 8))) -> tp.Numpy:
    h = flow.layers.dense(x, 8, kernel_initializer=INIT, name="layer")
    h = flow.nn.dropout(h, rate=0.5, name="dropout")
    loss = flow.math.reduce_mean(h, name="loss")
    flow.optimizer.SGD(0.1, momentum=0.9).minimize(loss)
    return loss


for i in range(10):
    train(np.full((16, 8), i, np.float32))
raise SystemExit(3)
"""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what a script that is planned, and the command, change in this process."""
    monkeypatch.setattr(planning, "_active", [])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.slow
@pytest.mark.usefixtures("program")
def test_the_command_replays_what_a_program_recorded(tmp_path: Path) -> None:
    script, file = tmp_path / "program.py", tmp_path / "steps.zip"
    script.write_text(PROGRAM)
    env = {**os.environ, "FLOW_DISABLE_PLUGINS": "flow-onednn", "FLOW_REPLAY_STEPS": "4"}
    command = [sys.executable, "-m", "flow_core.cli", "run", "--record", str(file), str(script)]
    assert run(command, env=env).returncode == 3
    flow.clear_default_session()
    arguments = ["replay", "--step", "-3", "--until", "dropout", str(file), f"{script}:train"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert "step 7 of job 'train'" in result.stdout
    assert "program.py:12" in result.stdout
    assert "loss" not in result.stdout
    flow.clear_default_session()
    recording = read_recording(file)
    steps = [*recording.steps[:-1], RecordedStep("train", 9, recording.steps[0].feeds, (
        np.array(0.25, np.float32),))]  # fmt: skip
    write_recording(file, Recording(4, tuple(steps), recording.variables))
    result = CliRunner().invoke(cli, ["replay", "--json", "--devices", "2", str(file), str(script)])
    data = json.loads(result.stdout)
    assert result.exit_code == 1
    assert data["ok"] is data["same"] is False
    assert data["step"] == 9
    assert data["other"] == "on 2 devices"
    assert data["compared"] > 3
    flow.clear_default_session()
    result = CliRunner().invoke(cli, ["replay", "--without", "flow-nope", str(file), str(script)])
    assert result.exit_code == 1
    assert "no plugin or distribution of that name" in result.output
    assert "core.numpy" in result.output
