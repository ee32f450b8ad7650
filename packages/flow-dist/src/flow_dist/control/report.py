"""Reports of ranks' positions: each report holds what has changed since the previous report.

A rank numbers its groups of ranks and its sites, and describes each of them once; later reports
refer to them by number.  The server keeps one `Team` or `Place` for equal descriptions, whichever
ranks they come from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flow_dist.control.ranges import from_runs, ranks_text, to_runs
from flow_dist.control.watch import Group, Site, Watch, line_of_main
from flow_dist.control.wire import WireError
from flow_dist.control.wire import field as field_of

MAX_GROUPS = 256
"""Maximum number of groups in one report; other groups follow in the next reports."""

MAX_RUNS = 1 << 14
"""Number of runs of ranks in one report above which other new groups follow in the next reports."""

KEY_DIGITS = 8
"""Number of hexadecimal digits of an exchange's key."""

NOWHERE = -1
"""The number that a process reports instead of a site's number if it is not waiting."""


# --------------------------------------------------------------------------------------- ranks


class Reporter:
    """A reporter of this process's position to one server."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._sent: dict[str, Any] = {}
        self._groups: dict[Group, _Sent] = {}
        self._sites: dict[Site, int] = {}

    def changes(self) -> dict[str, Any]:
        """Return what has changed since the last call; reports must be sent in the order of calls.

        The keys of a group's exchanges are reported only once the group's count is the same in two
        successive calls, because the keys only matter if the group makes no progress.
        """
        watch = self._watch
        seen = [(group, group.current, group.count) for group in watch.groups()]
        waiting = [(count, site) for _, site, count in seen if site is not None]
        _, site = max(waiting, key=lambda pair: pair[0], default=(0, None))  # one of several
        counted = [(group, count) for group, _, count in seen]
        changes: dict[str, Any] = {}
        if site is not None:
            counted.sort(key=lambda pair: pair[0] is not site.group)
        teams, counts = self._counts(counted)
        for name, values in (("teams", teams), ("counts", counts)):
            if values:
                changes[name] = values
        if site is not None and site not in self._sites:
            number = self._sites[site] = len(self._sites)
            team = self._groups[site.group].number
            changes["sites"] = [[number, site.op, site.what, site.at, team]]
        state = {
            "step": int(watch.steps),
            "finished": watch.finished,
            "sequence": sum([count for _, count in counted]),
            "line": line_of_main(),
            "site": NOWHERE if site is None else self._sites[site],
        }
        changes |= {name: value for name, value in state.items() if self._sent.get(name) != value}
        self._sent = state
        return changes

    def _counts(self, counted: Sequence[tuple[Group, int]]) -> tuple[list[Any], list[Any]]:
        """Return descriptions of new groups, and the counts and keys that have not been sent."""
        teams: list[Any] = []
        counts: list[Any] = []
        runs = 0
        for group, count in counted:
            sent = self._groups.get(group)
            if count == 0 or (sent is not None and sent.count == sent.keys == count):
                continue
            if len(counts) == MAX_GROUPS or runs > MAX_RUNS:
                break
            if sent is None:
                sent = self._groups[group] = _Sent(len(self._groups))
                teams.append([sent.number, to_runs(group.ranks), group.lane])
                runs += len(teams[-1][1])
            if sent.count != count:
                counts.append([sent.number, count])
                sent.count = count
            else:
                keys = "".join([f"{key:08x}" for key in group.keys(count)])
                counts.append([sent.number, count, keys])
                sent.keys = count if keys else -1
        return teams, counts


@dataclass(slots=True)
class _Sent:
    """The data about a group that the server has received."""

    number: int  # number of the group in reports
    count: int = -1  # the last count sent, and the last count whose keys have been sent
    keys: int = -1


# -------------------------------------------------------------------------------------- server


@dataclass(frozen=True, slots=True, eq=False)
class Team:
    """Ranks that exchange with each other in one order; one object serves all members."""

    ranks: Sequence[int]  # the members, in ascending order
    lane: str  # distinguishes independent orders of exchanges
    members: Collection[int]  # the members, in a container with a fast ``in``
    text: str  # the members, as a text for messages


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A site of the program; one object serves all ranks."""

    op: str  # see `Watch.site`
    what: str
    at: str
    team: Team  # the ranks that exchange there


class Names:
    """The teams and places of a job, looked up by their descriptions."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._teams: dict[tuple[object, ...], Team] = {}
        self._places: dict[tuple[object, ...], Place] = {}

    def team(self, runs: Any, lane: Any) -> Team:
        """Return the team with a description.  Raises `WireError`."""
        _check(isinstance(lane, str) and isinstance(runs, list), (runs, lane), "ranks and a lane")
        end = 0
        for run in runs:
            _check_numbers(run, 3)
            start, stop, step = run
            _check(end <= start < stop <= self._size and step > 0, run, "ascending ranks")
            end = stop
        key = (lane, *map(tuple, runs))
        team = self._teams.get(key)
        if team is None:
            ranks = from_runs(runs)
            members = ranks if isinstance(ranks, range) else frozenset(ranks)
            team = self._teams[key] = Team(ranks, lane, members, ranks_text(ranks))
        return team

    def place(self, op: Any, what: Any, at: Any, team: Team) -> Place:
        """Return the place with a description.  Raises `WireError`."""
        texts = (op, what, at)
        _check(all(isinstance(text, str) for text in texts), texts, "texts")
        return self._places.setdefault((*texts, team), Place(op, what, at, team))


FIELDS = frozenset({"step", "finished", "sequence", "line", "teams", "sites", "counts", "site"})
"""The fields of a report; see `Position.update`."""


@dataclass(slots=True)
class Position:
    """The position of a rank, according to its reports."""

    step: int = 0  # the step that the rank has reached
    finished: int = 0  # number of finished steps
    sequence: int = 0  # number of exchanges that the rank has entered
    line: str = ""  # the user's source line that the rank's main thread executes
    place: Place | None = None  # where the rank waits for other ranks; None if it does not wait
    # Number of exchanges that the rank has entered, for each team.
    counts: dict[Team, int] = field(default_factory=dict)
    # For each team, the keys of the last exchanges, `KEY_DIGITS` digits each; reported once the
    # count stays the same.
    keys: dict[Team, str] = field(default_factory=dict)
    _teams: dict[int, Team] = field(default_factory=dict)
    _places: dict[int, Place] = field(default_factory=dict)

    @property
    def op(self) -> str:
        """The exchange in which the rank waits, else ""."""
        return "" if self.place is None else self.place.op

    @property
    def at(self) -> str:
        """The source line of the place where the rank waits, else of its main thread."""
        return self.line if self.place is None else self.place.at

    @property
    def number(self) -> int:
        """The number of the exchange in which the rank waits, among the exchanges of its team."""
        return 0 if self.place is None else self.counts.get(self.place.team, 0)

    def update(self, changes: Mapping[str, Any], names: Names) -> None:
        """Apply the changes of a report.  Raises `WireError` for invalid changes."""
        unknown = sorted(changes.keys() - FIELDS)
        _check(not unknown, unknown, f"the fields {', '.join(sorted(FIELDS))}")
        for name in ("step", "finished", "sequence"):
            if name in changes:
                setattr(self, name, field_of(changes, name, int))
        if "line" in changes:
            self.line = field_of(changes, "line", str)
        for number, runs, lane in _entries(changes, "teams", 3):
            self._teams[number] = names.team(runs, lane)
        for number, op, what, at, team in _entries(changes, "sites", 5):
            self._places[number] = names.place(op, what, at, self._team(team))
        for entry in _entries(changes, "counts", 2, 3):
            self._count(*entry)
        if "site" in changes:
            number = field_of(changes, "site", int)
            known = number == NOWHERE or number in self._places
            _check(known, number, "the number of a site that was described")
            self.place = self._places.get(number)

    def _count(self, number: int, count: Any, keys: Any = "") -> None:
        team = self._team(number)
        _check_numbers([count], 1)
        _check(isinstance(keys, str) and len(keys) % KEY_DIGITS == 0, keys, "keys of exchanges")
        self.counts[team], self.keys[team] = count, keys

    def _team(self, number: Any) -> Team:
        _check(isinstance(number, int) and number in self._teams, number, "a described group")
        return self._teams[number]


def _entries(changes: Mapping[str, Any], name: str, *lengths: int) -> Iterator[list[Any]]:
    """Iterate over the lists of a field, each of which starts with a number."""
    for entry in field_of({name: [], **changes}, name, list):
        _check(isinstance(entry, list) and len(entry) in lengths, entry, f"{lengths} values")
        _check_numbers(entry[:1], 1)
        yield entry


def _check_numbers(values: object, length: int) -> None:
    fine = isinstance(values, list) and [type(value) for value in values] == [int] * length
    _check(fine, values, f"{length} whole numbers")


def _check(ok: bool, found: object, allowed: str) -> None:
    if not ok:
        raise WireError("a report of a rank's position", found=f"{found!r:.40}", allowed=allowed)
