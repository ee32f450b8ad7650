"""Commands that run a user's script provide the same environment as ``python SCRIPT ARGS``."""

import sys
from pathlib import Path

import processes
import pytest

from flow_core.base.programs import can_run, interpreter_options, status_of

PROBE = """
import sys
import oneflow as flow
import oneflow.typing as tp
from dataclasses import dataclass, fields

@dataclass
class Point:
    x: int

@flow.global_function()
def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x * 2.0

with open(sys.argv[1], "w") as file:
    print(sys.argv, sys.path, fields(Point)[0].type, sys.flags, sys._xoptions, file=file)
"""


@pytest.mark.representative("run", "plan runs scripts by the same function")
@pytest.mark.parametrize("command", ["run", "plan"])
def test_script_environment_matches_python(tmp_path: Path, command: str) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('of the working directory')\n")
    script = tmp_path / "elsewhere" / "probe.py"
    script.parent.mkdir()
    script.write_text(PROBE)
    python = [sys.executable, "-qX", "mine=1"]
    flow = str(Path(sys.executable).with_name("flow"))
    seen = []
    for start in ([], [flow, command]):
        file = tmp_path / "seen"
        argv = [*python, *start, str(script), str(file), "--x"]
        if command == "plan" and start:
            argv.insert(-2, "--")
        processes.run(argv, check=True, cwd=tmp_path)
        seen.append(file.read_text())
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("train.py -O", ""),
        ("-m train -O", ""),
        ("-OOm train", "-OO"),
        ("-Ic code -O", "-I"),
        ("-W c -X m -E x.py", "-W c -X m -E"),
        ("-xOWerror x.py", "-OWerror"),
        ("-x x.py", ""),
        ("--check-hash-based-pycs always -B x.py", "--check-hash-based-pycs always -B"),
        ("- -O", ""),
    ],
)
def test_interpreter_options_are_extracted(line: str, options: str) -> None:
    assert interpreter_options(line.split()) == options.split()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SystemExit(), 0),
        (SystemExit(None), 0),
        (SystemExit(True), 1),
        (SystemExit(3), 3),
        (SystemExit(-1), 255),
        (SystemExit(256), 0),
        (SystemExit(2**40 + 7), 7),
        (SystemExit(2**70), 255),
        (SystemExit("text"), 1),
        (SystemExit(3.0), 1),
        (ValueError(), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_statuses(error: BaseException, status: int) -> None:
    assert status_of(error) == status


def test_runnable_scripts_and_folders(tmp_path: Path) -> None:
    script = tmp_path / "__main__.py"
    assert not can_run(str(script))
    assert not can_run(str(tmp_path))
    script.touch()
    assert can_run(str(script))
    assert can_run(str(tmp_path))
