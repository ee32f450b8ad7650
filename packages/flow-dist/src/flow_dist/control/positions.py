"""The ranks of a job, and texts that describe their positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from flow_dist.control.ranges import ranks_text
from flow_dist.control.report import Position, Team

MAX_LINES = 32
"""Maximum number of ranks that get a line each; in larger jobs, ranks at one place share a line."""


@dataclass(slots=True)
class Rank:
    """One rank, according to its last messages."""

    host: str  # name of the rank's host, and source address of its connection
    address: str
    heard: float  # time of the rank's last message
    since: float  # time at which the rank first reported its current position
    position: Position = field(default_factory=Position)  # according to its reports
    ended: int | None = None  # exit status of the rank once it has said goodbye
    # Time at which the rank's connection was lost; None while it is connected.
    gone: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the rank has neither disconnected nor said goodbye."""
        return self.gone is None and self.ended is None

    @property
    def op(self) -> str:
        """The exchange in which the rank waits, else ""."""
        return self.position.op if self.ended is None else ""

    @property
    def step(self) -> int:
        """The step that the rank has reached."""
        return self.position.step

    def silent(self, now: float, limit: float) -> bool:
        """Return whether the rank is connected, but has sent nothing for ``limit`` seconds."""
        return self.gone is None and now - self.heard > limit

    def entered(self, team: Team) -> int:
        """Return the number of exchanges of a team that the rank has entered."""
        return self.position.counts.get(team, 0)


def positions(ranks: Mapping[int, Rank], size: int, now: float, quiet: float) -> list[str]:
    """Return lines that describe the positions of all ranks.

    Args:
        quiet: number of seconds without a message from which a line mentions the silence.
    """
    if size <= MAX_LINES:
        return [f"  rank {n}: {_line(ranks.get(n), now, quiet)}" for n in range(size)]
    places: dict[str, list[int]] = {}
    for n in range(size):
        places.setdefault(_shared_line(ranks.get(n), now, quiet), []).append(n)
    by_size = sorted(places.items(), key=lambda item: len(item[1]))
    shown = [*by_size[: MAX_LINES - 1], *by_size[MAX_LINES - 1 :][-1:]]  # rare groups, the largest
    lines = []
    for text, members in sorted(shown, key=lambda item: item[1][0]):
        alone = len(members) == 1
        line = _line(ranks.get(members[0]), now, quiet) if alone else text
        lines.append(f"  rank{'' if alone else 's'} {ranks_text(members)}: {line}")
    if rest := size - sum(len(members) for _, members in shown):
        lines.append(f"  {rest} more ranks at {len(places) - len(shown)} other places")
    return lines


def position(rank: Rank) -> str:
    """Return a text with the step of a rank and the place where it is."""
    at = f" ({rank.position.at})" if rank.position.at else ""
    place = rank.position.place
    if place is None or rank.ended is not None:
        return f"at work at step {rank.step}{at}"
    ranks = f"waiting for ranks {place.team.text}"
    return f"at step {rank.step} in {rank.op!r}{at}, {place.what}, {ranks}"


def outlier(places: Mapping[int, str]) -> int:
    """Return a rank that is not where most ranks are; in a tie, not where the lowest rank is."""
    votes = Counter(places.values())
    most = max(votes.values())
    usual = next(places[n] for n in sorted(places) if votes[places[n]] == most)
    return min((n for n, what in places.items() if what != usual), default=max(places))


def _line(rank: Rank | None, now: float, quiet: float) -> str:
    if rank is None:
        return "never joined"
    if rank.ended is not None:
        return f"on {rank.host}, ended with status {rank.ended}"
    unheard = now - rank.heard
    heard = f", last heard {unheard:.1f} s ago" if unheard > quiet else ""
    if rank.gone is not None:
        heard = f", disconnected {now - rank.gone:.1f} s ago"
    where = f"{position(rank)}, for {now - rank.since:.1f} s"
    return f"on {rank.host}, {where}{heard}{_called(rank)}"


def _shared_line(rank: Rank | None, now: float, quiet: float) -> str:
    """Return a text that is equal for all ranks in the same situation."""
    if rank is None:
        return "never joined"
    if rank.ended is not None:
        return f"ended with status {rank.ended}"
    state = ", not heard lately" if now - rank.heard > quiet else ""
    if rank.gone is not None:
        state = ", disconnected"
    return f"{position(rank)}{state}{_called(rank)}"


def _called(rank: Rank) -> str:
    line = rank.position.line
    return f", called at {line}" if rank.op and line not in ("", rank.position.at) else ""
