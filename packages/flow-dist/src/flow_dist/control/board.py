"""The state of all ranks as their messages report it, and the verdict: which rank is at fault.

The board has no sockets and no clock: its owner passes each event and the time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Instance = tuple[tuple[int, ...], int, str, str]
"""An exchange in progress: its ranks, its number in a lane, the lane, and what it exchanges."""


FIRST_JOB = "all ranks at their first job"
"""Key of the gather in which ranks wait for each other before MPI is initialized."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds.

    Attributes:
        beat: interval between heartbeats.
        silence: time without a heartbeat after which a rank counts as lost.
        exchange: maximum duration of one exchange between ranks.
        start: time until all ranks must have joined; also limits the wait for the first job of all
            ranks, if `exchange` is shorter.
        settle: time that a contradiction between ranks must last.
        stall: time without a finished step until a report; doubled after each report.
        stall_limit: time without a finished step until the job is stopped.
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
        rank: rank of the process at fault, as far as it is known; -1 for none.
        host: its host.
        step: the step that it had reached.
        op: the exchange that it was in, else "".
        message: the complete text for the user.
        silent: addresses of hosts whose ranks are all silent.
        status: exit status of the job: that of the rank, if known.
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
    """One rank, according to its last messages.

    Attributes:
        host, address: name of its host, and source address of its connection.
        heard: time of its last message.
        since: time at which it was first reported at its current position.
        status: its last report; see `Watch.report`.
        ended: its exit status once it has said goodbye.
        gone: time at which its connection was lost, None while it is connected.
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
        """The exchange in which it waits, else ""."""
        return str(self.status.get("op", "")) if self.ended is None else ""

    @property
    def step(self) -> int:
        """The step that it has reached."""
        return int(self.status.get("step", 0))

    @property
    def instance(self) -> Instance | None:
        """The exchange in which it waits, else None."""
        if not self.op:
            return None
        what = f"{self.op}: {self.status['what']}"
        ranks, lane = tuple(self.status["ranks"]), self.status["lane"]
        return ranks, self.status["count"], lane, what

    @property
    def groups(self) -> dict[tuple[tuple[int, ...], str], tuple[int, Sequence[int]]]:
        """Per group and lane, the number of exchanges it has entered, and the last ones' keys."""
        groups = self.status.get("groups", ())
        return {(tuple(ranks), lane): (count, last) for ranks, lane, count, last in groups}

    def silent(self, now: float, limit: float) -> bool:
        """Return whether it is connected but has not been heard for a time."""
        return self.gone is None and now - self.heard > limit

    def entered(self, instance: Instance) -> bool:
        """Return whether it has entered an exchange, so that the others need not wait for it."""
        members, number, lane, _ = instance
        return self.groups.get((members, lane), (0, ()))[0] >= number


class Board:
    """The ranks of a job.

    Args:
        size: number of ranks.
        limits: time limits.
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

    # ------------------------------------------------------------------- events

    def joined(self, rank: int, host: str, address: str, now: float) -> None:
        """A rank has joined."""
        self.ranks[rank] = Rank(host, address, now, now)
        self._progressed(now)

    def beat(self, rank: int, status: Mapping[str, Any], now: float) -> None:
        """A rank has sent a heartbeat with its position."""
        known = self.ranks[rank]
        if status.get("sequence") != known.status.get("sequence") or known.op != status.get(
            "op", ""
        ):
            known.since = now
        if status.get("finished") != known.status.get("finished"):
            self._progressed(now)
        known.status, known.heard = status, now

    def ended(self, rank: int, status: int, report: Mapping[str, Any], now: float) -> None:
        """A rank has said goodbye, with its last position."""
        self.beat(rank, report, now)
        self.ranks[rank].ended = status
        self._progressed(now)
        if status != 0:
            self._fail("status", rank, f"ended with status {status}")

    def lost(self, rank: int, now: float) -> None:
        """A rank's connection is lost, which is expected after a goodbye."""
        self.ranks[rank].gone = now
        if self.ranks[rank].ended is None:
            text = "died without an error: killed, out of memory, or a crash in native code"
            self._fail("died", rank, text)

    def raised(self, rank: int, error: str, status: Mapping[str, Any], now: float) -> None:
        """An exception ended the program of a rank."""
        self.beat(rank, status, now)
        self._fail("exception", rank, f"raised {error}")

    def discount(self, seconds: float) -> None:
        """Discount a time in which this process was suspended and could not receive messages."""
        for rank in self.ranks.values():
            rank.heard += seconds
            rank.since += seconds
        self._progress += seconds

    def _progressed(self, now: float) -> None:
        self._progress, self._reports = now, 0

    @property
    def over(self) -> bool:
        """Whether all ranks have ended with status 0."""
        return len(self.ranks) == self.size and all(r.ended == 0 for r in self.ranks.values())

    # ---------------------------------------------------------------- verdicts

    @property
    def in_doubt(self) -> bool:
        """Whether a rank has died and another host has not been heard since.

        A launcher that loses a host kills all other ranks, so these disconnect first.
        """
        return bool(self._suspects())

    def check(self, now: float) -> bool:
        """Return whether the job has failed; the first cause stays, as it causes the others."""
        suspects = self._suspects()
        if suspects and now - min(r.heard for r in suspects.values()) <= self.limits.silence:
            return False
        if suspects:
            self._cause = None
        self._silent(now)
        self._missing(now)
        for rule in (self._ended_early, self._divergence, self._deadlock, self._timeout):
            rule()
        if self._alive() and now - self._progress > self.limits.stall_limit:
            self._fail("stalled", -1, self._stall(now))
        return self._cause is not None

    def stalled(self, now: float) -> str | None:
        """Return a report of all positions if no step has finished for long, else None."""
        if not self._alive() or now - self._progress < self.limits.stall * 2**self._reports:
            return None
        self._reports += 1
        return self._message(-1, self._stall(now), now)

    def _stall(self, now: float) -> str:
        """Describe a job that makes no progress, and a rank at another place than most."""
        text = f"no step has finished for {now - self._progress:.0f} s"
        places = {
            n: rank.op or str(rank.status.get("line", "")) for n, rank in self._alive().items()
        }
        (_, most), *others = Counter(places.values()).most_common()
        if others and most > len(places) / 2:
            text += f"; rank {_outlier(places)} is not where most ranks are"
        return text

    def verdict(self, now: float) -> Failure | None:
        """Return what has failed, with the last known positions of all ranks."""
        if self._cause is None:
            return None
        kind, rank, text = self._cause
        blamed = self.ranks.get(rank)
        host, step, op = (blamed.host, blamed.step, blamed.op) if blamed else ("?", 0, "")
        waiting = self._waiting_rank(rank) if kind in ("died", "silent", "exception") else None
        if waiting is not None:  # the rank got further than its last report
            number, other = waiting
            joint = "\n  " if "\n" in text else "; "
            text += f"{joint}rank {number} waits for it {_position(other)}"
            step, op = max((step, op), (other.step, other.op))
        message = self._message(rank, text, now)
        status = (blamed.ended if blamed and kind == "status" else 0) or 1
        return Failure(kind, rank, host, step, op, message, self._silent_hosts(now), status)

    def _suspects(self) -> dict[int, Rank]:
        """Return the ranks of hosts that have sent nothing since a rank of another host died."""
        kind, dead, _ = self._cause or ("", -1, "")
        if kind != "died":
            return {}
        victim = self.ranks[dead]
        since = victim.gone or 0.0
        heard = [r for r in list(self.ranks.values()) if r.heard > since or r.gone is not None]
        known = {victim.address, *(rank.address for rank in heard)}
        return {n: rank for n, rank in self._alive().items() if rank.address not in known}

    def _waiting_rank(self, rank: int) -> tuple[int, Rank] | None:
        """Return a rank that waits in an exchange that the given rank has not entered."""
        for number, other in self._alive().items():
            place = other.instance
            if number != rank and place and rank in self._not_entered(place):
                return number, other
        return None

    def _silent_hosts(self, now: float) -> tuple[str, ...]:
        """Return the addresses of which no rank responds; ranks that have ended do not count."""
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
            text = f"has not responded for {now - rank.heard:.1f} s: stopped, or its link is down"
            others = [r for r in self._alive().values() if r.address == rank.address]
            if len(others) > 1 and rank.address in self._silent_hosts(now):
                text += f"; neither has any other rank on {rank.host}"
            self._fail("silent", number, text)

    def _missing(self, now: float) -> None:
        absent = [n for n in range(self.size) if n not in self.ranks]
        if absent and now - self._began > self.limits.start:
            text = f"did not join within {self.limits.start:g} s"
            self._fail("missing", absent[0], text)

    def _waits(self) -> Iterator[tuple[int, Rank, Instance]]:
        """Yield the ranks that have been in one exchange for at least `Limits.settle`.

        A rank may move on between two reports, so the time counts from the first to the last report
        of a position, not until now.
        """
        for number, rank in self._alive().items():
            if rank.instance is not None and rank.heard - rank.since >= self.limits.settle:
                yield number, rank, rank.instance

    def _ended_early(self) -> None:
        """Fail if a rank waits for one that has ended."""
        for number, rank, instance in self._waits():
            for other in instance[0]:
                gone = self.ranks.get(other)
                if gone is None or gone.ended is None or gone.entered(instance):
                    continue
                if rank.heard - gone.heard >= self.limits.settle:
                    text = f"has ended, while rank {number} waits for it in {rank.op!r}"
                    self._fail("ended", other, text)

    def _divergence(self) -> None:
        """Fail if a rank waits while a member of its group has entered a different exchange."""
        for number, rank, (members, _, lane, what) in self._waits():
            for other in members:
                known = self.ranks.get(other)
                if known is not None and _has_diverged(rank, known, (members, lane)):
                    entered = known.instance
                    state = entered[3] if entered else f"at work at step {known.step}"
                    self._fail_diverged({number: what, other: state})

    def _deadlock(self) -> None:
        """Fail if all ranks wait for ranks that wait elsewhere."""
        waits = {number: instance for number, _, instance in self._waits()}
        alive = self._alive().values()
        if len(waits) < max(2, self.size):  # `_ended_early` handles ranks that have ended
            return
        together = min(rank.heard for rank in alive) - max(rank.since for rank in alive)
        if together >= self.limits.settle and all(map(self._not_entered, waits.values())):
            self._fail_diverged({n: f"{what} of ranks {g}" for n, (g, _, _, what) in waits.items()})

    def _not_entered(self, instance: Instance) -> list[int]:
        """Return the members that have not entered an exchange."""
        known = self.ranks
        return [n for n in instance[0] if not (n in known and known[n].entered(instance))]

    def _fail_diverged(self, places: Mapping[int, str]) -> None:
        rank = _outlier(places)
        other = next(n for n in places if n != rank)
        text = f"diverged: it is in {places[rank]}; rank {other} in {places[other]}"
        self._fail("diverged", rank, text)

    def _timeout(self) -> None:
        for number, rank, instance in self._waits():
            waited = rank.heard - rank.since
            if waited > self._limit(rank):
                late = self._not_entered(instance)
                text = f"keeps rank {number} waiting in {rank.op!r} for {waited:.1f} s"
                if not late:
                    text = f"has been in {rank.op!r} with all other ranks for {waited:.1f} s"
                self._fail("stuck", late[0] if late else number, text)

    def _limit(self, rank: Rank) -> float:
        """Return the time limit of a rank's wait; before the first job, others may read data."""
        first = rank.op == f"gather {FIRST_JOB}"
        return max(self.limits.exchange, self.limits.start if first else 0)

    # ---------------------------------------------------------------- messages

    def _message(self, number: int, text: str, now: float) -> str:
        blamed = self.ranks.get(number)
        where = f" on {blamed.host}, {_position(blamed)}," if blamed else ""
        lines = [f"rank {number} of {self.size}{where} {text}" if number >= 0 else text]
        for n in range(self.size):
            lines.append(f"  rank {n}: {self._line(self.ranks.get(n), now)}")
        return "\n".join(lines)

    def _line(self, rank: Rank | None, now: float) -> str:
        if rank is None:
            return "never joined"
        if rank.ended is not None:
            return f"on {rank.host}, ended with status {rank.ended}"
        quiet = now - rank.heard
        heard = f", last heard {quiet:.1f} s ago" if quiet > 2 * self.limits.beat else ""
        if rank.gone is not None:
            heard = f", disconnected {now - rank.gone:.1f} s ago"
        line = str(rank.status.get("line", ""))
        called = f", called at {line}" if rank.op and line not in ("", rank.status["at"]) else ""
        return f"on {rank.host}, {_position(rank)}, for {now - rank.since:.1f} s{heard}{called}"


def _position(rank: Rank) -> str:
    at = f" ({rank.status['at']})" if rank.status.get("at") else ""
    if not rank.op:
        return f"at work at step {rank.step}{at}"
    others = ", ".join(map(str, rank.status["ranks"]))
    return (
        f"at step {rank.step} in {rank.op!r}{at}, {rank.status['what']}, waiting for ranks {others}"
    )


def _has_diverged(one: Rank, other: Rank, group: tuple[tuple[int, ...], str]) -> bool:
    """Return whether two ranks have entered different exchanges under the same number."""
    (count, last), (far, past) = (rank.groups.get(group, (0, ())) for rank in (one, other))
    both = min(count, far)
    pairs = zip(_by_number(count, last, both), _by_number(far, past, both), strict=False)
    return any(key != other_key for key, other_key in pairs)


def _by_number(count: int, last: Sequence[int], until: int) -> Iterator[int]:
    """Iterate over the keys of the exchanges up to a number, the newest first."""
    return reversed(last[: len(last) - (count - until)] if count - until < len(last) else [])


def _outlier(places: Mapping[int, str]) -> int:
    """Return the rank at another place than most; of two halves, not that of the lowest rank."""
    votes = Counter(places.values())
    most = max(votes.values())
    usual = next(places[n] for n in sorted(places) if votes[places[n]] == most)
    return min((n for n, what in places.items() if what != usual), default=max(places))
