"""Waiting for other processes: patiently, visibly, and so that somebody can end it."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flow_core.cores import Budget, fair_share

POLITE = 2000
"""Looks with the core offered to others in between; after that it sleeps."""

NAP = 5e-5
"""Seconds of sleep between two looks."""

EAGER, CROWDED = 64, 0
"""Looks without a break, where each process has a core, and where they share them."""


@dataclass(slots=True)
class Verdict:
    """Ends the waits of this process.

    Attributes:
        error: set by a supervisor in another thread; raised in the threads that wait.
    """

    error: BaseException | None = None


@dataclass(slots=True)
class Patience:
    """How a process waits.

    Attributes:
        at_once: how often it looks before it offers its core to others.
    """

    at_once: int = EAGER


VERDICT = Verdict()
PATIENCE = Patience()


def suit_to_host(gather: Callable[[bytes], Sequence[bytes]]) -> None:
    """Offers the core sooner where the processes of this host are more than its cores.

    Args:
        gather: gives what all processes say, in the order of the ranks.
    """
    host, cores = platform.node(), sorted(_cores())
    told = [json.loads(text) for text in gather(json.dumps([host, cores]).encode())]
    here = [set(theirs) for other, theirs in told if other == host]
    PATIENCE.at_once = EAGER if len(here) <= len(set().union(*here)) else CROWDED


def share_of_host(gather: Callable[[bytes], Sequence[bytes]]) -> Budget:
    """The cores that each process may keep busy: as many as the one with the fewest has.

    So that all of them make the same plan.

    Args:
        gather: gives what all processes say, in the order of the ranks.
    """
    mine = json.dumps([platform.node(), sorted(_cores())]).encode()
    told = [json.loads(text) for text in gather(mine)]
    shares = []
    for rank, (host, cores) in enumerate(told):
        here = [theirs for i, (other, theirs) in enumerate(told) if other == host and i != rank]
        shares.append(fair_share(cores, here))
    return min(shares, key=lambda share: share.count)


def _cores() -> Iterable[int]:
    """The cores that this process may run on, as far as the system tells."""
    asked = getattr(os, "sched_getaffinity", None)
    return asked(0) if asked else range(os.cpu_count() or 1)


def wait(done: Callable[[], bool]) -> None:
    """Waits until ``done`` says so.

    Raises:
        BaseException: the supervisor's verdict.
    """
    for _ in range(PATIENCE.at_once):
        if done():
            return
    looks = 0
    while not done():
        if VERDICT.error is not None:
            raise VERDICT.error
        looks += 1
        os.sched_yield() if looks < POLITE else time.sleep(NAP)
