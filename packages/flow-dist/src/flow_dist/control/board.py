"""What the ranks of a job have said, and the verdict on it: when to stop, and whose fault it is.

No sockets and no clock here: who keeps a board tells it what happened, and when.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Instance = tuple[tuple[int, ...], int, str, str]
"""An exchange that is going on: its ranks, their how many-th one it is in a lane, what it is."""


FIRST_JOB = "all ranks at their first job"
"""Key of the gathering in which ranks wait for each other before they join by MPI."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long nothing may happen, in seconds.

    Attributes:
        beat: between two signs of life.
        silence: without any, after which a rank counts as lost.
        exchange: in one exchange between ranks.
        start: until all ranks are there; also in the wait for the first job of all ranks, where
            `exchange` is shorter.
        settle: that a contradiction between ranks must last.
        stall: without a finished step, until this is reported; then twice as long each time.
        stall_limit: without a finished step, until the job is stopped.
    """

    beat: float = 0.5
    silence: float = 5.0
    exchange: float = 300.0
    start: float = 120.0
    settle: float = 1.0
    stall: float = 60.0
    stall_limit: float = math.inf


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job is stopped.

    Attributes:
        kind: "exception", "status", "died", "silent", "ended", "diverged", "stuck", "missing",
            "stalled".
        rank: of the process that is to blame, as far as can be told; -1 for none.
        host: where it runs.
        step: which it was at.
        op: of the exchange it was in, "" outside.
        message: all of it, for the user.
        silent: addresses of hosts of which no rank answers any more.
        status: to end with: that of the rank, where it told one.
    """

    kind: str
    rank: int
    host: str
    step: int
    op: str
    message: str
    silent: tuple[str, ...] = ()
    status: int = 1


@dataclass(slots=True)
class Rank:
    """One rank as its last messages show it.

    Attributes:
        host, address: where it runs: the name, and where its connection came from.
        heard: when it was heard last.
        since: when it was first seen where it is now.
        status: its last report; see `Watch.report`.
        ended: its exit status after it has said goodbye.
        gone: when its connection was lost, None while it lasts.
    """

    host: str
    address: str
    heard: float
    since: float
    status: Mapping[str, Any] = field(default_factory=dict)
    ended: int | None = None
    gone: float | None = None

    @property
    def op(self) -> str:
        """The exchange in which it waits, "" when it does not."""
        return str(self.status.get("op", "")) if self.ended is None else ""

    @property
    def step(self) -> int:
        """The step that it is at."""
        return int(self.status.get("step", 0))

    @property
    def instance(self) -> Instance | None:
        """The exchange in which it waits."""
        if not self.op:
            return None
        what = f"{self.op}: {self.status['what']}"
        ranks, lane = tuple(self.status["ranks"]), self.status["lane"]
        return ranks, self.status["count"], lane, what

    @property
    def groups(self) -> dict[tuple[tuple[int, ...], str], tuple[int, Sequence[int]]]:
        """Per group and lane, how many exchanges it has come to, and the last ones' keys."""
        told = self.status.get("groups", ())
        return {(tuple(ranks), lane): (count, last) for ranks, lane, count, last in told}

    def silent(self, now: float, limit: float) -> bool:
        """Whether it has not been heard for so long; who has hung up is not silent."""
        return self.gone is None and now - self.heard > limit

    def entered(self, instance: Instance) -> bool:
        """Whether it is in an exchange, or has been: the others need not wait for it."""
        members, number, lane, _ = instance
        return self.groups.get((members, lane), (0, ()))[0] >= number


class Board:
    """The ranks of a job.

    Args:
        size: how many there are to be.
        limits: how long nothing may happen.
        now: the time, in seconds.
    """

    def __init__(self, size: int, limits: Limits, now: float) -> None:
        self.size = size
        self.limits = limits
        self.ranks: dict[int, Rank] = {}
        self._began = now
        self._cause: tuple[str, int, str] | None = None
        self._progress = now
        self._reports = 0

    # ------------------------------------------------------------- what happens

    def joined(self, rank: int, host: str, address: str, now: float) -> None:
        """A rank is there."""
        self.ranks[rank] = Rank(host, address, now, now)
        self._progressed(now)

    def beat(self, rank: int, status: Mapping[str, Any], now: float) -> None:
        """A rank lives, and is somewhere."""
        known = self.ranks[rank]
        if status.get("sequence") != known.status.get("sequence") or known.op != status.get(
            "op", ""
        ):
            known.since = now
        if status.get("finished") != known.status.get("finished"):
            self._progressed(now)
        known.status, known.heard = status, now

    def ended(self, rank: int, status: int, report: Mapping[str, Any], now: float) -> None:
        """A rank has said goodbye, and where it was at the end."""
        self.beat(rank, report, now)
        self.ranks[rank].ended = status
        self._progressed(now)
        if status != 0:
            self._fail("status", rank, f"ended with status {status}")

    def lost(self, rank: int, now: float) -> None:
        """The connection of a rank is gone; after a goodbye that is as it should be."""
        self.ranks[rank].gone = now
        if self.ranks[rank].ended is None:
            text = "is gone without a word: killed, out of memory, or a crash in native code"
            self._fail("died", rank, text)

    def raised(self, rank: int, error: str, status: Mapping[str, Any], now: float) -> None:
        """An exception ended the program of a rank."""
        self.beat(rank, status, now)
        self._fail("exception", rank, f"raised {error}")

    def excuse(self, seconds: float) -> None:
        """For so long nobody could be heard, through no fault of the ranks."""
        for rank in self.ranks.values():
            rank.heard += seconds
            rank.since += seconds
        self._progress += seconds

    def _progressed(self, now: float) -> None:
        self._progress, self._reports = now, 0

    @property
    def over(self) -> bool:
        """Whether all ranks have ended well."""
        return len(self.ranks) == self.size and all(r.ended == 0 for r in self.ranks.values())

    # ---------------------------------------------------------------- verdicts

    @property
    def in_doubt(self) -> bool:
        """Whether a rank has died, and those of another host have not been heard since.

        A launcher that has lost a host ends all others: its victims die first.
        """
        return bool(self._suspects())

    def check(self, now: float) -> bool:
        """Whether something is wrong; the first cause stays, as the others follow from it."""
        suspects = self._suspects()
        if suspects and now - min(r.heard for r in suspects.values()) <= self.limits.silence:
            return False
        if suspects:
            self._cause = None
        self._silent(now)
        self._missing(now)
        for rule in (self._left, self._differ, self._knot, self._slow):
            rule()
        if self._alive() and now - self._progress > self.limits.stall_limit:
            self._fail("stalled", -1, self._stall(now))
        return self._cause is not None

    def stalled(self, now: float) -> str | None:
        """A report of where all ranks are, when no step has finished for long; None otherwise."""
        if not self._alive() or now - self._progress < self.limits.stall * 2**self._reports:
            return None
        self._reports += 1
        return self._message(-1, self._stall(now), now)

    def _stall(self, now: float) -> str:
        """What is said of a job that makes no progress, and of a rank that is elsewhere."""
        text = f"no step has finished for {now - self._progress:.0f} s"
        places = {
            n: rank.op or str(rank.status.get("line", "")) for n, rank in self._alive().items()
        }
        (_, most), *others = Counter(places.values()).most_common()
        if others and most > len(places) / 2:
            text += f"; rank {_odd_one(places)} is elsewhere than most"
        return text

    def verdict(self, now: float) -> Failure | None:
        """What is wrong, with what all ranks do as they have said last."""
        if self._cause is None:
            return None
        kind, rank, text = self._cause
        blamed = self.ranks.get(rank)
        host, step, op = (blamed.host, blamed.step, blamed.op) if blamed else ("?", 0, "")
        waiting = self._waits_for(rank) if kind in ("died", "silent", "exception") else None
        if waiting is not None:  # it got further than its own last report
            number, other = waiting
            joint = "\n  " if "\n" in text else "; "
            text += f"{joint}rank {number} waits for it {_place(other)}"
            step, op = max((step, op), (other.step, other.op))
        message = self._message(rank, text, now)
        status = (blamed.ended if blamed and kind == "status" else 0) or 1
        return Failure(kind, rank, host, step, op, message, self._silent_hosts(now), status)

    def _suspects(self) -> dict[int, Rank]:
        """Ranks of hosts from which nothing has come since a rank of another one died."""
        kind, dead, _ = self._cause or ("", -1, "")
        if kind != "died":
            return {}
        victim = self.ranks[dead]
        since = victim.gone or 0.0
        told = [r for r in list(self.ranks.values()) if r.heard > since or r.gone is not None]
        known = {victim.address, *(rank.address for rank in told)}
        return {n: rank for n, rank in self._alive().items() if rank.address not in known}

    def _waits_for(self, rank: int) -> tuple[int, Rank] | None:
        """Somebody who waits in an exchange that a rank has not come into."""
        for number, other in self._alive().items():
            place = other.instance
            if number != rank and place and rank in self._absent(place):
                return number, other
        return None

    def _silent_hosts(self, now: float) -> tuple[str, ...]:
        """Addresses of which no rank answers; those that have ended need not."""
        alive = self._alive().values()
        quiet = {rank.address for rank in alive if rank.silent(now, self.limits.silence)}
        answering = [r for r in alive if not r.silent(now, self.limits.silence)]
        return tuple(sorted(quiet - {rank.address for rank in answering}))

    def _fail(self, kind: str, rank: int, text: str) -> None:
        if self._cause is None:
            self._cause = kind, rank, text

    def _alive(self) -> dict[int, Rank]:
        return {n: rank for n, rank in sorted(self.ranks.items()) if rank.ended is None}

    def _silent(self, now: float) -> None:
        quiet = {n: r for n, r in self._alive().items() if r.silent(now, self.limits.silence)}
        for number, rank in quiet.items():
            text = f"does not answer for {now - rank.heard:.1f} s: stopped, or its link is down"
            others = [r for r in self._alive().values() if r.address == rank.address]
            if len(others) > 1 and rank.address in self._silent_hosts(now):
                text += f"; nor does any other rank on {rank.host}"
            self._fail("silent", number, text)

    def _missing(self, now: float) -> None:
        absent = [n for n in range(self.size) if n not in self.ranks]
        if absent and now - self._began > self.limits.start:
            text = f"has not come within {self.limits.start:g} s"
            self._fail("missing", absent[0], text)

    def _waits(self) -> Iterator[tuple[int, Rank, Instance]]:
        """Ranks that wait in an exchange, and have said so for longer than a moment.

        Between two reports a rank may go on: what counts is the time from the first report of a
        place to the last one, not to now.
        """
        for number, rank in self._alive().items():
            if rank.instance is not None and rank.heard - rank.since >= self.limits.settle:
                yield number, rank, rank.instance

    def _left(self) -> None:
        """Somebody waits for a rank that has ended."""
        for number, rank, instance in self._waits():
            for other in instance[0]:
                gone = self.ranks.get(other)
                if gone is None or gone.ended is None or gone.entered(instance):
                    continue
                if rank.heard - gone.heard >= self.limits.settle:
                    text = f"has ended, while rank {number} waits for it in {rank.op!r}"
                    self._fail("ended", other, text)

    def _differ(self) -> None:
        """Somebody waits, and another member of its group has come to something else."""
        for number, rank, (members, _, lane, what) in self._waits():
            for other in members:
                known = self.ranks.get(other)
                if known is not None and _parted(rank, known, (members, lane)):
                    there = known.instance
                    place = there[3] if there else f"at work at step {known.step}"
                    self._blame({number: what, other: place})

    def _knot(self) -> None:
        """All ranks wait, and each of them for somebody who waits elsewhere."""
        waits = {number: instance for number, _, instance in self._waits()}
        alive = self._alive().values()
        if len(waits) < max(2, self.size):  # one that has ended is `_left`'s business
            return
        together = min(rank.heard for rank in alive) - max(rank.since for rank in alive)
        if together >= self.limits.settle and all(map(self._absent, waits.values())):
            self._blame({n: f"{what} of ranks {g}" for n, (g, _, _, what) in waits.items()})

    def _absent(self, instance: Instance) -> list[int]:
        """Members that have not come into an exchange."""
        known = self.ranks
        return [n for n in instance[0] if not (n in known and known[n].entered(instance))]

    def _blame(self, places: Mapping[int, str]) -> None:
        rank = _odd_one(places)
        other = next(n for n in places if n != rank)
        text = f"went another way: it is in {places[rank]}; rank {other} in {places[other]}"
        self._fail("diverged", rank, text)

    def _slow(self) -> None:
        for number, rank, instance in self._waits():
            waited = rank.heard - rank.since
            if waited > self._patience(rank):
                late = self._absent(instance)
                text = f"keeps rank {number} waiting in {rank.op!r} for {waited:.1f} s"
                if not late:
                    text = f"is in {rank.op!r} with all others for {waited:.1f} s"
                self._fail("stuck", late[0] if late else number, text)

    def _patience(self, rank: Rank) -> float:
        """How long a rank may wait where it is: before the first job, others may read data."""
        first = rank.op == f"gather {FIRST_JOB}"
        return max(self.limits.exchange, self.limits.start if first else 0)

    # ---------------------------------------------------------------- messages

    def _message(self, number: int, text: str, now: float) -> str:
        blamed = self.ranks.get(number)
        where = f" on {blamed.host}, {_place(blamed)}," if blamed else ""
        lines = [f"rank {number} of {self.size}{where} {text}" if number >= 0 else text]
        for n in range(self.size):
            lines.append(f"  rank {n}: {self._line(self.ranks.get(n), now)}")
        return "\n".join(lines)

    def _line(self, rank: Rank | None, now: float) -> str:
        if rank is None:
            return "never came"
        if rank.ended is not None:
            return f"on {rank.host}, ended with status {rank.ended}"
        quiet = now - rank.heard
        heard = f", last heard {quiet:.1f} s ago" if quiet > 2 * self.limits.beat else ""
        if rank.gone is not None:
            heard = f", gone for {now - rank.gone:.1f} s"
        line = str(rank.status.get("line", ""))
        called = f", called at {line}" if rank.op and line not in ("", rank.status["at"]) else ""
        return f"on {rank.host}, {_place(rank)}, for {now - rank.since:.1f} s{heard}{called}"


def _place(rank: Rank) -> str:
    at = f" ({rank.status['at']})" if rank.status.get("at") else ""
    if not rank.op:
        return f"at work at step {rank.step}{at}"
    others = ", ".join(map(str, rank.status["ranks"]))
    return (
        f"at step {rank.step} in {rank.op!r}{at}, {rank.status['what']}, waiting for ranks {others}"
    )


def _parted(one: Rank, other: Rank, group: tuple[tuple[int, ...], str]) -> bool:
    """Whether two ranks have come to different exchanges of the same number."""
    (count, last), (far, past) = (rank.groups.get(group, (0, ())) for rank in (one, other))
    both = min(count, far)
    pairs = zip(_by_number(count, last, both), _by_number(far, past, both), strict=False)
    return any(here != there for here, there in pairs)


def _by_number(count: int, last: Sequence[int], until: int) -> Iterator[int]:
    """Keys of the exchanges up to a number, the newest first."""
    return reversed(last[: len(last) - (count - until)] if count - until < len(last) else [])


def _odd_one(places: Mapping[int, str]) -> int:
    """Who is elsewhere than most; of two equal camps the one without the lowest rank."""
    votes = Counter(places.values())
    most = max(votes.values())
    usual = next(places[n] for n in sorted(places) if votes[places[n]] == most)
    return min((n for n, what in places.items() if what != usual), default=max(places))
