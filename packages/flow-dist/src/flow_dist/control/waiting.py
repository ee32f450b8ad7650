"""Waiting for other processes: patiently, visibly, and so that somebody can end it."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from flow_core.base.thread_budget import Budget, fair_share

POLITE = 2000
"""Looks with the core offered to others in between; after that it sleeps."""

NAP = 5e-5
"""Seconds of sleep between two looks."""

EAGER, CROWDED = 64, 0
"""Looks without a break, where each process has a core, and where they share them."""

FAR = 200
"""Looks without a break for a process with another home, where processes share cores."""

RETURN = 256
"""Waits with the core offered to others after which a process goes back to its home."""


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
        home: where processes share cores, the one that this process keeps to.
        near: the ranks of the other processes with that home.
        waits: how often it has had to offer its core.
    """

    at_once: int = EAGER
    home: int | None = None
    near: frozenset[int] = frozenset()
    waits: int = 0

    def looks_for(self, rank: int, waited: Collection[int]) -> int:
        """How often it looks what a process has done before it offers its core.

        Args:
            rank: of a process of this host.
            waited: all that this process waits for there.

        Once it has all that near ones give they have nothing to do, most probably; then those
        with other homes come as soon as they can, and no sooner if this core is offered.
        """
        if self.home is None or rank in self.near or not self.near.issubset(waited):
            return self.at_once
        return FAR

    def count(self) -> None:
        """Counts a wait in which it offers its core; now and then it goes home."""
        self.waits += 1
        if self.waits % RETURN == 0 and self.home is not None:
            _go_home(self.home)


LOOKS: list[Callable[[], object]] = []
"""What a process calls now and then while it waits; they raise what ends the wait."""

OFTEN = 32
"""Looks with the core offered in between, after which these are called."""

VERDICT = Verdict()
PATIENCE = Patience()


def tune_waits_to_host(rank: int, gather: Callable[[bytes], Sequence[bytes]]) -> None:
    """Offers the core sooner where the processes of this host are more than its cores.

    Each then has a home among the cores it may run on, as evenly as can be: the system may leave
    one core to one of them and another one to three, which all wait for each other.

    Args:
        rank: this process's.
        gather: gives what all processes say, in the order of the ranks.
    """
    host = platform.node()
    told = [json.loads(text) for text in gather(json.dumps([host, sorted(_cores())]).encode())]
    here = {other: cores for other, (name, cores) in enumerate(told) if name == host}
    if len(here) <= len(set().union(*here.values())):
        PATIENCE.at_once, PATIENCE.home, PATIENCE.near = EAGER, None, frozenset()
        return
    homes = {other: cores[i % len(cores)] for i, (other, cores) in enumerate(here.items())}
    near = [other for other, home in homes.items() if home == homes[rank] and other != rank]
    PATIENCE.at_once, PATIENCE.home, PATIENCE.near = CROWDED, homes[rank], frozenset(near)


def _go_home(home: int) -> None:
    """Moves this thread to a core; it may leave it again, when the system finds that better."""
    allowed = os.sched_getaffinity(0)
    if home in allowed and len(allowed) > 1:
        os.sched_setaffinity(0, {home})
        os.sched_setaffinity(0, allowed)


def share_of_host(gather: Callable[[bytes], Sequence[bytes]]) -> Budget:
    """The cores that each process may keep busy: as many as the one with the fewest has.

    The same in all of them, as their plans must be.  So are the cores of a host, the fewest that
    the processes of one have together.

    Args:
        gather: gives what all processes say, in the order of the ranks.
    """
    mine = json.dumps([platform.node(), sorted(_cores())]).encode()
    told = [json.loads(text) for text in gather(mine)]
    shares = []
    for rank, (host, cores) in enumerate(told):
        here = [theirs for i, (other, theirs) in enumerate(told) if other == host and i != rank]
        shares.append(fair_share(cores, here))
    least = min(shares, key=lambda share: share.count)
    pool = min(share.pool for share in shares)
    return replace(least, pool=pool, pools=len({host for host, _ in told}))


def _cores() -> Iterable[int]:
    """The cores that this process may run on, as far as the system tells."""
    asked = getattr(os, "sched_getaffinity", None)
    return asked(0) if asked else range(os.cpu_count() or 1)


def look_around() -> None:
    """Calls all of `LOOKS`.  Raises what they raise."""
    for look in LOOKS:
        look()


def wait(done: Callable[[], bool]) -> None:
    """Waits until ``done`` says so.

    Raises:
        BaseException: the supervisor's verdict, or what one of `LOOKS` raises.
    """
    for _ in range(PATIENCE.at_once):
        if done():
            return
    looks = 0
    while not done():
        if VERDICT.error is not None:
            raise VERDICT.error
        if looks % OFTEN == 0:
            look_around()
        looks += 1
        os.sched_yield() if looks < POLITE else time.sleep(NAP)
