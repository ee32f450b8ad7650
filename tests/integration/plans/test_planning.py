"""A script that is planned defines its jobs: it runs no step, and flow writes nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oneflow as flow
from flow_core.base.errors import JobError
from flow_core.base.planning import is_planning
from flow_core.cli.scripts import job_of

SCRIPT = """
import pathlib
import numpy as np
import oneflow as flow
import oneflow.data
import oneflow.typing as tp

@flow.global_function("train")
def train(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    loss = flow.math.reduce_mean(x * flow.get_variable("w", shape=(3,)))
    flow.optimizer.SGD(0.1).minimize(loss)
    return loss

@flow.global_function()
def predict(x: tp.Numpy.Placeholder((4, 3))) -> tp.Callback[tp.Numpy]:
    return x

x = np.zeros((4, 3), np.float32)
{line}
pathlib.Path("after").touch()
"""
LINE = SCRIPT[: SCRIPT.index("{line}")].count("\n") + 1

ENDS = {
    "train(x)": "a call of job 'train'",
    "predict(x)(print)": "a call of job 'predict'",
    "flow.checkpoint.save('models')": "saving a checkpoint",
    "flow.train.CheckPoint().save('models')": "saving a checkpoint",
    "flow.train.CheckPoint().init()": "CheckPoint.init",
    "flow.train.CheckPoint().load('models')": "loading a checkpoint",
    "flow.train.SimpleCheckPointManager('models')": "creating a folder of checkpoints",
    "flow.summary.Graph('models')": "flow.summary.Graph",
    "flow.summary.Projector('models')": "flow.summary.Projector",
    "flow.onnx.export(predict, 'models', 'model.onnx')": "flow.onnx.export to model.onnx",
    "__import__('flow_data.namespace').namespace.OFRecordWriter('part-0')": (
        "writing records to part-0"
    ),
    "__import__('flow_dist.recovery.restart').recovery.restart.Checkpoints('m')": (
        "making a folder of checkpoints"
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    modules = {*sys.modules}
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("flow_plan_")]:
        if name not in modules:
            del sys.modules[name]


def planned(folder: Path, line: str, job: str = "train", text: str = SCRIPT) -> str:
    """The name of a job of the script, which must leave nothing behind."""
    script = folder / "program.py"
    script.write_text(text.format(line=line))
    flow.clear_default_session()
    try:
        found: str = job_of(f"{script}:{job}").name
    finally:
        assert [*folder.iterdir()] == [script]
        assert not is_planning()
    return found


@pytest.mark.parametrize("line", ENDS)
def test_what_ends_a_script(folder: Path, line: str) -> None:
    assert planned(folder, line) == "train"
    with pytest.raises(JobError) as caught:
        planned(folder, f"{line}\nlater = flow.global_function()(train.function)", "later")
    where = f"{ENDS[line]} at {folder / 'program.py'}:{LINE}"
    assert f"planning stops a script before {where}" in str(caught.value)


def test_what_does_not(folder: Path) -> None:
    line = "later = flow.global_function()(lambda: flow.constant(1, flow.float))\ntrain(x)"
    assert planned(folder, line, "later") == "<lambda>"


def test_jobs_of_functions_that_the_script_calls(folder: Path) -> None:
    body = SCRIPT.replace("\n", "\n    ")
    text = f"def main():{body}\nmain()\n"
    assert planned(folder, "train(x)", text=text) == "train"
