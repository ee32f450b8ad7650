"""Programs that tests start: their output, their limits, and that none outlives its test."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import processes
import pytest
from suite import preloaded

POSIX = pytest.mark.skipif(os.name == "nt", reason="process groups are POSIX")
GRANDCHILD = """
import os, sys, time
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(1000)
time.sleep(float(sys.argv[1]))
"""


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def alive(pid: int) -> bool:
    """Whether a process exists that is not merely waiting to be reaped."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(pid: int) -> bool:
    """Whether a process ends within ten seconds of an idle machine."""
    until = time.monotonic() + processes.scaled(10)
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not alive(pid)


def test_output_status_and_input() -> None:
    code = "import sys; print(sys.stdin.read()); print('no', file=sys.stderr); sys.exit(3)"
    done = processes.run(python(code), input="yes")
    assert (done.returncode, done.stdout, done.stderr) == (3, "yes\n", "no\n")
    with pytest.raises(processes.CalledProcessError) as error:
        processes.run(python(code), check=True)
    assert "no" in error.value.__notes__[0]


def test_programs_that_wait_for_each_other_with_full_pipes() -> None:
    code = "import sys; print('x' * 10**6)"
    done = processes.run_together([(python(code), dict(os.environ))] * 3)
    assert [(one.returncode, len(one.stdout)) for one in done] == [(0, 10**6 + 1)] * 3


@POSIX
def test_a_limit_kills_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "scaled", lambda seconds: seconds)
    with pytest.raises(processes.TimeoutExpired) as error:
        processes.run(python(GRANDCHILD, "1000"), timeout=2)
    assert not alive(int(error.value.output))


@POSIX
def test_a_program_that_ends_leaves_no_child() -> None:
    with processes.Program(python(GRANDCHILD, "0")) as program:
        child = int(program.stdout.readline())
        assert program.status() == 0
        assert alive(child)
    assert ends(child)


@POSIX
def test_an_error_in_the_block_ends_the_program() -> None:
    with pytest.raises(ValueError, match="mine"), processes.Program(python("input()")) as program:
        raise ValueError("mine")
    assert program.returncode is not None


def test_a_fork_has_what_a_program_has(interpreter: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import sys; NUMBER = 3; print(__name__, sys.argv, sys.path[0])"
    )
    (tmp_path / "program.py").write_text(
        "import os, sys, own\n"
        "print(__name__, sys.argv, os.getcwd(), os.environ['WORD'], sorted(os.environ))\n"
        "print(sys.stdin.read(), sys.dont_write_bytecode)\n"
        "print('no', file=sys.stderr)\n"
        "sys.exit(own.NUMBER)\n"
    )
    done = [
        processes.run(command, cwd=tmp_path, env={"WORD": "w"} | more, input="yes")
        for more in ({}, {"PYTHONDONTWRITEBYTECODE": "1"})
        for command in (
            preloaded.command(interpreter, "program.py", "-x"),
            [sys.executable, "program.py", "-x"],
        )
    ]
    assert {one.returncode for one in done} == {3}
    assert {one.stderr for one in done} == {"no\n"}
    printed = [one.stdout.replace("'LC_CTYPE', ", "") for one in done]
    assert printed[::2] == printed[1::2]
    code = "import sys; print(__name__, sys.argv, sys.path[0])"
    done = [
        processes.run([*start, *words], cwd=tmp_path)
        for words in (("-c", code, "-x"), ("-m", "own", "-x"))
        for start in (preloaded.command(interpreter), [sys.executable])
    ]
    assert {(one.returncode, one.stderr) for one in done} == {(0, "")}
    assert done[0].stdout == done[1].stdout
    assert done[2].stdout == done[3].stdout


@pytest.mark.skipif(sys.platform != "linux", reason="programs start anew there")
def test_a_fork_ends_with_the_program_that_waits(interpreter: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(GRANDCHILD)
    command = preloaded.command(interpreter, "program.py", "1000")
    with processes.Program(command, cwd=tmp_path) as program:
        child = int(program.stdout.readline())
    assert ends(child)


STARTER = """
import os
from suite import preloaded
interpreter = preloaded.Interpreter()
interpreter.__enter__()
print(interpreter.pid, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="programs start anew there")
def test_an_interpreter_ends_with_the_process_that_started_it() -> None:
    env = os.environ | {"PYTHONPATH": str(Path(processes.__file__).parent)}
    pid = int(processes.run(python(STARTER), env=env, check=True).stdout)
    assert ends(pid)


def test_limits_grow_with_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for load, limit in ((0.1, 20), (4, 20), (10, 50), (40, 200)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0, 0), raising=False)
        assert processes.scaled(10) == limit
