"""The process in front of a rank, which outlives it.

MPI's launchers end all ranks in the moment in which they see one die.  Then nobody can tell who
died first, nor ask the others where they are.  So what the launcher has started, and watches, is
this process; the rank is its child, and when that fails the supervisor has time to look around.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

from flow_dist.launch.process_group import die_with_parent

KILLED, FAILED = 30.0, 2.0
"""Seconds after which the launcher may know, too, of a death and of a status; the supervisor, which
has been told of a status by the rank itself, ends everything long before."""

_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_PASSED_ON = (*_ENDS, signal.SIGUSR1, signal.SIGUSR2)


class Guard:
    """The process in front of a rank.

    Args:
        rank: the rank's process.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._ending = False
        for number in _PASSED_ON:
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self._rank:
            os.kill(self._rank, number)
        if number in _ENDS:
            self._ending = True

    def wait(self) -> int:
        """The status of the rank, at its end; a bad one is kept back for a while."""
        _, status = os.waitpid(self._rank, 0)
        self._rank = 0
        code = os.waitstatus_to_exitcode(status)
        if code < 0 and not self._ending:
            _tell(-code)
        until = time.monotonic() + (KILLED if code < 0 else FAILED)
        while code and not self._ending and time.monotonic() < until:
            time.sleep(0.1)
        return code if code >= 0 else 128 - code


_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
_MEANINGS: dict[int, str] = {
    signal.SIGKILL: "by somebody, or by the system for want of memory",
    signal.SIGTERM: "somebody, or a scheduler, has asked it to end",
    **dict.fromkeys(_CRASHES, "a crash in native code"),
}


def _tell(number: int) -> None:
    """Says by which signal the rank died: the supervisor sees no more than that it is gone."""
    from flow_dist.bootstrap.membership import Membership

    found = next((known for known in signal.Signals if known == number), None)
    name = f"signal {number}" if found is None else found.name
    meaning = f": {_MEANINGS[found]}" if found in _MEANINGS else ""
    sys.stderr.write(f"rank {Membership.from_env().rank} was ended by {name}{meaning}\n")
    sys.stderr.flush()


def guard() -> None:
    """Return in a child, which is to be the rank; the process itself ends with its status."""
    die_with_parent()
    rank = os.fork()
    if rank:
        os._exit(Guard(rank).wait())
