"""Compact forms of sets of ranks and of lists of equal values, for messages and for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

_LISTED = 4
"""Number of consecutive ranks that `ranks_text` lists singly; longer sequences become ranges."""


def to_runs(ranks: Sequence[int]) -> list[list[int]]:
    """Split ascending ranks into ranges ``[start, stop, step]``, greedily.

    >>> to_runs([0, 1, 2, 3, 8, 16, 24, 30])
    [[0, 4, 1], [8, 25, 8], [30, 31, 1]]
    """
    runs, first = [], 0
    while first < len(ranks):
        last = first
        step = ranks[first + 1] - ranks[first] if first + 1 < len(ranks) else 1
        while last + 1 < len(ranks) and ranks[last + 1] - ranks[last] == step:
            last += 1
        runs.append([ranks[first], ranks[last] + 1, step if last > first else 1])
        first = last + 1
    return runs


def from_runs(runs: Iterable[Sequence[int]]) -> Sequence[int]:
    """Return the ranks that `to_runs` has split; as a range if there is only one run.

    >>> from_runs([[0, 4, 1]]), from_runs([[0, 2, 1], [8, 25, 8]])
    (range(0, 4), (0, 1, 8, 16, 24))
    """
    parts = [range(start, stop, step) for start, stop, step in runs]
    return parts[0] if len(parts) == 1 else tuple(rank for part in parts for rank in part)


def ranks_text(ranks: Iterable[int]) -> str:
    """Return a text of ascending ranks.

    >>> ranks_text([0, 1, 2]), ranks_text([*range(319), 320])
    ('0, 1, 2', '0-318, 320')
    """
    sequences = groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])
    return ", ".join(_sequence_text([rank for _, rank in pairs]) for _, pairs in sequences)


def _sequence_text(ranks: Sequence[int]) -> str:
    if len(ranks) > _LISTED:
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


def pack_equal(values: Iterable[Any]) -> list[list[Any]]:
    """Merge equal consecutive JSON values into ``[value, count]``.

    >>> pack_equal(["a", "a", "b", 1, True])
    [['a', 2], ['b', 1], [1, 1], [True, 1]]
    """
    merged = groupby(values, lambda value: (repr(value), value))
    return [[value, len(list(same))] for (_, value), same in merged]


def unpack_equal(merged: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the values that `pack_equal` has merged.

    >>> unpack_equal([["a", 2], ["b", 1]])
    ['a', 'a', 'b']
    """
    return [value for value, count in merged for _ in range(count)]
