"""Programs that tests start: their output, their limits, and that none outlives its test."""

from __future__ import annotations

import os
import sys
import time

import processes
import pytest

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
    until = time.monotonic() + processes.scaled(10)
    while alive(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(child)


@POSIX
def test_an_error_in_the_block_ends_the_program() -> None:
    with pytest.raises(ValueError, match="mine"), processes.Program(python("input()")) as program:
        raise ValueError("mine")
    assert program.returncode is not None


def test_limits_grow_with_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for load, limit in ((0.1, 20), (4, 20), (10, 50), (40, 200)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0, 0), raising=False)
        assert processes.scaled(10) == limit
