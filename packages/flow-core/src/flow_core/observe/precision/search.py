"""The search for the smallest set of ops to keep in float32.

Errors of several ops may cancel, so that a set which holds a tolerance may have larger ones that do
not, and only a trial of all smaller sets proves that a set is the smallest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

Error = Callable[[frozenset[str]], float]
"""Returns the error if the given ops are in float32, in units of the tolerance."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A set of ops that holds a tolerance in float32."""

    ops: tuple[str, ...]  # the ops, in the order of the candidates
    error: float  # the error with these ops in float32, in units of the tolerance
    trials: int  # the number of sets that were tried
    tried_below: int  # all sets with fewer ops than this were tried, and none of them holds

    @property
    def smallest(self) -> bool:
        """Whether trials have shown that no smaller set holds the tolerance."""
        return self.tried_below >= len(self.ops)


def smallest_set(candidates: Sequence[str], error: Error, budget: int) -> Kept | None:
    """Return a small set of ops whose computation in float32 holds the tolerance.

    First greedily: ops are ordered by the error that each one causes if all others are in float32;
    bisection finds a number of the worst ones that is enough, and each one that is not needed is
    dropped again.  Then all smaller sets are tried, those with the fewest ops first, as far as the
    budget allows.

    >>> errors = {"a": 0.5, "b": 0.7, "c": 0.4}
    >>> found = smallest_set(
    ...     "abc", lambda kept: sum(errors.values()) - sum(errors[k] for k in kept), 9
    ... )
    >>> found.ops, found.smallest
    (('b',), True)

    Args:
        candidates: the ops that may be kept.
        error: the error for a set, in units of the tolerance.
        budget: the number of sets that the second part may try.

    Returns:
        The set; None if the tolerance does not even hold with all candidates in float32.
    """
    known: dict[frozenset[str], float] = {}

    def tried(kept: frozenset[str]) -> float:
        if kept not in known:
            known[kept] = error(kept)
        return known[kept]

    def result(kept: frozenset[str], below: int) -> Kept:
        return Kept(tuple(n for n in candidates if n in kept), known[kept], len(known), below)

    if tried(frozenset()) <= 1:
        return result(frozenset(), 0)
    if tried(frozenset(candidates)) > 1:
        return None
    kept = _greedy(candidates, tried)
    size, left = 1, budget
    while size < len(kept) and comb(len(candidates), size) <= left:
        left -= comb(len(candidates), size)
        for row in map(frozenset, combinations(candidates, size)):
            if tried(row) <= 1:
                return result(row, size)
        size += 1
    return result(kept, size)


def _greedy(candidates: Sequence[str], tried: Error) -> frozenset[str]:
    every = frozenset(candidates)
    worst = sorted(candidates, key=lambda name: -tried(every - {name}))
    low, high = 0, len(worst)  # the first `high` ops hold the tolerance
    while high - low > 1:
        middle = (low + high) // 2
        if tried(frozenset(worst[:middle])) <= 1:
            high = middle
        else:
            low = middle
    kept = frozenset(worst[:high])
    for name in reversed(worst[:high]):
        if tried(kept - {name}) <= 1:
            kept -= {name}
    return kept
