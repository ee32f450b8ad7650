"""Exchanges of a team: which members have entered them, and whether the members have diverged.

Each function visits every member once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from flow_dist.control.positions import Rank
from flow_dist.control.report import KEY_DIGITS, Team

Waiting = tuple[int, Rank]
"""The number of a rank, and its state."""


def not_entered(team: Team, number: int, ranks: Mapping[int, Rank]) -> list[int]:
    """Return the members that have not entered an exchange of the team."""
    return [n for n in team.ranks if n not in ranks or ranks[n].entered(team) < number]


def divergence(team: Team, ranks: Mapping[int, Rank]) -> tuple[int, int] | None:
    """Return a member whose exchange differs from that of most members, and one of the latter.

    If the team is divided in half, the half with the lowest rank counts as the majority.
    """
    recent = _recent(team, ranks)
    number = _contradiction(set(recent.values()))
    if number is None:
        return None
    keys = {n: key for n, last in recent.items() if (key := _key(*last, number)) is not None}
    votes = Counter(keys.values())
    most = max(votes.values())
    usual = next(key for key in keys.values() if votes[key] == most)
    odd = next(n for n, key in keys.items() if key != usual)
    return odd, next(n for n, key in keys.items() if key == usual)


_Recent = tuple[int, str]
"""Number of exchanges entered, and the keys of the last exchanges."""


def _recent(team: Team, ranks: Mapping[int, Rank]) -> dict[int, _Recent]:
    recent = {}
    for n in team.ranks:
        keys = ranks[n].position.keys.get(team) if n in ranks else None
        if keys:
            recent[n] = ranks[n].entered(team), keys
    return recent


def _contradiction(histories: set[_Recent]) -> int | None:
    """Return the first number under which histories have different exchanges, else None."""
    if len(histories) < 2:
        return None
    known: dict[int, str] = {}
    contradictory = set()
    for count, keys in histories:
        for number in range(count - len(keys) // KEY_DIGITS + 1, count + 1):
            key = _key(count, keys, number)
            if key is not None and known.setdefault(number, key) != key:
                contradictory.add(number)
    return min(contradictory, default=None)


def _key(count: int, keys: str, number: int) -> str | None:
    """Return the key of an exchange, or None if the key is no longer kept."""
    end = len(keys) - (count - number) * KEY_DIGITS
    return keys[end - KEY_DIGITS : end] if KEY_DIGITS <= end <= len(keys) else None
