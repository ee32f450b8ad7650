"""Waiting for other processes: patiently, visibly, and so that somebody can end it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from flow_core.errors import FlowError

AT_ONCE, POLITE = 64, 2000
"""Looks one after the other, then looks with the core offered to others; after that it sleeps."""

NAP = 5e-5
"""Seconds of sleep between two looks."""


class PeerError(FlowError):
    """Another process failed, or the wait for it was given up."""


@dataclass(slots=True)
class Whereabouts:
    """What this process waits for, for a watchdog in another thread to read.

    Attributes:
        what: the exchange (the name of its op) or the meeting that it waits for; "" for nothing.
        peers: the ranks that take part in it.
        since: when the wait began, by `time.monotonic`.
        waits: how many waits have begun so far: a number that stays the same means no progress.
        verdict: set by a watchdog to end the wait: the error to raise in the thread that waits.
    """

    what: str = ""
    peers: tuple[int, ...] = ()
    since: float = 0.0
    waits: int = 0
    verdict: BaseException | None = None

    def wait(self, done: Callable[[], bool], what: str, peers: tuple[int, ...]) -> None:
        """Waits until ``done`` says so.

        Raises:
            BaseException: what a watchdog decided.
        """
        for _ in range(AT_ONCE):
            if done():
                return
        self._wait_long(done, what, peers)

    def _wait_long(self, done: Callable[[], bool], what: str, peers: tuple[int, ...]) -> None:
        self.what, self.peers, self.since = what, peers, time.monotonic()
        self.waits += 1
        looks = 0
        while not done():
            if self.verdict is not None:
                raise self.verdict
            looks += 1
            os.sched_yield() if looks < POLITE else time.sleep(NAP)
        self.what = ""


WHEREABOUTS = Whereabouts()
"""Of exchanges: one waits at a time, in the order of the plan."""

MEETINGS = Whereabouts()
"""Of what processes agree on outside of steps: plans, variables, checkpoints."""
