"""The graph of which ranks wait for which, and the ranks at which the waiting begins.

A rank in an exchange waits for the members that have not entered it.  A chain of waits ends at a
rank that waits for none: the rank is at work, or has ended, or all members have entered its
exchange, which does not complete.  If no chain ends, ranks wait in a circle.

Building and searching the graph takes time proportional to the members of all exchanges in which
ranks wait.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flow_dist.control import exchanges
from flow_dist.control.positions import Rank
from flow_dist.control.ranges import ranks_text
from flow_dist.control.report import Team

Pending = tuple[Team, int]
"""An exchange in which ranks wait: its team, and its number among the exchanges of the team."""

MAX_CANDIDATES = 16
"""Number of ranks of a circle, one of which may be on all circles, that `WaitGraph` examines."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why ranks wait."""

    rank: int  # a rank at fault
    text: str  # a description that names all ranks at fault
    is_circle: bool = False  # whether the ranks at fault wait for each other


class WaitGraph:
    """The graph of waits of a job."""

    def __init__(self, ranks: Mapping[int, Rank]) -> None:
        self._ranks = ranks
        self._pending: dict[int, Pending] = {}
        self._missing: dict[Pending, list[int]] = {}
        self._waiters: defaultdict[Pending, list[int]] = defaultdict(list)
        self._awaited_in: defaultdict[int, list[Pending]] = defaultdict(list)
        for number, rank in sorted(ranks.items()):
            place = rank.position.place
            if place is not None and rank.is_open:
                pending = place.team, rank.position.number
                self._pending[number] = pending
                self._waiters[pending].append(number)
        for pending in self._waiters:
            self._missing[pending] = exchanges.not_entered(*pending, ranks)
            for number in self._missing[pending]:
                self._awaited_in[number].append(pending)

    def cause(self, number: int | None = None) -> Cause | None:
        """Return why a rank waits, by default why any rank waits; None if none does."""
        starts = self._pending if number is None else self._pending.keys() & {number}
        reached = self._reached_from(starts)
        ends = sorted(n for n in reached if not self._awaited_by(n))
        if ends:
            return self._ends(ends)
        return self._circle(reached) if reached else None

    def _awaited_by(self, number: int) -> Sequence[int]:
        """Return the ranks for which a rank waits."""
        pending = self._pending.get(number)
        return () if pending is None else self._missing[pending]

    def _reached_from(self, starts: Iterable[int]) -> set[int]:
        """Return the given ranks and those for which they wait, directly or through others."""
        reached, todo, seen = set(starts), list(starts), set[Pending]()
        while todo:
            pending = self._pending.get(todo.pop())
            if pending is not None and pending not in seen:
                seen.add(pending)
                new = [n for n in self._missing[pending] if n not in reached]
                reached.update(new)
                todo += new
        return reached

    def _blocked_by(self, ends: Iterable[int]) -> set[int]:
        """Return the ranks that wait for the given ones, directly or through others."""
        blocked, todo, seen = set[int](), list(ends), set[Pending]()
        while todo:
            for pending in self._awaited_in[todo.pop()]:
                if pending not in seen:
                    seen.add(pending)
                    blocked.update(self._waiters[pending])
                    todo += self._waiters[pending]
        return blocked

    def _direct_waiters(self, number: int) -> int:
        return sum(len(self._waiters[pending]) for pending in self._awaited_in[number])

    # -------------------------------------------------------------------- causes

    def _ends(self, ends: Sequence[int]) -> Cause:
        """Describe the ranks at the ends of all chains."""
        awaited = [n for n in ends if n not in self._pending]
        texts = []
        if awaited:
            blocked = _named(sorted(self._blocked_by(awaited)), "waits", "wait")
            texts.append(f"{blocked} for {_named(awaited, 'which waits', 'which wait')} for none")
        complete = dict.fromkeys(self._pending[n] for n in ends if n in self._pending)
        for waiters in map(self._waiters.__getitem__, complete):
            where = _place(self._ranks[waiters[0]])
            texts.append(
                f"{_named(waiters, 'is', 'are')} {where}, which all its ranks have entered"
            )
        rank = max(awaited or ends, key=lambda n: (self._direct_waiters(n), -n))
        return Cause(rank, "; ".join(texts))

    def _circle(self, reached: Collection[int]) -> Cause:
        """Describe a circle; begin with a rank that is on all circles, if there is one."""
        found = self._some_circle(min(reached))
        if len(found) <= MAX_CANDIDATES:
            on_all = [n for n in found if self._has_no_circle(reached, without=n)]
            found = on_all or found
        first = max(found, key=lambda n: (self._direct_waiters(n), -n))
        circle = self._shortest_circle(first)
        steps = zip(circle, [*circle[1:], first], strict=True)
        waits = [f"rank {n} {_place(self._ranks[n])} for rank {other}" for n, other in steps]
        return Cause(first, f"ranks wait in a circle: {', '.join(waits)}", is_circle=True)

    def _some_circle(self, start: int) -> list[int]:
        """Follow the lowest ranks that are awaited until one repeats; return the circle."""
        path: dict[int, int] = {}
        while start not in path:
            path[start] = len(path)
            start = self._awaited_by(start)[0]
        return list(path)[path[start] :]

    def _has_no_circle(self, ranks: Collection[int], without: int) -> bool:
        """Return whether all chains of waits between some ranks end, if one rank waited for none.

        The ranks whose exchanges lack no other rank are removed until none is left.
        """
        lacking = {pending: len(missing) for pending, missing in self._missing.items()}
        removed, todo = {without}, [without]
        while todo:
            for pending in self._awaited_in[todo.pop()]:
                lacking[pending] -= 1
                if not lacking[pending]:
                    new = [n for n in self._waiters[pending] if n not in removed]
                    removed.update(new)
                    todo += new
        return removed.issuperset(ranks)

    def _shortest_circle(self, first: int) -> list[int]:
        """Return the ranks of a shortest circle through a rank, which is on a circle."""
        came_from: dict[int, int] = {}
        queue, seen = deque([first]), set[Pending]()
        while first not in came_from:
            pending = self._pending[number := queue.popleft()]
            if pending not in seen:
                seen.add(pending)
                new = [n for n in self._missing[pending] if n not in came_from]
                came_from.update(dict.fromkeys(new, number))
                queue += new
        circle = [came_from[first]]
        while circle[-1] != first:
            circle.append(came_from[circle[-1]])
        return circle[::-1]


def _named(numbers: Sequence[int], one: str, many: str) -> str:
    """Return ranks as the subject of a verb.

    >>> _named([2], "waits", "wait"), _named([0, 1], "waits", "wait")
    ('rank 2 waits', 'ranks 0, 1 wait')
    """
    plural = len(numbers) > 1
    comma = "," if one.startswith("which") else ""
    return f"rank{'s' * plural} {ranks_text(numbers)}{comma} {many if plural else one}"


def _place(rank: Rank) -> str:
    at = f" ({rank.position.at})" if rank.position.at else ""
    return f"in {rank.op!r}{at}"
