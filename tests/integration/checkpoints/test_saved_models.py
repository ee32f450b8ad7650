"""Saved models: graphs, weights and signatures, run without the script that defined them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import re
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CheckpointError, ConfigError, FlowError, JobError

IMAGES = np.random.default_rng(0).normal(size=(4, 2, 5, 5)).astype(np.float32)
LABELS = np.arange(4, dtype=np.int32)


def classifier(names: dict[str, str]) -> Any:
    """Define a predict job, and record the logical blob names of its data."""

    @flow.global_function()
    def losses(
        images: tp.Numpy.Placeholder(IMAGES.shape),
        labels: tp.Numpy.Placeholder(LABELS.shape, dtype=flow.int32),
    ) -> tp.Numpy:
        names["images"], names["labels"] = images.logical_blob_name, labels.logical_blob_name
        kernel = flow.random_normal_initializer(stddev=0.5)
        y = flow.layers.conv2d(images, 3, 3, padding="SAME", kernel_initializer=kernel)
        y = flow.layers.batch_normalization(y, axis=1, training=False)
        y = flow.layers.dense(flow.math.reduce_mean(y, axis=[2, 3]), 6, kernel_initializer=kernel)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, y)
        names["loss"] = loss.logical_blob_name
        return loss

    return losses


def save(path: Path, version: int = 1, signature: bool = True) -> np.ndarray:
    """Save a model, and return the result of its job."""
    names: dict[str, str] = {}
    job = classifier(names)
    expected: np.ndarray = job(IMAGES, LABELS)
    builder = flow.saved_model.ModelBuilder(str(path)).ModelName("m").Version(version)
    graph = builder.AddFunction(job)
    if signature:
        named = graph.AddSignature("classify").Input("image", names["images"])
        named.Input("label", names["labels"]).Output("nll", names["loss"])
    builder.Save()
    return expected


def cpu_session() -> Any:
    option = flow.serving.SessionOption()
    option.device_tag = "cpu"
    return flow.serving.InferenceSession(option)


def launched(path: Path, **options: Any) -> Any:
    session = cpu_session()
    session.load_saved_model(str(path), **options)
    session.launch()
    return session


def test_a_process_without_the_script(tmp_path: Path) -> None:
    expected = save(tmp_path)
    np.savez(tmp_path / "data.npz", images=IMAGES, labels=LABELS)
    program = f"""
import sys, numpy as np, oneflow as flow
data, option = np.load(r"{tmp_path / "data.npz"}"), flow.serving.SessionOption()
option.device_tag, option.device_num = "gpu", 2
session = flow.serving.InferenceSession(option)
session.load_saved_model(r"{tmp_path}")
session.launch()
(found,) = session.run("losses", image=data["images"], label=data["labels"])
np.save(r"{tmp_path / "found.npy"}", found)
assert "flow_typing" not in sys.modules
"""
    env = {**os.environ, "ONEFLOW_EMULATE_GPUS": "2", "FLOW_DISABLE_PLUGINS": "flow-typing"}
    processes.run([sys.executable, "-c", program], check=True, env=env)
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, rtol=1e-5)


def test_the_weights_are_those_of_the_save(tmp_path: Path) -> None:
    expected = save(tmp_path)
    changed = {k: v.numpy() * 0 for k, v in flow.get_all_variables().items()}
    flow.load_variables(changed)
    with launched(tmp_path) as session:
        (found,) = session.run("losses", image=IMAGES, label=LABELS)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_names_and_types_of_inputs_and_outputs(tmp_path: Path) -> None:
    save(tmp_path)
    with launched(tmp_path) as session:
        assert session.list_jobs() == ["losses"]
        assert session.list_inputs() == ("image", "label")
        assert session.list_outputs() == ("nll",)
        assert session.input_info("label", "losses") == {"shape": (4,), "dtype": flow.int32}
        assert session.output_info("nll") == {"shape": (4,), "dtype": flow.float32}


def test_names_without_a_signature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = save(tmp_path, signature=False)
    with launched(tmp_path) as session:
        (found,) = session.run("losses", images=IMAGES, labels=LABELS)
        session.print_job_set()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert "op_name: Conv2d-weight" in capsys.readouterr().out


def test_another_batch_size(tmp_path: Path) -> None:
    expected = save(tmp_path)
    session = cpu_session()
    session.set_job_batch_size("losses", 2)
    session.load_saved_model(str(tmp_path))
    session.launch()
    (found,) = asyncio.run(session.async_run("losses", image=IMAGES[:2], label=LABELS[:2]))
    session.close()
    np.testing.assert_allclose(found, expected[:2], rtol=1e-5)


def _with_devices(count: Any) -> None:
    option = flow.serving.SessionOption()
    option.device_tag, option.device_num = "cpu", count
    flow.serving.InferenceSession(option)


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: _with_devices(-2), "-2"),
        (lambda: _with_devices("2"), "'2'"),
        (lambda: cpu_session().set_job_batch_size("losses", "4"), "'4'"),
        (lambda: cpu_session().set_job_batch_size("losses", 0), "0"),
        (lambda: cpu_session().set_checkpoint_path(3), "3"),
    ],
)
def test_wrong_settings_are_refused_where_they_are_made(call: Any, found: str) -> None:
    with pytest.raises(FlowError, match=f"found: +{found}\n  allowed: ") as caught:
        call()
    assert __file__ in str(caught.value)


def test_versions(tmp_path: Path) -> None:
    save(tmp_path, 2)
    flow.clear_default_session()
    latest = save(tmp_path, 10)
    with launched(tmp_path) as session:
        (found,) = session.run("losses", image=IMAGES, label=LABELS)
    np.testing.assert_allclose(found, latest, rtol=1e-6)
    launched(tmp_path, model_version=2).close()
    with pytest.raises(CheckpointError, match=r"no version 3(.|\n)*10, 2"):
        launched(tmp_path, model_version=3)
    with pytest.raises(CheckpointError, match="a new version"):
        save(tmp_path, 2)


def test_wrong_use_of_builders(tmp_path: Path) -> None:
    names: dict[str, str] = {}
    job = classifier(names)
    builder = flow.saved_model.ModelBuilder(str(tmp_path))
    with pytest.raises(JobError, match="AddFunction"):
        builder.Save()
    graph = builder.AddFunction(job)
    with pytest.raises(JobError, match="no version"):
        builder.Save()
    with pytest.raises(JobError, match="another function"):
        builder.AddFunction(job)
    signature = graph.AddSignature("a")
    with pytest.raises(JobError, match="another signature"):
        graph.AddSignature("a")
    with pytest.raises(JobError, match="Input_images"):
        signature.Input("image", "nothing/out_0")
    with pytest.raises(JobError, match="out_0"):
        signature.Output("loss", names["images"])
    assert signature.AsDefault().OwnerGraphBuilder().OwnerModelBuilder() is builder
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "version", ["../../evil", -1, "abc", "1", 1.0, True, None, 2**63, 10**4000]
)
def test_versions_that_no_folder_can_have_are_refused(tmp_path: Path, version: Any) -> None:
    builder = flow.saved_model.ModelBuilder(str(tmp_path))
    with pytest.raises(JobError, match="an integer from 0") as caught:
        builder.Version(version)
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


def test_only_complete_versions_count(tmp_path: Path) -> None:
    """Not what a killed save of an older release, or another program, has left."""
    expected = save(tmp_path, np.int64(3))
    (tmp_path / "4" / "variables").mkdir(parents=True)
    for name in ("5", "007", "\N{ARABIC-INDIC DIGIT SIX}"):
        (tmp_path / name).mkdir()
    (tmp_path / "007" / "saved_model.json").write_text("{}")
    with launched(tmp_path) as session:
        (found,) = session.run("losses", image=IMAGES, label=LABELS)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(CheckpointError, match=r"no version 4(.|\n)*allowed: 3\n?$"):
        launched(tmp_path, model_version=4)


@pytest.mark.parametrize("found", ["folder", "file", "link"])
def test_a_folder_of_another_program_is_kept(tmp_path: Path, found: str) -> None:
    other = tmp_path / "models" / "1"
    other.parent.mkdir()
    if found == "folder":
        other.mkdir()
        (other / "mine").write_text("mine")
    elif found == "file":
        other.write_text("mine")
    else:
        other.symlink_to("nothing")
    with pytest.raises(CheckpointError, match="version 1, which already exists"):
        save(tmp_path / "models")
    assert os.listdir(other.parent) == ["1"]
    assert found != "folder" or (other / "mine").read_text() == "mine"


def test_a_folder_that_appears_during_a_save_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def late(source: Any, target: Any) -> None:
        if Path(target) == tmp_path / "1":
            Path(target).mkdir()
            (Path(target) / "mine").write_text("mine")
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    with pytest.raises(CheckpointError, match="saving the model"):
        save(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == [
        "1",
        "1/mine",
    ]


@pytest.mark.parametrize("directory", ["../../other/1/variables", "/etc", "", "a/../../2"])
def test_the_checkpoint_of_a_model_is_inside_of_it(tmp_path: Path, directory: str) -> None:
    save(tmp_path)
    file = tmp_path / "1" / "saved_model.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"checkpoint_dir": directory}))
    with pytest.raises(CheckpointError, match="in that of the version"):
        launched(tmp_path)


def test_models_need_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (flow.saved_model.ModelBuilder, cpu_session().load_saved_model):
        with pytest.raises(CheckpointError, match="a folder of the file system") as caught:
            call("s3://bucket/models?token=sesame")
        assert "sesame" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


SAVING = """
import os, sys
sys.path[:0] = {folders!r}
import test_saved_models as tests
from pathlib import Path
if sys.argv[2] == "killed":
    from flow_core.api.serving import model_file
    left = [int(sys.argv[3])]
    def step(real):
        def call(*arguments):
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return real(*arguments)
        return call
    for place, name in ((model_file.swap, "fresh_folder"), (model_file.swap, "sync_tree"),
                        (model_file.SavedModel, "write"), (os, "rename"), (os, "fsync")):
        setattr(place, name, step(getattr(place, name)))
try:
    tests.save(Path(sys.argv[1]), 2)
except tests.CheckpointError as error:
    sys.exit(f"lost: {{error.found}}")
"""


def saving(path: Path, *arguments: str) -> list[str]:
    folders = [str(Path(file).parent) for file in (__file__, processes.__file__)]
    code = SAVING.format(folders=folders)
    return [sys.executable, "-W", "ignore", "-c", code, str(path), *arguments]


@pytest.mark.slow
def test_of_two_processes_that_save_a_version_one_wins(tmp_path: Path) -> None:
    for trial in range(3):
        path = tmp_path / f"models{trial}"
        done = processes.run_together([(saving(path, "race"), {**os.environ})] * 2)
        assert sorted(one.returncode for one in done) == [0, 1]
        assert "version 2, which already exists" in "".join(one.stderr for one in done)
        assert os.listdir(path) == ["2"]
        launched(path).close()


@pytest.mark.slow
def test_a_killed_save_leaves_no_version(tmp_path: Path) -> None:
    save(tmp_path / "models", 1)
    complete = []
    for steps in range(0, 600, 25):
        status = processes.run(saving(tmp_path / "models", "killed", str(steps))).returncode
        assert status in (0, 9)
        launched(tmp_path / "models").close()
        complete.append((tmp_path / "models" / "2").exists())
        if complete[-1]:
            break
    assert not complete[0]
    assert complete[-1]
    assert sorted(os.listdir(tmp_path / "models")) == ["1", "2"]


def test_a_session_that_is_dropped_ends_its_threads(tmp_path: Path) -> None:
    save(tmp_path)
    before = {*threading.enumerate()}
    for _ in range(3):
        session = launched(tmp_path)
        session.run("losses", image=IMAGES, label=LABELS)
        asyncio.run(session.async_run("losses", image=IMAGES, label=LABELS))
    mine = {*threading.enumerate()} - before
    assert mine
    del session
    gc.collect()
    for thread in {*threading.enumerate()} - before:
        thread.join(60)
        assert not thread.is_alive(), thread


def test_a_train_job_is_refused(tmp_path: Path) -> None:
    @flow.global_function(type="train")
    def job() -> None:
        pass

    with pytest.raises(JobError, match="predict"):
        flow.saved_model.ModelBuilder(str(tmp_path)).AddFunction(job)


def test_wrong_use_of_sessions(tmp_path: Path) -> None:
    save(tmp_path)
    session = cpu_session()
    session.load_saved_model(str(tmp_path))
    with pytest.raises(JobError, match="launch"):
        session.run("losses", image=IMAGES, label=LABELS)
    session.launch()
    with pytest.raises(JobError, match="image, label"):
        session.run("losses", image=IMAGES)
    with pytest.raises(JobError, match="losses"):
        session.run("other", image=IMAGES)
    session.close()
    with pytest.raises(JobError, match="no close"):
        session.run("losses", image=IMAGES, label=LABELS)
    option = flow.serving.SessionOption()
    option.device_tag = "tpu"
    with pytest.raises(ConfigError, match="tpu"):
        flow.serving.InferenceSession(option)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda text: "", "no JSON"),
        (lambda text: "[" * 100_000, "no JSON"),
        (lambda text: '{"format": ' + "9" * 5000, "no JSON"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "another format"),
        (lambda text: json.dumps({"format": 1}), "no field 'name'"),
        (lambda text: text.replace('"version": 1', '"version": "1"'), r"\.version: the text '1'"),
        (lambda text: text.replace('"losses"', '"x"', 1), r"\.default_graph_name: the text 'x'"),
        (lambda text: text.replace('"variables"', '"../2/variables"'), r"\.checkpoint_dir: .*2"),
        (lambda text: text.replace('"variables"', '"/tmp"'), r"\.checkpoint_dir: .*/tmp"),
        (lambda text: text.replace('"nll": 0', '"nll": 1'), "'nll' for no result"),
        (lambda text: text.replace('"nll": 0', '"nll": -1'), "'nll' for no result"),
        (lambda text: text.replace('"label": "labels"', '"label": "x"'), r"inputs: the text 'x'"),
        (lambda text: text.replace('"default_signature": "c', '"default_signature": "d'), "dlass"),
        (lambda text: text.replace("conv2d(", "no_such_op("), "no_such_op"),
        (lambda text: text.replace("'axis': ", "'axis': (", 1), r"line \d+ of a graph"),
        (lambda text: text.replace("'axis': ", "'axis': 'x', '_': ", 1), "_"),
        (lambda text: text.replace("= input()", "= inputs()", 1), "Input_images"),
        (lambda text: text.replace("[4,2,5,5]", "[4,2,5]", 1), "loading the saved model"),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path: Path, wrong: Any, text: str) -> None:
    save(tmp_path)
    file = tmp_path / "1" / "saved_model.json"
    found = wrong(file.read_text())
    assert found != file.read_text()
    file.write_text(found)
    with pytest.raises(FlowError, match=text) as error:
        launched(tmp_path)
    assert f"(at {__file__}:" in str(error.value)
    assert str(file) in str(error.value) or "signature of job 'losses'" in str(error.value)


def test_mutated_graphs_raise_typed_errors(tmp_path: Path) -> None:
    save(tmp_path)
    file, rng = tmp_path / "1" / "saved_model.json", random.Random(3)
    content = json.loads(file.read_text())
    words = re.findall(r"\w+|\s+|.", content["graphs"]["losses"]["text"])
    others = ["-1", "0", "9" * 12, "1e309", *"'()[]{},:=\n\0", "float32", "int64", "matmul", "None"]
    outcomes = Counter[str]()
    for _ in range(60):
        made = list(words)
        for _ in range(rng.choice((1, 1, 2, 3))):
            made[rng.randrange(len(made))] = rng.choice((*others, *rng.sample(words, 5)))
        content["graphs"]["losses"]["text"] = "".join(made)
        file.write_text(json.dumps(content))
        error = refusal(tmp_path)
        assert error is None or (error.at is not None and str(file) in str(error))
        outcomes["read" if error is None else "refused"] += 1
    assert outcomes["refused"] > 30


def refusal(path: Path) -> FlowError | None:
    """The error of a load, or None."""
    try:
        cpu_session().load_saved_model(str(path))
    except FlowError as error:
        return error
    return None


def test_two_inputs_with_one_name_are_refused(tmp_path: Path) -> None:
    names: list[str] = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2,)), y: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        names.append(x.logical_blob_name)
        return x - 2 * y

    builder = flow.saved_model.ModelBuilder(str(tmp_path)).Version(1)
    builder.AddFunction(job).AddSignature("s").Input("y", names[0])
    builder.Save()
    with pytest.raises(CheckpointError, match="the name 'y' for two inputs"):
        launched(tmp_path)


def test_the_latest_version_is_the_last_complete_one(tmp_path: Path) -> None:
    save(tmp_path, 2)
    for name in ("3", "007", "\u0663", "9" * 200):
        (tmp_path / name).mkdir()
    launched(tmp_path).close()
    with pytest.raises(CheckpointError, match="no version 3"):
        launched(tmp_path, model_version=3)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes with names")
def test_a_pipe_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    os.mkfifo(tmp_path / "1" / "saved_model.json")
    with pytest.raises(CheckpointError, match="a pipe"):
        cpu_session().load_saved_model(str(tmp_path))
