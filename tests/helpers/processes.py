"""Start programs from tests; no program outlives the test that started it.

Each program has a process group of its own.  Its output is read while it runs, and the whole group
is killed on every path out of a test: at the end, after an error, and when a limit has passed.
Limits grow with the load of the machine: a program that takes 10 s alone may take minutes beside
others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

LIMIT = 120.0
"""Seconds that a program may take on an idle machine."""

Completed = subprocess.CompletedProcess
DEVNULL, STDOUT, PIPE = subprocess.DEVNULL, subprocess.STDOUT, subprocess.PIPE
CalledProcessError, TimeoutExpired = subprocess.CalledProcessError, subprocess.TimeoutExpired
_PAUSE, _PATIENCE = 1.0, 10.0


def scaled(seconds: float) -> float:
    """Return a limit for this machine as busy as it is now.

    Tests run in two processes per core, so the limit is never below twice the time alone.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return seconds * max(2.0, load / (os.cpu_count() or 1))


class Program(subprocess.Popen[Any]):
    """A running program; a ``with`` block ends it together with all processes of its group.

    Args:
        command: the program and its arguments.
        text: whether output is text.
        options: those of `subprocess.Popen`; output goes to pipes unless they say otherwise.
    """

    def __init__(
        self, command: Sequence[str | os.PathLike[str]], *, text: bool = True, **options: Any
    ) -> None:
        pipes = {"stdout": PIPE, "stderr": PIPE}
        super().__init__(command, text=text, start_new_session=True, **(pipes | options))

    def communicate(self, input: Any = None, timeout: float | None = LIMIT) -> tuple[Any, Any]:
        """Read all output until the program ends.

        Raises:
            TimeoutExpired: the program takes longer than its limit, scaled by the load.  Its
                group has been killed; the error and its message have the output.
        """
        started, seconds = time.monotonic(), LIMIT if timeout is None else timeout
        while True:
            try:
                return super().communicate(input, timeout=_PAUSE)
            except TimeoutExpired:
                input = None
                if time.monotonic() - started > scaled(seconds):
                    break
        self.end()
        output, errors = super().communicate()
        late = TimeoutExpired(self.args, scaled(seconds), output, errors)
        late.add_note(f"{output}\n{errors}")
        raise late

    def status(self, timeout: float = LIMIT) -> int:
        """Wait for the end, with the limit of `communicate`; the output is not read."""
        started = time.monotonic()
        while True:
            try:
                return self.wait(_PAUSE)
            except TimeoutExpired:
                if time.monotonic() - started > scaled(timeout):
                    self.end()
                    raise

    def end(self) -> None:
        """Kill the process group, which may be larger than the program, and wait for its end."""
        if not hasattr(os, "killpg"):
            self.kill()
            self.wait()
            return
        until = time.monotonic() + scaled(_PATIENCE)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < until:
                os.killpg(self.pid, signal.SIGKILL)  # raises once no member is left
                self.wait()
                with contextlib.suppress(ChildProcessError):  # members that this process adopted
                    os.waitpid(-self.pid, os.WNOHANG)
                time.sleep(0.002)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()
        super().__exit__(kind, value, traceback)


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    input: Any = None,
    timeout: float = LIMIT,
    check: bool = False,
    **options: Any,
) -> Completed[Any]:
    """Run a program to its end and return its status and output.

    Args:
        command: the program and its arguments.
        input: the text of its standard input, which is otherwise empty.
        timeout: seconds that it may take on an idle machine.
        check: whether a status other than 0 is an error.
        options: see `Program`.

    Raises:
        CalledProcessError: with ``check``, the program failed; the message has its errors.
        TimeoutExpired: it took longer than its limit, scaled by the load.
    """
    options.setdefault("stdin", DEVNULL if input is None else PIPE)
    with Program(command, **options) as program:
        output, errors = program.communicate(input, timeout)
    done = Completed(command, program.returncode, output, errors)
    if check and done.returncode:
        error = CalledProcessError(done.returncode, command, output, errors)
        error.add_note(f"{output}\n{errors}")
        raise error
    return done


def run_together(
    commands: Iterable[tuple[Sequence[str | os.PathLike[str]], dict[str, str]]],
    *,
    timeout: float = LIMIT,
    **options: Any,
) -> list[Completed[Any]]:
    """Run programs, each with an environment, at the same time; return their results in order."""
    with contextlib.ExitStack() as stack:
        programs = [
            stack.enter_context(Program(command, env=env, **options)) for command, env in commands
        ]
        with ThreadPoolExecutor(len(programs)) as pool:
            waits = [pool.submit(program.communicate, None, timeout) for program in programs]
            outputs = [wait.result() for wait in waits]
    return [
        Completed(program.args, program.returncode, *texts)
        for program, texts in zip(programs, outputs, strict=True)
    ]
