"""Start and terminate process trees without leaving orphans.

On Linux, a process can be killed when its parent dies, and a supervisor can adopt orphaned
descendants and so find all of them.
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

from flow_dist.shm.cleanup import mpi_files, remove

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (on Linux)."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies (on Linux)."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def start(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a program in its own session, so that terminal signals reach only this process."""
    stdin = subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None
    return subprocess.Popen(command, env=env, stdin=stdin, start_new_session=True)


def end(process: subprocess.Popen[bytes], grace: float) -> None:
    """Terminate a program and its descendants, and unlink the MPI files of this host's ranks.

    Args:
        grace: seconds in which the process can terminate its own children, also on other hosts.
    """
    left = set().union(*[mpi_files(below.pid) for below in _descendants()])
    if grace:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    end_descendants()
    process.wait()
    remove(left)


def end_descendants(patience: float = 10.0) -> None:
    """Kill all descendants of this process until none are left."""
    until = time.monotonic() + patience
    while (descendants := list(_descendants())) and time.monotonic() < until:
        for process in descendants:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(descendants, timeout=0.2)
        _reap()


def _descendants() -> Iterator[psutil.Process]:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _reap() -> None:
    """Reap adopted processes that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
