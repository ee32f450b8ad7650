"""Executables that observe tasks: times, traces, and checks for numbers that are not finite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.errors import ConfigError, NonFiniteError
from flow_core.base.formats.trace_file import merge, rank_file, read, write
from flow_core.frontend.session.session import default_session
from flow_core.runtime import trace as traces
from flow_core.runtime.executable import Executable
from flow_core.runtime.finite_check import CheckedExecutable, overlap
from flow_core.runtime.observers import observed_executable


def training(devices: str = "0:0-1") -> Any:
    @flow.global_function(type="train")
    def fit(x: tp.Numpy.Placeholder((8, 3))) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            w = flow.get_variable("w", (3, 1), initializer=flow.ones_initializer())
            loss = flow.math.reduce_mean(flow.math.log(flow.matmul(x, w)))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [1.0])
            flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    return fit


@contextmanager
def settings(**changes: Any) -> Iterator[None]:
    """Change settings of the default session."""
    session = default_session()
    before = session.settings
    session.settings = replace(before, **changes)
    yield
    default_session().settings = before


@pytest.fixture
def checking() -> Iterator[None]:
    with settings(check_finite="all"):
        yield


def ones() -> Any:
    return np.ones((8, 3), np.float32)


def run(job: Any, steps: int, before: Any = lambda: None) -> None:
    for _ in range(steps):
        before()
        job(ones())


def test_nothing_is_observed_by_default() -> None:
    assert type(training().executable()) is Executable


@pytest.mark.usefixtures("checking")
@pytest.mark.parametrize("devices", ["0:0", "0:0-1"])
def test_the_first_op_with_its_step_line_and_ranges(devices: str) -> None:
    job = training(devices)
    with pytest.raises(NonFiniteError, match=r"log .* step \d+ of job 'fit'") as caught:
        run(job, 50)
    error = caught.value
    assert error.op.startswith("log")
    assert error.device in {"cpu:0:0", f"cpu:0:{devices[-1]}"}
    assert error.at is not None
    source = Path(error.at.file).read_text().splitlines()[error.at.line - 1]
    assert "flow.math.log(" in source
    assert "matmul" in str(error.found)
    assert "from -" in str(error.found)  # the input is negative
    assert "replay of the step: the same numbers at the same op" in str(error.found)


@pytest.mark.usefixtures("checking")
@pytest.mark.parametrize(("devices", "part"), [("0:0-1", "[4:8, 0:1]"), ("0:0-2", "[3:6, 0:1]")])
def test_the_element_is_named_in_the_whole_tensor(devices: str, part: str) -> None:
    x = ones()
    x[5] = -1
    with pytest.raises(NonFiniteError) as caught:
        training(devices)(x)
    assert caught.value.device == "cpu:0:1"
    assert f"of the part {part}, the first at [5, 0]" in str(caught.value.found)


def test_the_element_as_json(tmp_path: Path) -> None:
    file = tmp_path / "nan.json"
    x = ones()
    x[5] = -1
    with settings(check_finite="nan", check_finite_file=str(file)), pytest.raises(NonFiniteError):
        training()(x)
    found = json.loads(file.read_text())
    assert found["index"] == [5, 0]
    assert (found["job"], found["op"], found["rank"], found["step"]) == ("fit", "log@1", 0, 0)
    assert found["file"].endswith("test_observed.py")
    assert "the same numbers" in found["replay"]


def test_plans_have_the_regions_of_parts_only_for_checks() -> None:
    assert training().plan().regions == {}
    flow.clear_default_session()
    with settings(check_finite="all"):
        plan = training().plan()
    assert plan.regions["log@1:0"] == ((4, 8), (0, 1))
    assert type(plan).from_json(plan.to_json()) == plan


@pytest.mark.usefixtures("checking")
def test_variables_are_those_before_the_step() -> None:
    job = training("0:0")
    steps: list[Any] = []
    with pytest.raises(NonFiniteError) as caught:
        run(job, 50, lambda: steps.append(flow.get_all_variables()["w"].numpy()))
    assert len(steps) - 1 == caught.value.step == int(job.executable().step)
    assert np.isfinite(steps).all()


@pytest.mark.usefixtures("checking")
def test_fed_numbers_are_named_by_parameter() -> None:
    x = ones()
    x[2, 1] = np.nan
    with pytest.raises(NonFiniteError, match=r"fed array 'x': 1 NaN of 24 numbers, .* \[2, 1\]"):
        training("0:0")(x)


@pytest.mark.usefixtures("checking")
def test_an_update_that_makes_a_variable_infinite_is_found() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        w = flow.get_variable("w", (4,), initializer=flow.ones_initializer())
        loss = flow.math.reduce_sum(w * x)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [3e38])
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    with pytest.raises(NonFiniteError, match="update") as caught:
        job(np.full(4, 100, np.float32))
    assert "variable w:0" in str(caught.value.found)


@pytest.mark.usefixtures("checking")
def test_ops_of_a_fused_group_are_named() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        y = flow.math.sin(x)
        return flow.math.exp(flow.math.log(y) * 2)

    with pytest.raises(NonFiniteError, match="checking log 'log'"):
        job(np.zeros(4, np.float32))


def test_buffers_that_share_memory() -> None:
    plan = training("0:0").plan()
    state = plan.buffers[plan.variables["w"]]
    temps = [b for b in plan.buffers if b.offset >= 0 and b.type.nbytes]
    assert overlap(state, state)
    assert not any(overlap(state, b) for b in temps)
    assert all(overlap(b, b) for b in temps)


def test_a_trace_and_checks_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="one of them"):
        observed_executable(Settings(trace="x.json", check_finite="nan"))
    assert observed_executable(Settings(check_finite="all")) is CheckedExecutable


def test_a_trace_has_all_tasks_on_tracks_with_arrows(tmp_path: Any) -> None:
    path = tmp_path / "trace.json"
    with settings(trace=str(path)):
        job = training()
        run(job, 2)
    traces._trace(str(path), None).write()
    events, plan = read(path), job.plan()
    spans = [e for e in events if e["ph"] == "X" and "type" in e["args"]]
    assert sorted(e["name"] for e in spans) == sorted(2 * [t.op for t in plan.tasks])
    assert all(e["dur"] > 0 and e["pid"] == 0 for e in spans)
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {*plan.streams, "steps"}
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts
    assert starts.keys() == ends.keys()
    assert all(starts[i]["tid"] != ends[i]["tid"] for i in starts)
    assert all(starts[i]["ts"] <= ends[i]["ts"] for i in starts)


def test_traces_of_processes_are_merged(tmp_path: Any) -> None:
    path = tmp_path / "trace.json"
    for rank in (0, 1):
        write(rank_file(path, rank), [{"ph": "X", "pid": rank}])
    assert merge(path) == 2
    assert [e["pid"] for e in read(path)] == [0, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    wrong = pytest.raises(ConfigError, match=r"FLOW_TRACE=.*No such file")
    with settings(trace=str(tmp_path / "missing" / "trace.json")), wrong as caught:
        training()(ones())
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


def test_a_trace_on_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trace.json").mkdir()
    traces.Trace(tmp_path / "trace.json", None).write()
    assert "trace: not written: " in capsys.readouterr().err
