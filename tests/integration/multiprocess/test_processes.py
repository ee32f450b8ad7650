"""The same script on several processes: the same bits, the same plan, one checkpoint."""

import os
import re
import sys
from functools import cache
from pathlib import Path

import processes
import pytest
from launching import python, run_script

import oneflow as flow
import oneflow.typing as tp
from flow_onednn.library import Library, state

pytestmark = pytest.mark.usefixtures("forked_programs")

SCRIPTS = Path(__file__).parents[2] / "helpers"
FORMS = SCRIPTS / "run_forms.py"


def printed(done: processes.Completed[str]) -> str:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@cache
def on_one(script: Path, *arguments: str) -> str:
    """What one process prints."""
    env = {**os.environ, "ONEFLOW_EMULATE_GPUS": "4"}
    return printed(processes.run(python(script, *arguments), env=env, timeout=600))


def on_many(count: int, script: Path, *arguments: str, **env: str) -> str:
    """What the first of several processes prints; the others print nothing."""
    done = run_script(count, script, *arguments, timeout=600, ONEFLOW_EMULATE_GPUS="4", **env)
    return printed(done)


def test_two_processes_train_as_one_does() -> None:
    """Four devices on two processes, in stages that are data parallel, with a sharded optimizer."""
    form = "mlp:zero-pipeline"
    assert on_many(2, FORMS, form) == on_one(FORMS, form)


@pytest.mark.slow
def test_processes_gather_weights_again() -> None:
    forms = "mlp:zero-again", "transformer:zero-again", "mlp:zero-again-pipeline"
    one = on_one(FORMS, *forms)
    assert [on_many(count, FORMS, *forms) for count in (2, 4)] == [one, one]


@pytest.mark.slow
def test_huge_gradients_are_clipped_alike() -> None:
    script = SCRIPTS / "programs" / "run_clipping.py"
    assert len(on_one(script).splitlines()) == 4
    assert on_many(2, script) == on_one(script)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_devices_of_several_types_train_as_in_one_process(count: int) -> None:
    script = SCRIPTS / "programs" / "run_mixed_devices.py"
    assert on_one(script).startswith("True True\n")
    assert on_many(count, script) == on_one(script)


@pytest.mark.slow
def test_tensors_of_changing_shape_go_between_processes() -> None:
    script = SCRIPTS / "programs" / "run_ragged.py"
    assert on_many(2, script) == on_one(script)


@pytest.mark.slow
def test_each_process_reads_its_part_of_every_batch(tmp_path: Path) -> None:
    """Records stay on the rank that reads them; the error of a move says how to avoid it."""
    script = SCRIPTS / "programs" / "run_loaders.py"
    assert on_one(script, "write", str(tmp_path)) == ""
    one = on_one(script, "read", str(tmp_path)).splitlines()
    two = on_many(2, script, "read", str(tmp_path)).splitlines()
    assert len(one) == 16
    assert two[:15] == one[:15]
    assert re.fullmatch(r"binding exchange 'OFRecordReader/box1' \(.*run_loaders.py:\d+\)", two[15])
    assert "found:   record[6] that is sent between ranks [0, 1]" in two[16]


HURRIED = f"""
import os, sys
sys.path.insert(0, {str(SCRIPTS)!r})
import run_forms

rank = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
usual = run_forms.Patient.config


def config(self):
    found = usual(self)
    found.sbp_selector_seconds(1e-9 if rank == 1 else 60.0)
    return found


run_forms.Patient.config = config
run_forms.main(["transformer:model"])
"""


@pytest.mark.exhaustive
def test_a_search_that_ends_too_soon_in_one_process_decides_nothing(tmp_path: Path) -> None:
    """All processes take the layouts that the first one finds, where greedy's are others."""
    script = tmp_path / "hurried.py"
    script.write_text(HURRIED)
    assert on_many(2, script) == on_one(script)


def test_ops_read_what_their_own_device_has() -> None:
    """Also where a library changes layouts: only exchanges cross devices."""
    flow.clear_default_session()

    @flow.global_function()
    def look(x: tp.Numpy.Placeholder((4, 1, 8, 8))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            y = flow.layers.conv2d(x, 8, 3, padding="SAME", name="conv")
            return flow.nn.max_pool2d(y, 2, 2, "VALID", data_format="NCHW")

    plan = look.plan()
    for task in (*plan.prologue, *plan.tasks):
        devices = {plan.buffers[i].device for i in (*task.inputs, *task.outputs)}
        assert task.type == "boxing" or devices == {task.device}, task.op
    flow.clear_default_session()


REPRESENTATIVE = {
    "mlp": ("mlp",),
    "lenet": ("lenet:data", "lenet:columns", "lenet:grid", "lenet:mirrored"),
    "transformer": tuple(
        f"transformer:{form}"
        for form in ("model", "hybrid", "pipeline-data", "zero-owners", "zero-again-pipeline")
    ),
}
"""All forms of the smallest network, and of the others those that divide what it does not have."""


@pytest.mark.parametrize(
    ("network", "threads"),
    [
        *(pytest.param(name, "1", marks=pytest.mark.slow) for name in REPRESENTATIVE),
        *(pytest.param(name, "3", marks=pytest.mark.exhaustive) for name in REPRESENTATIVE),
    ],
)
def test_four_processes_train_as_one_does(network: str, threads: str) -> None:
    """In the representative forms; with three threads, in all forms."""
    forms = REPRESENTATIVE[network] if threads == "1" else (network,)
    lines = on_one(FORMS, *forms)
    assert len(lines.splitlines()) == (13 if forms == (network,) else len(forms))
    assert on_many(4, FORMS, *forms, FLOW_STREAM_THREADS=threads) == lines


SCRIPT = """
import os, sys
import numpy as np
import flow_core.base.errors
import oneflow as flow
import oneflow.typing as tp

flow.env.machine([{"addr": "10.0.0.1"}, {"addr": "10.0.0.2"}])
flow.env.ctrl_port(50000)
flow.env.init()
rank = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
folder, task = sys.argv[1:]
rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])


@flow.global_function(type="train")
def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    with flow.scope.placement("cpu", ["0:0-1", "1:0-1"]):
        w = flow.get_variable("w", (3, 2), initializer=flow.random_normal_initializer())
        y = flow.matmul(x, w)
        flow.optimizer.SGD(rate, momentum=0.9).minimize(y)
    return y


@flow.global_function()
def ask(x: tp.Numpy.Placeholder((4, 3))) -> tp.Callback[tp.Numpy]:
    with flow.scope.placement("cpu", "1:1"):
        w = flow.get_variable("w", (3, 2), initializer=flow.random_normal_initializer())
        return flow.matmul(x, w)


@flow.global_function()
def differs(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    with flow.scope.placement("cpu", ["0:0", "1:0"]):
        return flow.math.relu(x) if rank != 1 else flow.math.sigmoid(x)


@flow.global_function()
def begins(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    with flow.scope.placement("cpu", ["0:0", "1:0"]):
        start = flow.ones_initializer() if rank else flow.zeros_initializer()
        return flow.matmul(x, flow.get_variable("of its own", (3, 2), initializer=start))


x = np.arange(12, dtype="f4").reshape(4, 3)
if task == "differ":
    differs(x)
elif task == "begin":
    begins(x)
elif task == "another":
    (ask if rank else job)(x)
elif task == "machines":
    flow.env.machine(["a", "b"] if rank else ["a", "b", "c", "d"])
    differs(x)
elif task == "nested":
    ask(x)(lambda y: job(x))
    flow.sync_default_session()
elif task == "save":
    losses = [float(job(x).sum()) for _ in range(5)]
    flow.checkpoint.save(folder)
    print(losses[-1], float(job(x).sum()))
elif task == "some":
    job(x)
    values = {"w2": flow.get_all_variables()["w"], "rank": np.full((2,), rank, "f4")}
    flow.checkpoint.save(folder, values)
    assert os.path.exists(os.path.join(folder, "snapshot_done")), "saved for all processes"
    flow.checkpoint.save(folder, {**values, "rank": values["rank"] + 7}, overwrite=True)
    found = {name: value.numpy() for name, value in flow.checkpoint.get(folder).items()}
    assert (found["w2"] == values["w2"].numpy()).all() and found["rank"].tolist() == [7, 7]
    series = os.path.join(folder, "series")
    for step in range(3):
        manager = flow.train.SimpleCheckPointManager(series)
        manager.initialize_or_restore()
        assert (values["w2"].numpy() == found["w2"]).all(), "what the first one saved"
        assert len(manager.list_checkpoints()) == 1
        job(x)
    print("well")
elif task == "export":
    job(x)
    flow.checkpoint.save(folder)
    flow.onnx.export(ask, folder, folder + ".onnx")
    assert os.path.getsize(folder + ".onnx") > 100, "written for all processes"
    try:
        flow.onnx.export(ask, folder, os.path.join(folder, "nowhere", "model.onnx"))
    except flow_core.base.errors.FlowError as error:
        print(type(error).__name__, "nowhere" in str(error), "on rank 0" in str(error))
elif task == "names":
    job(x)
    flow.checkpoint.save(folder, {"of all": x, **({} if rank else {"of one": x})})
elif task == "again":
    job(x)
    flow.checkpoint.save(folder)
else:
    job(x)
    flow.train.CheckPoint().load(folder)
    seen = []
    ask(x)(lambda y: seen.append(y.sum()))
    flow.sync_default_session()
    assert len(seen) == 1, "every process has its callback"
    print(float(job(x).sum()), flow.current_machine_id())
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("processes") / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.slow
def test_checkpoints_of_two_processes_load_in_one(script: Path, tmp_path: Path) -> None:
    saved = on_many(2, script, str(tmp_path / "model"), "save").split()
    loaded = on_one(script, str(tmp_path / "model"), "load").split()
    assert loaded == [saved[1], "0"]


@pytest.mark.slow
def test_checkpoints_of_one_process_load_in_four(script: Path, tmp_path: Path) -> None:
    saved = on_one(script, str(tmp_path / "model"), "save").split()
    done = run_script(4, script, str(tmp_path / "model"), "load", FLOW_DIST_OUTPUT="all")
    found = sorted(printed(done).split())
    assert found == sorted([saved[1]] * 4 + ["0", "0", "1", "1"])


def test_plans_that_differ_are_refused_everywhere(script: Path, tmp_path: Path) -> None:
    done = run_script(2, script, str(tmp_path), "differ")
    assert done.returncode != 0
    assert done.stderr.count("after pass 'trace', rank 0 has\n    relu = relu(") >= 1
    assert "and rank 1 has\n    sigmoid = sigmoid(" in done.stderr


PROCESSORS = """
import os, sys
if "1" in (os.environ.get(f"{name}_RANK") for name in ("PMI", "OMPI_COMM_WORLD")):
    os.environ["ONEDNN_MAX_CPU_ISA"] = "SSE41"
import numpy as np
import oneflow as flow
import oneflow.typing as tp

@flow.global_function(type="train")
def job(x: tp.Numpy.Placeholder((16, 1, 28, 28))) -> tp.Numpy:
    with flow.scope.placement("cpu", "0:0-1"):
        init = flow.random_normal_initializer(stddev=0.1)
        h = flow.layers.conv2d(x, 8, 5, padding="SAME", kernel_initializer=init, name="conv")
        loss = flow.layers.dense(flow.reshape(h, (16, -1)), 10, kernel_initializer=init, name="fc")
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.01])
        flow.optimizer.SGD(schedule, momentum=0).minimize(loss)
    return loss

print(np.isfinite(job(np.ones((16, 1, 28, 28), np.float32))).all())
"""


@pytest.mark.slow
def test_hosts_with_different_processors_have_one_plan_where_they_are_limited_alike(
    tmp_path: Path,
) -> None:
    """As `older` processors: the second process has SSE4, and so the first one must."""
    found = state()
    if not isinstance(found, Library) or found.isa in ("SSE4.1", "no vector unit"):
        pytest.skip("no oneDNN on a processor with more than SSE4")
    (tmp_path / "script.py").write_text(PROCESSORS)
    program, everything = tmp_path / "script.py", {"FLOW_DISABLE_PLUGINS": ""}
    different = run_script(2, program, ONEDNN_MAX_CPU_ISA="DEFAULT", **everything)
    assert different.returncode != 0
    assert "limit all to the oldest instruction set (ONEDNN_MAX_CPU_ISA)" in different.stderr
    alike = run_script(2, program, ONEDNN_MAX_CPU_ISA="SSE41", **everything)
    assert printed(alike) == "True\n"


@pytest.mark.representative("machines", "a setting, which no graph has")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "first", "second"),
    [
        ("begin", "after pass 'trace', rank 0 has", "'initializer': ('constant', 1.0)"),
        ("machines", "rank 0 has\n    machines of the program: 4", "machines of the program: 2"),
    ],
)
def test_what_no_plan_shows_is_compared_too(
    script: Path, tmp_path: Path, task: str, first: str, second: str
) -> None:
    done = run_script(2, script, str(tmp_path), task)
    assert done.returncode != 0
    assert first in done.stderr
    assert re.search(rf"and rank 1 has\n    .*{re.escape(second)}", done.stderr)


@pytest.mark.slow
def test_processes_that_compile_other_jobs_name_both(script: Path, tmp_path: Path) -> None:
    done = run_script(2, script, str(tmp_path), "another")
    assert done.returncode != 0
    assert re.search(
        r"ProcessesDifferError: .*\n.*rank 0 in .*job 'job'.*rank 1 in .*job 'ask'", done.stderr
    )


@pytest.mark.slow
def test_a_save_that_fails_fails_everywhere(script: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "other").touch()
    done = run_script(2, script, str(tmp_path / "model"), "again")
    assert done.returncode != 0
    assert "a folder that is not a checkpoint" in done.stderr  # a stopped rank prints nothing


@pytest.mark.slow
def test_one_of_two_processes_saves_chosen_variables(script: Path, tmp_path: Path) -> None:
    """And what a series of checkpoints begins with is the same for both."""
    done = run_script(2, script, str(tmp_path / "model"), "some", FLOW_DIST_OUTPUT="all")
    assert printed(done).split() == ["well", "well"]


@pytest.mark.slow
def test_the_first_of_two_processes_exports_for_both(script: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    done = run_script(2, script, str(tmp_path / "model"), "export", FLOW_DIST_OUTPUT="all")
    told = ["CheckpointError True False", "JobError True True"]
    assert sorted(printed(done).splitlines()) == told
    model = onnx.load(tmp_path / "model.onnx")
    assert [weight.name for weight in model.graph.initializer] == ["w"]
    assert [value.name for value in model.graph.input] == ["x"]


@pytest.mark.slow
def test_names_that_one_process_has_not_are_refused(script: Path, tmp_path: Path) -> None:
    done = run_script(2, script, str(tmp_path / "model"), "names")
    assert done.returncode != 0
    assert "'of one' in process 0 and not in 1" in done.stderr
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_callbacks_that_call_jobs_are_refused(script: Path, tmp_path: Path) -> None:
    done = run_script(2, script, str(tmp_path), "nested")
    assert done.returncode != 0
    assert "calling job 'job' inside a callback" in done.stderr


TWO_MACHINES = """
import os
import tempfile
import unittest

import numpy as np

import oneflow as flow
import oneflow.typing as tp


def model():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        with flow.scope.placement("gpu", ["0:0", "1:0"]):
            w = flow.get_variable("w", (3, 2), initializer=flow.random_normal_initializer())
            return flow.matmul(x, w)
    return job


def of_the_second():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        with flow.scope.placement("cpu", "1:0"):
            w = flow.get_variable("w", (4, 3), initializer=flow.random_normal_initializer())
            return x + 0 * w
    return job


class TestTwoMachines(flow.unittest.TestCase):
    @flow.unittest.skip_unless_1n1d()
    def test_one(self):
        raise AssertionError("there are two machines")

    @flow.unittest.skip_unless_2n1d()
    def test_two(self):
        flow.deprecated.init_worker(scp_binary=True, use_uuid=True)  # not with 1:init
        flow.env.init()
        flow.config.gpu_device_num(1)
        self.assertEqual(flow.env.current_resource()["machine_num"], 2)
        self.assertEqual(flow.env.current_resource()["env.data_port"], 50001)
        self.assertEqual(flow.current_machine_id(), int(os.environ.get("PMI_RANK", 0)))
        x = np.random.default_rng().random((4, 3), np.float32)
        with tempfile.TemporaryDirectory() as folder:
            job = model()
            before = job(x)
            flow.checkpoint.save(folder)
            flow.clear_default_session()
            job = model()
            found = flow.checkpoint.get(folder)
            flow.load_variables(found)
            np.testing.assert_array_equal(job(x), before)
            w = flow.checkpoint.get(os.path.join(folder, "w"))
            self.assertEqual((w.shape, w.dtype), ((3, 2), flow.float32))
            np.testing.assert_allclose(x @ w.numpy(), before, 1e-5)
        for _ in range(3):
            flow.clear_default_session()
            x = np.random.default_rng().random((4, 3), np.float32)
            np.testing.assert_array_equal(of_the_second()(x), x)


if __name__ == "__main__":
    unittest.main()
"""


@pytest.mark.representative(r"\[2\]", "the others differ in the number of processes")
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_oneflow_s_tests_of_two_machines(count: int, tmp_path: Path) -> None:
    """Where one process is both machines there are no workers, which `init_worker` says."""
    script = tmp_path / "two_machines.py"
    text = "\n".join(line for line in TWO_MACHINES.split("\n") if f"{count}:init" not in line)
    script.write_text(text)
    machines = {
        "ONEFLOW_TEST_NODE_LIST": "10.0.0.1,10.0.0.2",
        "ONEFLOW_TEST_DEVICE_NUM": "1",
        "ONEFLOW_TEST_CTRL_PORT": "50000",
        "ONEFLOW_TEST_DATA_PORT": "50001",
        "ONEFLOW_EMULATE_GPUS": "1",
    }
    command = [sys.executable, "-c", "from flow_dist.cli import main; main()", "run"]
    command += ["-n", str(count), str(script)]
    done = processes.run(command, env={**os.environ, **machines})
    assert done.returncode == 0, done.stderr
    assert "OK (skipped=1)" in done.stderr


@pytest.mark.parametrize("micro_batches", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_all_processes_name_the_element_that_is_not_finite(micro_batches: int) -> None:
    """In the whole tensor, with the rank that computed it and the replay of the step."""
    script, argument = SCRIPTS / "programs" / "run_nan.py", str(micro_batches)
    found = on_many(2, script, argument, FLOW_CHECK_FINITE="all")
    assert re.search(r"^log\S*@3 1 gpu:0:3 checking log 'log\S*@3' in step 1", found)
    assert "on gpu:0:3 of rank 1, by numpy.log (at " in found
    assert "run_nan.py:23)" in found
    assert "1 NaN of 2 numbers of the part [6:8, 0:1], the first at [6, 0]" in found
    assert "from -" in found
    assert "replay of the step: the same numbers at the same op" in found
    assert "variables as before: True" in found
    part = "2 NaN of 4 numbers of the part [6:8, 0:2], the first at [6, 0]"
    assert re.search(rf"fed array 'x\S*@3': {re.escape(part)}", found)


@pytest.mark.representative(r"\[0-4\]", "MPI alone, and a process per device")
@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("shared", ["0", "1"])
def test_processes_that_compile_their_own_devices_share_variables(count: int, shared: str) -> None:
    """Between jobs on some of the devices, whose values are read, assigned, saved and loaded."""
    script = SCRIPTS / "programs" / "run_own_parts.py"
    lines = on_one(script)
    assert len(lines.splitlines()) == 16
    assert on_many(count, script, FLOW_DIST_SHARED_MEMORY=shared) == lines
