"""The guard: a parent process for every rank, which outlives the rank.

MPI's launchers terminate all ranks as soon as one dies, which hides which rank died first and where
the others are.  So the launcher starts and watches the guard, and the rank is a child of the guard:
when the rank fails, the supervisor has time to collect reports.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

from flow_dist.launch.process_group import die_with_parent

DEATH_DELAY, FAILURE_DELAY = 30.0, 2.0
"""Seconds for which the death of a rank, or its failure status, is hidden from the launcher.

The rank itself reports its status to the supervisor, which terminates the job long before these
delays end.
"""

_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_FORWARDED = (*_ENDS, signal.SIGUSR1, signal.SIGUSR2)


class Guard:
    """The parent of a rank.

    Args:
        rank: process id of the rank.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._ending = False
        for number in _FORWARDED:
            signal.signal(number, self._forward)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self._rank:
            os.kill(self._rank, number)
        if number in _ENDS:
            self._ending = True

    def wait(self) -> int:
        """Wait for the end of the rank and return its status; delay the return after a failure."""
        _, status = os.waitpid(self._rank, 0)
        self._rank = 0
        code = os.waitstatus_to_exitcode(status)
        if code < 0 and not self._ending:
            _report(-code)
        until = time.monotonic() + (DEATH_DELAY if code < 0 else FAILURE_DELAY)
        while code and not self._ending and time.monotonic() < until:
            time.sleep(0.1)
        return code if code >= 0 else 128 - code


_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
_MEANINGS: dict[int, str] = {
    signal.SIGKILL: "sent by a user, or by the system when out of memory",
    signal.SIGTERM: "sent by a user or a scheduler",
    **dict.fromkeys(_CRASHES, "a crash in native code"),
}


def _report(number: int) -> None:
    """Print which signal killed the rank, as the supervisor only notices a lost connection."""
    from flow_dist.bootstrap.membership import Membership

    known_signal = next((known for known in signal.Signals if known == number), None)
    name = f"signal {number}" if known_signal is None else known_signal.name
    meaning = f": {_MEANINGS[known_signal]}" if known_signal in _MEANINGS else ""
    sys.stderr.write(f"rank {Membership.from_env().rank} was killed by {name}{meaning}\n")
    sys.stderr.flush()


def guard() -> None:
    """Fork: return in the child, which becomes the rank; the parent exits with its status."""
    die_with_parent()
    rank = os.fork()
    if rank:
        os._exit(Guard(rank).wait())
