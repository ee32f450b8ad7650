"""The state of all ranks according to their messages, and the verdict: which rank is at fault.

The board has no sockets and no clock: its owner passes each event and the current time.  A check
takes time proportional to the number of ranks, and an event takes constant time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flow_dist.control import exchanges
from flow_dist.control.exchanges import Waiting
from flow_dist.control.positions import Rank, outlier, position, positions
from flow_dist.control.report import Names, Team
from flow_dist.control.wait_graph import WaitGraph

FIRST_JOB = "all ranks at their first job"
"""Key of the gather by which ranks wait for each other before they initialize MPI."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds."""

    beat: float = 0.5  # interval between heartbeats
    silence: float = 5.0  # time without a heartbeat after which a rank counts as lost
    exchange: float = 300.0  # maximum duration of one exchange between ranks
    # Time within which all ranks must join; if `exchange` is shorter, also the limit of the wait
    # until all ranks reach their first job.
    start: float = 120.0
    # Time that a contradiction between ranks must last before it counts as a failure.
    settle: float = 1.0
    # Time without a finished step after which all positions are reported; doubled after each
    # report.
    stall: float = 60.0
    stall_limit: float = math.inf  # time without a finished step after which the job is stopped


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a job is stopped."""

    # "exception", "status", "died", "silent", "ended", "diverged", "stuck", "missing", "stalled".
    kind: str
    rank: int  # rank of the process at fault; -1 if it is unknown
    host: str  # host of this rank
    step: int  # the step that this rank had reached
    op: str  # the exchange in which this rank waited, else ""
    message: str  # the complete text for the user
    silent: tuple[str, ...] = ()  # addresses of hosts whose ranks are all silent
    status: int = 1  # exit status of the job: the exit status of this rank, if known


class Board:
    """The latest reports of all ranks of a job.

    Args:
        now: the current time, in seconds.
    """

    def __init__(self, size: int, limits: Limits, now: float) -> None:
        self.size = size
        self.limits = limits
        self.ranks: dict[int, Rank] = {}  # the ranks that have joined
        self.open = 0  # number of ranks that have neither disconnected nor said goodbye
        self._names = Names(size)
        self._succeeded = 0
        self._began = now
        self._cause: tuple[str, int, str] | None = None
        self._unheard: set[str] = set()
        self._progress = now
        self._reports = 0

    # ------------------------------------------------------------------- events

    def joined(self, rank: int, host: str, address: str, now: float) -> None:
        """Record that a rank has joined."""
        self.ranks[rank] = Rank(host, address, now, now)
        self.open += 1
        self._progressed(now)

    def beat(self, rank: int, changes: Mapping[str, Any], now: float) -> None:
        """Record a heartbeat of a rank, with the changes of its position.

        Raises `WireError` if the changes are invalid.
        """
        known = self.ranks[rank]
        if changes:
            finished = known.position.finished
            known.position.update(changes, self._names)
            if "sequence" in changes or "site" in changes:
                known.since = now
            if known.position.finished != finished:
                self._progressed(now)
        known.heard = now
        self._unheard.discard(known.address)

    def ended(self, rank: int, status: int, changes: Mapping[str, Any], now: float) -> None:
        """Record that a rank has said goodbye, with its last position."""
        self.beat(rank, changes, now)
        known = self.ranks[rank]
        self.open -= known.is_open
        known.ended = status
        self._progressed(now)
        if status == 0:
            self._succeeded += 1
        else:
            self._fail("status", rank, f"ended with status {status}")

    def lost(self, rank: int, now: float) -> None:
        """Record that a rank's connection is lost, which is expected after a goodbye."""
        known = self.ranks[rank]
        self.open -= known.is_open
        known.gone = now
        self._unheard.discard(known.address)
        if known.ended is None and self._cause is None:
            text = "died without an error: killed, out of memory, or a crash in native code"
            self._fail("died", rank, text)
            heard = {other.address for other in self.ranks.values() if other.gone is not None}
            self._unheard = {other.address for _, other in self._alive()} - heard

    def raised(self, rank: int, error: str, changes: Mapping[str, Any], now: float) -> None:
        """Record that an exception has ended the program of a rank."""
        self.beat(rank, changes, now)
        self._fail("exception", rank, f"raised {error}")

    def discount(self, seconds: float) -> None:
        """Discount a period in which this process was suspended and could not receive messages."""
        for rank in self.ranks.values():
            rank.heard += seconds
            rank.since += seconds
        self._progress += seconds

    def _progressed(self, now: float) -> None:
        self._progress, self._reports = now, 0

    @property
    def over(self) -> bool:
        """Whether all ranks have ended with status 0."""
        return self._succeeded == self.size

    # ---------------------------------------------------------------- verdicts

    @property
    def in_doubt(self) -> bool:
        """Whether a rank has died and another host has not been heard since then.

        A launcher that loses a host kills the ranks on all other hosts, so these ranks disconnect
        before the ranks on the lost host count as silent.
        """
        return bool(self._unheard)

    def check(self, now: float) -> bool:
        """Return whether the job has failed; keep only the first failure, which causes others."""
        alive = self._alive()
        suspects = [rank.heard for _, rank in alive if rank.address in self._unheard]
        if suspects and now - min(suspects) <= self.limits.silence:
            return False
        if suspects:
            self._cause, self._unheard = None, set()
        if self._cause is None:
            self._silent(alive, now)
            self._missing(now)
            self._contradictions(alive)
        if self._cause is None and alive and now - self._progress > self.limits.stall_limit:
            self._fail("stalled", *self._stall(now))
        return self._cause is not None

    def stalled(self, now: float) -> str | None:
        """Return a report of all positions if no step has finished for a long time, else None."""
        if now - self._progress < self.limits.stall * 2**self._reports or not self._alive():
            return None
        self._reports += 1
        return self._message(-1, self._stall(now)[1], now)

    def _stall(self, now: float) -> tuple[int, str]:
        """Return the rank because of which a job makes no progress, or -1, and a description.

        If no rank waits for another, the rank is the one that is not where most ranks are.
        """
        text = f"no step has finished for {now - self._progress:.0f} s"
        cause = WaitGraph(self.ranks).cause()
        if cause is not None:
            return cause.rank, f"{text}; {cause.text}"
        lines = {n: rank.position.line for n, rank in self._alive()}
        (_, most), *others = Counter(lines.values()).most_common()
        if not others or most <= len(lines) / 2:
            return -1, text
        odd = outlier(lines)
        return odd, f"{text}; rank {odd} is not where most ranks are"

    def verdict(self, now: float) -> Failure | None:
        """Return the failure, with the last known positions of all ranks; None if there is none."""
        if self._cause is None:
            return None
        kind, rank, text = self._cause
        blamed = self.ranks.get(rank)
        host, step, op = (blamed.host, blamed.step, blamed.op) if blamed else ("?", 0, "")
        waiting = self._waiting_rank(rank) if kind in ("died", "silent", "exception") else None
        if waiting is not None:  # the rank got further than its last report says
            number, other = waiting
            joint = "\n  " if "\n" in text else "; "
            text += f"{joint}rank {number} waits for it {position(other)}"
            step, op = max((step, op), (other.step, other.op))
        message = self._message(rank, text, now)
        status = (blamed.ended if blamed and kind == "status" else 0) or 1
        silent = self._silent_hosts(self._alive(), now)
        return Failure(kind, rank, host, step, op, message, silent, status)

    def _waiting_rank(self, rank: int) -> Waiting | None:
        """Return a rank that waits in an exchange that the given rank has not entered."""
        known = self.ranks.get(rank)
        for number, other in self._alive():
            place = other.position.place
            if number == rank or place is None or rank not in place.team.members:
                continue
            if known is None or known.entered(place.team) < other.position.number:
                return number, other
        return None

    def _silent_hosts(self, alive: Iterable[Waiting], now: float) -> tuple[str, ...]:
        """Return the addresses at which no rank responds, apart from ranks that have ended."""
        quiet, answering = set[str](), set[str]()
        for _, rank in alive:
            silent = rank.silent(now, self.limits.silence)
            (quiet if silent else answering).add(rank.address)
        return tuple(sorted(quiet - answering))

    def _fail(self, kind: str, rank: int, text: str) -> None:
        if self._cause is None:
            self._cause = kind, rank, text

    def _alive(self) -> list[Waiting]:
        """Return the ranks that have not ended, in the order of their numbers."""
        return [(n, rank) for n, rank in sorted(self.ranks.items()) if rank.ended is None]

    def _silent(self, alive: list[Waiting], now: float) -> None:
        quiet = (pair for pair in alive if pair[1].silent(now, self.limits.silence))
        number, rank = next(quiet, (-1, None))
        if rank is None:
            return
        text = f"has not responded for {now - rank.heard:.1f} s: stopped, or its link is down"
        others = [other for _, other in alive if other.address == rank.address]
        if len(others) > 1 and rank.address in self._silent_hosts(alive, now):
            text += f"; neither has any other rank on {rank.host}"
        self._fail("silent", number, text)

    def _missing(self, now: float) -> None:
        if len(self.ranks) < self.size and now - self._began > self.limits.start:
            absent = next(n for n in range(self.size) if n not in self.ranks)
            self._fail("missing", absent, f"did not join within {self.limits.start:g} s")

    # ---------------------------------------------------------- contradictions

    def _contradictions(self, alive: list[Waiting]) -> None:
        """Fail if ranks wait for others that will not enter their exchange.

        Only ranks that have been in one exchange for at least `Limits.settle` count.  A rank may
        move on between two reports, so this time extends from the first to the last report of a
        position, not until now.
        """
        waiting: dict[Team, list[Waiting]] = defaultdict(list)
        for number, rank in alive:
            place = rank.position.place
            if place is not None and rank.heard - rank.since >= self.limits.settle:
                waiting[place.team].append((number, rank))
        for team, ranks in waiting.items():
            self._ended_early(team, ranks)
        for team in waiting:
            self._divergence(team)
        self._deadlock(alive, waiting)
        self._timeout(waiting)

    def _ended_early(self, team: Team, waiting: list[Waiting]) -> None:
        """Fail if a rank waits for a rank that has ended."""
        if self.open == len(self.ranks):
            return
        number, rank = max(waiting, key=lambda pair: pair[1].position.number)
        for other in exchanges.not_entered(team, rank.position.number, self.ranks):
            gone = self.ranks.get(other)
            if gone is None or gone.ended is None:
                continue
            if rank.heard - gone.heard >= self.limits.settle:
                text = f"has ended, while rank {number} waits for it in {rank.op!r}"
                self._fail("ended", other, text)

    def _divergence(self, team: Team) -> None:
        """Fail if members of a team have entered different exchanges under the same number."""
        pair = exchanges.divergence(team, self.ranks)
        if pair is not None:
            one, other = pair
            where, others = (_whereabouts(self.ranks[n]) for n in pair)
            self._fail("diverged", one, f"diverged: it is in {where}; rank {other} in {others}")

    def _deadlock(self, alive: list[Waiting], waiting: Mapping[Team, list[Waiting]]) -> None:
        """Fail if all ranks wait for ranks that wait in other exchanges."""
        waits = [pair for ranks in waiting.values() for pair in ranks]
        if len(waits) < max(2, self.size):  # `_ended_early` handles ranks that have ended
            return
        together = min(rank.heard for _, rank in alive) - max(rank.since for _, rank in alive)
        if together < self.limits.settle:
            return
        cause = WaitGraph(self.ranks).cause()
        if cause is not None and cause.is_circle:
            self._fail("diverged", cause.rank, f"diverged: {cause.text}")

    def _timeout(self, waiting: Mapping[Team, list[Waiting]]) -> None:
        """Fail if the exchange of a rank takes too long."""
        late = [
            (number, rank)
            for ranks in waiting.values()
            for number, rank in ranks
            if rank.heard - rank.since > self._limit(rank)
        ]
        number, rank = min(late, key=lambda pair: pair[0], default=(-1, None))
        cause = None if rank is None else WaitGraph(self.ranks).cause(number)
        if rank is None or cause is None:
            return
        how = "has been" if cause.rank == number else f"keeps rank {number} waiting"
        waited = f"{how} in {rank.op!r} for {rank.heard - rank.since:.1f} s"
        self._fail("stuck", cause.rank, f"{waited}: {cause.text}")

    def _limit(self, rank: Rank) -> float:
        """Return the time limit of a rank's wait; before the first job, ranks may load data."""
        first = rank.op == f"gather {FIRST_JOB}"
        return max(self.limits.exchange, self.limits.start if first else 0)

    def _message(self, number: int, text: str, now: float) -> str:
        blamed = self.ranks.get(number)
        where = f" on {blamed.host}, {position(blamed)}," if blamed else ""
        head = f"rank {number} of {self.size}{where} {text}" if number >= 0 else text
        return "\n".join([head, *positions(self.ranks, self.size, now, 2 * self.limits.beat)])


def _whereabouts(rank: Rank) -> str:
    place = rank.position.place
    return f"{place.op}: {place.what}" if place else f"at work at step {rank.step}"
