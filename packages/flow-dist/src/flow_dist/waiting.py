"""Waiting for other processes: patiently, visibly, and so that somebody can end it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

AT_ONCE, POLITE = 64, 2000
"""Looks one after the other, then looks with the core offered to others; after that it sleeps."""

NAP = 5e-5
"""Seconds of sleep between two looks."""


@dataclass(slots=True)
class Verdict:
    """Ends the waits of this process.

    Attributes:
        error: set by a supervisor in another thread; raised in the threads that wait.
    """

    error: BaseException | None = None


VERDICT = Verdict()


def wait(done: Callable[[], bool]) -> None:
    """Waits until ``done`` says so.

    Raises:
        BaseException: the supervisor's verdict.
    """
    for _ in range(AT_ONCE):
        if done():
            return
    looks = 0
    while not done():
        if VERDICT.error is not None:
            raise VERDICT.error
        looks += 1
        os.sched_yield() if looks < POLITE else time.sleep(NAP)
