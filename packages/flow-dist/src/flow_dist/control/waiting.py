"""Wait for other processes: spin, yield the core, then sleep; stop when the job has failed."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from flow_core.base.thread_budget import Budget, fair_share

YIELDS_BEFORE_SLEEP = 2000
"""Number of polls separated by `sched_yield`, before polls separated by sleeps."""

SLEEP = 5e-5
"""Seconds of sleep between two polls."""

SPINS, SPINS_OVERSUBSCRIBED = 64, 0
"""Numbers of polls without a yield: if every process on the host has its own core, and if not."""

SPINS_OTHER_CORE = 200
"""Number of polls without a yield for a process with another home core, on oversubscribed hosts."""

YIELDS_PER_MIGRATION = 256
"""Number of waits with yields after which a process migrates back to its home core."""


@dataclass(slots=True)
class Verdict:
    """The error that ends all waits of this process.

    Attributes:
        error: the error, set by the thread of the control client or of a guard, and raised in
            waiting threads.
    """

    error: BaseException | None = None


@dataclass(slots=True)
class WaitPolicy:
    """The rules by which a process waits."""

    spins: int = SPINS  # number of polls before the process yields its core
    home: int | None = None  # home core of the process on an oversubscribed host, else None
    same_core: frozenset[int] = frozenset()  # the ranks of the other processes with this home core
    yields: int = 0  # number of waits in which the process has yielded

    def spins_for(self, rank: int, awaited: Collection[int]) -> int:
        """Return the number of polls for a rank before yielding the core.

        Args:
            rank: a rank of this host.
            awaited: all ranks of this host that the process waits for.

        If all processes that share this core are awaited, they have probably finished by the time
        when only ranks on other cores are missing, and yielding this core does not speed those up.
        """
        if self.home is None or rank in self.same_core or not self.same_core.issubset(awaited):
            return self.spins
        return SPINS_OTHER_CORE

    def count_yield(self) -> None:
        """Count a wait that yields; migrate to the home core from time to time."""
        self.yields += 1
        if self.yields % YIELDS_PER_MIGRATION == 0 and self.home is not None:
            _migrate(self.home)


POLL_HOOKS: list[Callable[[], object]] = []
"""Functions called from time to time during waits; an exception that one raises ends the wait."""

YIELDS_PER_HOOK = 32
"""Number of polls with yields or sleeps after which the hooks are called."""

VERDICT = Verdict()
WAIT_POLICY = WaitPolicy()


def tune_waits_to_host(rank: int, gather: Callable[[bytes], Sequence[bytes]]) -> None:
    """Make waits yield at once if the host has fewer cores than processes, and assign home cores.

    Home cores are assigned round-robin: otherwise, the scheduler may give one process its own core
    and make three others, which wait for each other, share one core.

    Args:
        gather: all-gathers bytes over all processes, in rank order.
    """
    host = platform.node()
    rows = [json.loads(text) for text in gather(json.dumps([host, sorted(_cores())]).encode())]
    cores_of = {other: cores for other, (name, cores) in enumerate(rows) if name == host}
    if len(cores_of) <= len(set().union(*cores_of.values())):
        WAIT_POLICY.spins, WAIT_POLICY.home, WAIT_POLICY.same_core = SPINS, None, frozenset()
        return
    homes = {other: cores[i % len(cores)] for i, (other, cores) in enumerate(cores_of.items())}
    same_core = [other for other, home in homes.items() if home == homes[rank] and other != rank]
    WAIT_POLICY.spins, WAIT_POLICY.home = SPINS_OVERSUBSCRIBED, homes[rank]
    WAIT_POLICY.same_core = frozenset(same_core)


def _migrate(core: int) -> None:
    """Move this thread to a core without pinning it there."""
    allowed = os.sched_getaffinity(0)
    if core in allowed and len(allowed) > 1:
        os.sched_setaffinity(0, {core})
        os.sched_setaffinity(0, allowed)


def thread_budget_of_host(gather: Callable[[bytes], Sequence[bytes]]) -> Budget:
    """Return the thread budget of every process: the smallest fair share among all processes.

    The budget is equal in all processes, because their plans must be equal.  The pool of the
    budget, too, is equal in all processes: the minimum, over all hosts, of the number of cores
    that the processes of the host have together.

    Args:
        gather: all-gathers bytes over all processes, in rank order.
    """
    mine = json.dumps([platform.node(), sorted(_cores())]).encode()
    rows = [json.loads(text) for text in gather(mine)]
    shares = []
    for rank, (host, cores) in enumerate(rows):
        others = [theirs for i, (other, theirs) in enumerate(rows) if other == host and i != rank]
        shares.append(fair_share(cores, others))
    least = min(shares, key=lambda share: share.count)
    pool = min(share.pool for share in shares)
    return replace(least, pool=pool, pools=len({host for host, _ in rows}))


def _cores() -> Iterable[int]:
    """Return the cores that this process may run on, as far as the system reports them."""
    affinity = getattr(os, "sched_getaffinity", None)
    return affinity(0) if affinity else range(os.cpu_count() or 1)


def run_poll_hooks() -> None:
    """Call all of `POLL_HOOKS`; propagate their exceptions."""
    for hook in POLL_HOOKS:
        hook()


def wait(done: Callable[[], bool]) -> None:
    """Wait until ``done`` returns True.

    Raises:
        BaseException: the verdict on the job, or what one of `POLL_HOOKS` raises.
    """
    for _ in range(WAIT_POLICY.spins):
        if done():
            return
    polls = 0
    while not done():
        if VERDICT.error is not None:
            raise VERDICT.error
        if polls % YIELDS_PER_HOOK == 0:
            run_poll_hooks()
        polls += 1
        os.sched_yield() if polls < YIELDS_BEFORE_SLEEP else time.sleep(SLEEP)
