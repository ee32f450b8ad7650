"""Abort NCCL communicators after a failure, as devices would otherwise wait forever.

A thread polls for asynchronous errors, for the verdict on the job, and for processes whose step
differs from that of this process.  All communicators are aborted before the process ends.
"""

from __future__ import annotations

import threading

from flow_core.base.errors import FlowError
from flow_dist.control import termination
from flow_dist.control.client import JobStoppedError
from flow_dist.control.waiting import VERDICT, run_poll_hooks
from flow_dist.nccl.communicators import Communicators

POLL = 0.25
"""Seconds between two polls."""

ABORT_SECONDS = 2.0
"""Maximum duration of the abort before the process is terminated."""


class Guard:
    """A monitor of the communicators of a process.

    Args:
        poll: seconds between two polls.
    """

    def __init__(self, groups: Communicators, poll: float = POLL) -> None:
        self._groups, self._poll = groups, poll
        self._over = threading.Event()
        termination.BEFORE.append(self._end)
        self._thread = threading.Thread(target=self._run, name="flow-nccl-guard", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._poll):
            self.check()

    def check(self) -> None:
        try:
            run_poll_hooks()
        except FlowError as found:  # a process that runs another step never enters the exchange
            VERDICT.error = VERDICT.error or found
            self._groups.abort(found)
        if VERDICT.error is not None:
            self._groups.abort(_stopped(str(VERDICT.error)))
        self._groups.poll()
        error = next(filter(None, (c.failure for c in self._groups.communicators)), None)
        if error is not None and VERDICT.error is None:
            VERDICT.error = error  # ends waits for other processes

    def _end(self, message: str) -> None:
        """Abort in a separate thread, because termination must not wait for a device."""
        error = _stopped(message)
        thread = threading.Thread(target=self._groups.abort, args=(error,), daemon=True)
        thread.start()
        thread.join(ABORT_SECONDS)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        if self._end in termination.BEFORE:
            termination.BEFORE.remove(self._end)


def _stopped(message: str) -> FlowError:
    return JobStoppedError("exchanging data between GPUs", found=f"the job was stopped: {message}")
