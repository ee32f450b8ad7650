"""Ends NCCL's work when something has failed, since nobody else can: it waits on the device.

A thread looks for errors of what was queued, for the verdict of a supervisor, and for processes
that run another step than this one.  When the job
is stopped, communicators are given up first, so that no device is left waiting.
"""

from __future__ import annotations

import threading

from flow_core.base.errors import FlowError
from flow_dist.control import termination
from flow_dist.control.client import JobStoppedError
from flow_dist.control.waiting import VERDICT, look_around
from flow_dist.nccl.communicators import Groups

POLL = 0.25
"""Seconds between two looks."""

LAST = 2.0
"""Seconds that giving up may take when the process is about to end."""


class Guard:
    """Watches over the communicators of a process.

    Args:
        groups: the communicators.
        poll: seconds between two looks.
    """

    def __init__(self, groups: Groups, poll: float = POLL) -> None:
        self._groups, self._poll = groups, poll
        self._over = threading.Event()
        termination.BEFORE.append(self._end)
        self._thread = threading.Thread(target=self._run, name="flow-nccl-guard", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._poll):
            self.look()

    def look(self) -> None:
        """One look."""
        try:
            look_around()
        except FlowError as found:  # a process that runs something else never comes
            VERDICT.error = VERDICT.error or found
            self._groups.abort(found)
        if VERDICT.error is not None:
            self._groups.abort(_stopped(str(VERDICT.error)))
        self._groups.poll()
        error = next((c.error for c in self._groups.cliques if c.error is not None), None)
        if error is not None and VERDICT.error is None:
            VERDICT.error = error  # whoever waits for other processes shall not wait in vain

    def _end(self, message: str) -> None:
        """Gives up in a thread of its own: the end of the process must not wait for a device."""
        error = _stopped(message)
        thread = threading.Thread(target=self._groups.abort, args=(error,), daemon=True)
        thread.start()
        thread.join(LAST)

    def close(self) -> None:
        """Stops watching."""
        self._over.set()
        self._thread.join()
        if self._end in termination.BEFORE:
            termination.BEFORE.remove(self._end)


def _stopped(message: str) -> FlowError:
    return JobStoppedError("exchanging data between GPUs", found=f"the job was stopped: {message}")
