"""Processes that leave nobody behind.

On Linux a process can be told to die with its parent, and a supervisor to adopt the orphans of its
children, so that it finds all of them whatever they do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import psutil

from flow_dist.shm.cleanup import files_of, remove

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """The system kills this process when its parent dies (Linux)."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    """Descendants whose parent dies become children of this process (Linux)."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def start(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a program in a session of its own, so that no terminal's signal passes us by."""
    stdin = subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None
    return subprocess.Popen(command, env=env, stdin=stdin, start_new_session=True)


def end(process: subprocess.Popen[bytes], grace: float) -> None:
    """Ends a program and all that came of it, with the memory that they shared on this host.

    Args:
        process: what `start` gave.
        grace: seconds that it has for ending its own children, on other hosts, too.
    """
    left = set().union(*[files_of(below.pid) for below in _descendants()])
    if grace:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    end_descendants()
    process.wait()
    remove(left)


def end_descendants(patience: float = 10.0) -> None:
    """Kills everybody below this process, until there is nobody."""
    until = time.monotonic() + patience
    while (found := list(_descendants())) and time.monotonic() < until:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=0.2)
        _reap()


def _descendants() -> Iterator[psutil.Process]:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _reap() -> None:
    """Takes note of the deaths of adopted processes."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
