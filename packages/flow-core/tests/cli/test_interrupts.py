"""Ctrl-C ends each command that imports a script without a traceback, with its own status."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import processes
import pytest
from click.testing import CliRunner

from flow_core.base import planning
from flow_core.base.formats.recorded_steps import RecordedStep, Recording, write_recording
from flow_core.cli import main
from flow_core.cli.app import cli

FLOW = Path(sys.executable).with_name("flow")
COMMANDS = (
    "fit --memory 1MiB", "plan", "plan --advise", "plan --check budgets.toml --update",
    "plan --simulate", "plan --html page.html", "verify", "verify --matrix",
    "verify --precision float16", "verify --resume 2:1", "verify --waits", "replay steps.zip",
)  # fmt: skip


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a script; what commands change in this process is restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "_active", [])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    write_recording(Path("steps.zip"), Recording(1, (RecordedStep("job", 0, (), ()),), {0: {}}))
    return tmp_path / "script.py"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_interrupted_has_the_status_of_a_shell(
    command: str, script: Path
) -> None:
    script.write_text("raise KeyboardInterrupt\n")
    done = CliRunner().invoke(cli, [*command.split(), str(script)])
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "Aborted!\n")


def test_a_command_is_interrupted_by_a_signal(script: Path) -> None:
    script.write_text("import threading\nprint('ready', flush=True)\nthreading.Event().wait()\n")
    with processes.Program([FLOW, "verify", "--matrix", script]) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate()
    assert (program.returncode, errors) == (130, "Aborted!\n")


def test_a_command_that_is_interrupted_during_its_imports_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Loading:
        @property
        def cli(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "flow_core.cli.app", Loading())
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err == ""
