"""The ``flow`` command with real plugins: what doctor says, how scripts run, sub-commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import oneflow as flow
from flow_core.base import planning
from flow_core.cli.app import cli

Site = Any


def test_doctor_lists_versions_plugins_and_devices(site: Site) -> None:
    out = site.install("good").flow("doctor", ONEFLOW_EMULATE_GPUS="2").stdout
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert any(line.startswith("flow-core ") for line in lines)
    assert "cubes flow-cubes 1.2.3 1.0 loaded 1 ops, 1 kernels, 1 devices" in lines
    assert "cubes flow-cubes available 3, made of cubes" in lines
    assert "gpu flow-core available 2, emulated on the CPU" in lines
    assert "ONEFLOW_EMULATE_GPUS 2" in lines
    assert "cubes 27 is a cube" in lines


def test_doctor_prints_the_same_as_json(site: Site) -> None:
    done = site.install("good", "raises_in_hook").flow("doctor", "--json")
    found = json.loads(done.stdout)
    plugins = {row["plugin"]: row for row in found["tables"]["Plugins"]}
    assert plugins["cubes"]["details"] == "1 ops, 1 kernels, 1 devices"
    assert plugins["raises-in-hook"]["state"] == "failed"
    assert [len(found["problems"]), len(found["tracebacks"]), done.returncode] == [1, 1, 1]


@pytest.mark.slow
def test_doctor_says_why_a_device_is_unavailable(site: Site) -> None:
    out = site.flow("doctor", FLOW_PLUGINS="").stdout
    assert "gpu   flow-cuda    unavailable" in out


@pytest.mark.slow
def test_doctor_shows_tracebacks_when_asked(site: Site) -> None:
    site.install("raises_in_hook")
    assert "Traceback" not in site.flow("doctor").stdout
    assert "Traceback" in site.flow("doctor", "--traceback").stdout


@pytest.mark.slow
def test_doctor_goes_on_when_strict(site: Site) -> None:
    done = site.install("raises_in_hook").flow("doctor", FLOW_PLUGIN_STRICT="1")
    assert done.returncode == 1
    assert "no cube today" in done.stdout
    assert "Devices" in done.stdout


@pytest.mark.slow
def test_doctor_survives_what_plugins_say(site: Site) -> None:
    done = site.install("bad_command").flow("doctor")
    assert done.returncode == 1
    assert "flow_doctor failed: ValueError: nothing good to say" in done.stdout
    assert "registering command 'doctor' of plugin 'bad-command'" in done.stdout
    assert "flow-core has a command of that name" in done.stdout


@pytest.mark.slow
def test_doctor_names_another_owner_of_oneflow(site: Site) -> None:
    # a folder without __init__.py hides nothing; since 3.12 only files that exist count
    (site.folder / "oneflow").mkdir()
    (site.folder / "oneflow" / "legacy.py").write_text("")
    site.write_metadata("oneflow", "0.3.4", {}, ["oneflow/legacy.py"])
    done = site.flow("doctor", FLOW_PLUGINS="")
    assert done.returncode == 1
    assert "distribution oneflow 0.3.4 also has a top-level 'oneflow'" in done.stdout


@pytest.mark.slow
def test_doctor_names_a_foreign_oneflow_on_the_path(site: Site) -> None:
    (site.folder / "oneflow.py").write_text("")
    site.interpreter = ""  # one that has not imported the package
    done = site.flow("doctor", FLOW_PLUGINS="")
    assert f"import oneflow finds {site.folder / 'oneflow.py'}" in done.stdout


@pytest.mark.slow
def test_doctor_lists_function_config() -> None:
    out = CliRunner().invoke(cli, ["doctor", "--config"]).stdout
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines()[2:] if line}
    assert rows["concurrency_width"] == "yes"
    assert rows["use_tensorrt"] == "no"


@pytest.mark.slow
def test_sub_commands_of_plugins(site: Site) -> None:
    site.install("good")
    assert site.flow("cube", "3").stdout == "27\n"
    assert "The cube of NUMBER" in site.flow("--help").stdout
    unknown = site.flow("cubes", "3")
    assert unknown.returncode == 2
    assert "No such command" in unknown.stderr


SCRIPT = """
import os, sys, helper
print(__name__, sys.argv[1:], os.environ.get("ONEFLOW_EMULATE_GPUS"), sys.path[0], __file__)
sys.exit(5)
"""


def test_run_is_what_python_does(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "helper.py").write_text("")
    script = folder / "program.py"
    script.write_text(SCRIPT)
    done = site.flow("run", "--emulate-gpus", "2", str(script), "--lr", "0.1", "--help")
    assert done.returncode == 5
    assert done.stdout == f"__main__ ['--lr', '0.1', '--help'] 2 {folder} {script}\n"
    plain = site.flow("run", str(script))
    assert plain.stdout == f"__main__ [] None {folder} {script}\n"


def test_run_without_a_script() -> None:
    done = CliRunner().invoke(cli, ["run", "no_such_script.py"])
    assert done.exit_code == 2
    assert "no_such_script.py" in done.stderr


SCRIPTS = {
    "program.py": "number = 3\n",
    "several.py": """
import oneflow as flow

config = flow.function_config()

@flow.global_function(function_config=config)
def one():
    return flow.constant(1, dtype=flow.float)

@flow.global_function()
def other():
    return flow.constant(2, dtype=flow.float)

again = other
""",
    "notes.txt": "no program",
    "wrong.py": "x = 0\n1 / x\n",
    "half.py": "def job(:\n",
    "exits.py": "import sys\nsys.exit('no data')\n",
}


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of scripts; restores what the command changes for a script that it imports."""
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    with monkeypatch.context() as patch:
        patch.setattr(planning, "_active", [])
        patch.setattr(sys, "argv", [*sys.argv])
        patch.setattr(sys, "path", [*sys.path])
        yield tmp_path
    flow.clear_default_session()


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("program.py", ["no job name", "script.py:job", "under `if __name__`"]),
        ("nothing.py", ["no such file", "script.py:job"]),
        ("nothing.py:job", ["no such file"]),
        ("", ["a folder"]),
        ("program.py:trian_job", ["nothing of that name", "no job at its top level"]),
        ("program.py:number", ["found:   3, which is not a job function"]),
        ("several.py", ["no job name", "several.py:one or ", "several.py:other"]),
        ("several.py:ohter", ["did you mean other?"]),
        ("notes.txt", ["not a Python file"]),
        ("wrong.py", ["wrong.py:2", "found:   ZeroDivisionError", "next:    python "]),
        ("half.py", ["half.py:1", "found:   SyntaxError", "next:    python "]),
        ("exits.py", ["exits.py:2", "ends with status no data", "arguments of the script follow"]),
    ],
)
def test_plan_of_nothing(scripts: Path, target: str, parts: list[str]) -> None:
    done = CliRunner().invoke(cli, ["plan", str(scripts / target)])
    assert done.exit_code == 1
    assert "flow_core" not in done.stderr
    for part in parts:
        assert part in done.stderr


def test_a_script_that_ends_with_success_is_planned(scripts: Path) -> None:
    (scripts / "ends.py").write_text(SCRIPTS["several.py"] + "raise SystemExit\n")
    done = CliRunner().invoke(cli, ["plan", f"{scripts / 'ends.py'}:one"])
    assert done.exit_code == 0
    assert "'one'" in done.output


FAILS = """
import oneflow as flow
import oneflow.typing as tp

@flow.global_function()
def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    raise OSError("no table")
"""


@pytest.mark.parametrize(
    "command",
    [["plan"], ["plan", "--simulate"], ["fit", "--memory", "1GiB"], ["verify"],
     ["verify", "--matrix"], ["verify", "--precision", "bfloat16"], ["verify", "--waits"]],
    ids=" ".join,
)  # fmt: skip
def test_a_job_that_raises_is_named(
    scripts: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFLOW_EMULATE_GPUS", "2")  # else the matrix sets it
    (scripts / "fails.py").write_text(FAILS)
    done = CliRunner().invoke(cli, [*command, str(scripts / "fails.py")])
    assert done.exit_code == 1
    assert "defining job 'job'" in done.stderr
    assert "fails.py:7" in done.stderr
    assert "OSError: no table" in done.stderr


@pytest.mark.parametrize(
    "options",
    ["plan --advise --simulate", "plan --check b.toml --full", "plan --json --html p.html",
     "plan --check b.toml --update --markdown", "plan --measure --diff x.json",
     "verify --matrix --waits", "verify --resume 2:1 --precision float16",
     "verify --devices 2 --precision float16"],
)  # fmt: skip
def test_options_that_exclude_each_other(scripts: Path, options: str) -> None:
    done = CliRunner().invoke(cli, [*options.split(), f"{scripts}/several.py:one"])
    assert done.exit_code == 2
    assert "exclude each other" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [("--waits --html p.html", "--html belongs to --matrix"),
     ("--matrix --tolerance 0.1", "--tolerance belongs to --precision"),
     ("--precision float16 --tolerance nan", "nan is not a finite number"),
     ("--precision float64", "'float64' is not one of"),
     ("--matrix --devices 1", "1 is not in the range"),
     ("--matrix --seed -1", "-1 is not in the range"),
     ("--matrix --steps 0", "0 is not in the range")],
)  # fmt: skip
def test_options_of_verify_that_are_refused(scripts: Path, options: str, message: str) -> None:
    done = CliRunner().invoke(cli, ["verify", *options.split(), f"{scripts}/several.py:one"])
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_file_that_cannot_be_written_is_named(scripts: Path) -> None:
    target = f"{scripts}/several.py:one"
    done = CliRunner().invoke(cli, ["plan", "--check", "/proc/b.toml", "--update", target])
    assert done.exit_code == 1
    assert "running `flow plan`" in done.stderr
    assert "'/proc/b.toml'" in done.stderr


def test_a_page_where_there_is_no_folder(scripts: Path) -> None:
    done = CliRunner().invoke(cli, ["plan", "--html", "no/page.html", f"{scripts}/several.py:one"])
    assert done.exit_code == 2
    assert "the folder no does not exist" in done.stderr


PROGRAM = """
import sys
import oneflow as flow
import oneflow.typing as tp
import helper

@flow.global_function()
def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    with flow.scope.placement("gpu", "0:0"):
        return flow.math.exp(x)

if __name__ == "__main__":
    sys.exit("a script that is planned must not run")
"""


def test_plan_shows_what_a_job_becomes(site: Site) -> None:
    (site.folder / "helper.py").write_text("")
    script = site.folder / "program.py"
    script.write_text(PROGRAM)
    done = site.flow("plan", "--full", "--emulate-gpus", "1", f"{script}:job", FLOW_PLUGINS=None)
    assert done.returncode == 0, done.stderr
    for part in (
        "exp",
        "gpu[0:0]",
        "float32[4,3]",
        f"{script}:10",
        "memory of gpu:0:0",
        "dead_code",
    ):
        assert part in done.stdout
    only = site.flow("plan", "--emulate-gpus", "1", str(script), FLOW_PLUGINS=None)
    title = "predict job 'job' at "
    assert only.stdout.startswith(title)
    assert done.stdout.startswith(title)
    near = site.flow("plan", f"{script}:jobb", FLOW_PLUGINS=None)
    assert near.returncode == 1
    assert "did you mean job?" in near.stderr


@pytest.mark.slow
def test_a_script_is_planned_with_its_arguments(site: Site) -> None:
    (site.folder / "helper.py").write_text("")
    script = site.folder / "program.py"
    script.write_text(PROGRAM.replace("(4, 3)", "(int(sys.argv[2]), 3)"))
    options = {"FLOW_PLUGINS": None, "ONEFLOW_EMULATE_GPUS": "1"}
    done = site.flow("plan", "--full", f"{script}:job", "--", "--rows", "7", **options)
    assert done.returncode == 0, done.stderr
    assert "float32[7,3]" in done.stdout


@pytest.mark.slow
def test_plan_fits_one_screen_and_says_what_runs(site: Site) -> None:
    (site.folder / "helper.py").write_text("")
    script = site.folder / "program.py"
    script.write_text(PROGRAM)
    options = {"FLOW_PLUGINS": None, "ONEFLOW_EMULATE_GPUS": "1"}
    predicted = site.flow("plan", str(script), **options)
    measured = site.flow("plan", "--measure", str(script), **options)
    assert predicted.returncode == measured.returncode == 0, measured.stderr
    assert not predicted.stderr  # the progress line is for terminals
    assert "No step was run" in predicted.stdout
    assert "ran on random inputs and separate variables" in measured.stdout
    lines = predicted.stdout.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100


DIVIDING = """
import numpy as np
import oneflow as flow
import oneflow.typing as tp

@flow.global_function()
def inverse(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return flow.math.log(flow.math.abs(x))

for number in (1, 0):
    print(inverse(np.full(4, number, np.float32)))
"""


def test_debug_names_the_op_that_is_not_finite(site: Site) -> None:
    script = site.folder / "program.py"
    script.write_text(DIVIDING)
    done = site.flow("debug", "--nan", str(script), FLOW_PLUGINS="flow-typing")
    assert done.returncode == 1
    for part in ("log", "step 1 of job 'inverse'", f"{script}:8", "from 0 to 0", "replay"):
        assert part in done.stderr
    allowed = site.flow(
        "debug", "--nan", "--allow-infinity", str(script), FLOW_PLUGINS="flow-typing"
    )
    assert allowed.returncode == 0, allowed.stderr
    none = site.flow("debug", str(script), FLOW_PLUGINS="flow-typing")
    assert none.returncode == 2
    assert "add --nan" in none.stderr


@pytest.mark.slow
def test_run_writes_a_trace(site: Site) -> None:
    script, trace = site.folder / "program.py", site.folder / "trace.json"
    script.write_text(DIVIDING)
    done = site.flow("run", "--trace", str(trace), str(script), FLOW_PLUGINS="flow-typing")
    assert done.returncode == 0, done.stderr
    assert str(trace) in done.stderr
    names = [e["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {"step 0 of inverse", "step 1 of inverse"} < set(names)


TRAINING = """
import oneflow as flow
import oneflow.typing as tp

@flow.global_function("train")
def train(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    flow.summary.create_summary_writer(FOLDER)
    loss = flow.math.reduce_mean(x * flow.get_variable("w", shape=(3,)))
    flow.summary.scalar(loss, flow.constant(0, flow.int64, (1,)), "loss")
    flow.optimizer.SGD(0.1).minimize(loss)
    return loss

train([[0.0] * 3] * 4)
flow.checkpoint.save(FOLDER)
"""


@pytest.mark.slow
@pytest.mark.representative("command0", "the other commands use the same function")
@pytest.mark.parametrize("command", [("plan",), ("plan", "--html"), ("verify", "--devices", "2")])
def test_scripts_run_no_step_and_write_nothing(site: Site, command: tuple[str, ...]) -> None:
    script, page = site.folder / "program.py", site.folder / "page.html"
    script.write_text(f"FOLDER = {str(site.folder / 'written')!r}\n{TRAINING}")
    before = {*site.folder.iterdir()}
    files = (str(page),) if command[-1] == "--html" else ()
    settings = {"FLOW_PLUGINS": "flow-typing", "PYTHONDONTWRITEBYTECODE": "1"}
    done = site.flow(*command, *files, f"{script}:train", **settings)
    assert done.returncode == 0, done.stderr
    assert {*site.folder.iterdir()} - before == ({page} if files else set())


@pytest.mark.slow
def test_plans_are_saved_and_compared(site: Site) -> None:
    (site.folder / "helper.py").write_text("")
    script = site.folder / "program.py"
    script.write_text(PROGRAM)
    saved = site.folder / "plan.json"
    options = {"FLOW_PLUGINS": None, "ONEFLOW_EMULATE_GPUS": "1"}
    saved.write_text(site.flow("plan", "--json", f"{script}:job", **options).stdout)
    same = site.flow("plan", "--diff", str(saved), f"{script}:job", **options)
    assert same.returncode == 0, same.stderr
    assert "tasks" in same.stdout
    assert "differ" not in same.stdout
    script.write_text(PROGRAM.replace("exp(x)", "exp(flow.math.sin(x))"))
    other = site.flow("plan", "--diff", str(saved), f"{script}:job", **options).stdout
    assert any("exp  exp gpu[0:0] B  fused(sin exp) gpu[0:0] B" in x for x in other.splitlines())
    broken = site.folder / "broken.json"
    broken.write_text("{}")
    done = site.flow("plan", str(broken))
    assert done.returncode == 1
    assert "flow plan script.py:job --json" in done.stderr


def test_without_click_it_says_what_to_install(site: Site) -> None:
    site.interpreter = ""  # one that has not imported the package
    (site.folder / "click.py").write_text("raise ModuleNotFoundError('x', name='click')\n")
    done = site.flow("doctor")
    assert done.returncode == 1
    assert "packages/flow-core[cli]'" in done.stderr
    assert "Traceback" not in done.stderr
