"""Small boxes between processes of one host: each puts its own where the others look.

A process copies what it gives into its memory and then counts up a number there; who wants it
waits for the number and combines right from that memory.  Every second launch uses the same
slots, so nobody waits for those who read, unless they are two launches behind.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from flow_core.device import Launch
from flow_dist.phases import Box, Gather, Phases, Route, launches_of, routes
from flow_dist.shared import Meeting, Segment, SharedMemory, open_segment
from flow_dist.waiting import PATIENCE, wait

IN_ORDER = platform.machine().lower() in ("x86_64", "amd64")
"""Whether others see what a process stores in the order in which it does so, without barriers."""

GIVEN, TAKEN = 0, 1
"""Positions in the numbers of a process: launches of which it has given, or taken, its boxes."""

SOON = 100
"""Looks with the core offered to others in between, before one waits as for anything else."""

LINE = 64
"""Bytes between numbers that different processes look at."""


def bind_mailboxes(phases: Phases, memory: SharedMemory, meeting: Meeting) -> Iterator[Launch]:
    """The launches of this process's part of an exchange between neighbours."""
    yield from phases.fills
    for gathers in phases.phases:
        yield _bind(phases, gathers, memory, meeting)


@dataclass(slots=True)
class _Mail:
    """A phase: a launch that is different every other time.

    Attributes:
        own: this process's numbers.
        given: the numbers of those from whom it takes.
        taken: the numbers of those to whom it gives.
        copies: what fills the slots, for even and for odd launches.
        gathers: what combines.
        count: launches so far.
    """

    own: Any
    given: tuple[Any, ...]
    taken: tuple[Any, ...]
    copies: tuple[list[Launch], list[Launch]] = field(default_factory=lambda: ([], []))
    gathers: tuple[list[Launch], list[Launch]] = field(default_factory=lambda: ([], []))
    count: int = 0

    def __call__(self) -> None:
        """Runs it."""
        self.count = count = self.count + 1
        if self.taken:
            _until(self.taken, count - 2)
            for copy in self.copies[count & 1]:
                copy()
            self.own[GIVEN] = count
        if self.given:
            _until(self.given, count)
        for gather in self.gathers[count & 1]:
            gather()
        self.own[TAKEN] = count


def _until(numbers: Sequence[Any], count: int) -> None:
    """Waits until some numbers of others have come so far."""
    for number in numbers:
        looks = -PATIENCE.at_once
        while number[0] < count:
            looks += 1
            if looks > SOON:
                wait(partial(_reached, number, count))
            elif looks > 0:
                os.sched_yield()


def _reached(number: Any, count: int) -> bool:
    return bool(number[0] >= count)


class Tokens:
    """Tokens between neighbours, as numbers that only grow: how many each has given each other.

    Args:
        rank, size: this process's rank, and how many processes there are.
        gather: gives what all processes say, in the order of the ranks.
        neighbours: the ranks that this process shares memory with.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        gather: Callable[[bytes], Sequence[bytes]],
        neighbours: Iterable[int],
    ) -> None:
        self._segment = Segment(LINE * size)
        told = gather(b"%d %d %d" % self._segment.place[:3])
        self._given, self._taken = [0] * size, [0] * size
        self._own = [_number(self._segment.bytes, other) for other in range(size)]
        self._theirs = {
            other: _number(open_segment(*map(int, told[other].split())), rank)
            for other in neighbours
            if other != rank
        }

    def launch(self, targets: frozenset[int], sources: frozenset[int]) -> Launch:
        """Gives some processes a token, and waits for one of each of others: a launch."""
        return partial(self._exchange, tuple(sorted(targets)), tuple(sorted(sources)))

    def _exchange(self, targets: tuple[int, ...], sources: tuple[int, ...]) -> None:
        for target in targets:
            self._given[target] += 1
            self._own[target][0] = self._given[target]
        for source in sources:
            self._taken[source] += 1
            _until((self._theirs[source],), self._taken[source])


def _number(memory: Any, rank: int) -> Any:
    """The number for a rank among those of a process."""
    return memoryview(memory[LINE * rank : LINE * rank + 8].view(np.int64))


# ----------------------------------------------------------------------------------- binding


def _bind(
    phases: Phases, gathers: Sequence[Gather], memory: SharedMemory, meeting: Meeting
) -> _Mail:
    found = routes(gathers, meeting.owner)
    targets = sorted({target for source, target in found if source == meeting.rank})
    sources = sorted({source for source, target in found if target == meeting.rank})
    numbers = memory.stage(_numbers())
    numbers[:] = 0
    slots = _slots(found, memory, meeting.rank)
    places = {key: [memory.place_of(slot) for slot in pair] for key, (_, pair) in slots.items()}
    told = {
        other: json.dumps(
            [
                memory.place_of(numbers),
                [places[box.key] for box in found.get((meeting.rank, other), ())],
            ]
        ).encode()
        for other in {*targets, *sources}
    }
    heard = {r: json.loads(text) for r, text in meeting.swap(told, {*targets, *sources}).items()}
    seen = {r: memoryview(memory.open(row[0], None, _numbers())) for r, row in heard.items()}
    mail = _Mail(
        memoryview(numbers),
        tuple([seen[r][GIVEN : GIVEN + 1] for r in sources]),
        tuple([seen[r][TAKEN : TAKEN + 1] for r in targets]),
    )
    arrived = {
        box.key: [memory.open(place, None, box) for place in pair]
        for source in sources
        for box, pair in zip(found[source, meeting.rank], heard[source][1], strict=True)
    }
    meeting.swap(dict.fromkeys(heard, b""), heard)  # others have it open, so it may be given up
    for odd in (0, 1):
        mail.copies[odd].extend([partial(np.copyto, p[odd], b.view) for b, p in slots.values()])
        for gather in gathers:
            if meeting.owner(gather.target.device) == meeting.rank:
                parts = [arrived[p.key][odd] if p.view is None else p.view for p in gather.parts]
                mail.gathers[odd].extend(_combined(phases.combine, gather.target.view, parts))
    return mail


def _combined(combine: Callable[..., Any], target: Any, parts: Sequence[Any]) -> Iterator[Launch]:
    """As `launches_of`, in the same order, but for sums in place, which take numpy longer."""
    if len(parts) < 3:
        yield from launches_of(combine, target, parts)
        return
    between = [np.empty(target.shape, target.dtype) for _ in range(2)]
    total = parts[0]
    for i, part in enumerate(parts[1:], 1):
        out = target if i == len(parts) - 1 else between[i % 2]
        yield partial(combine, total, part, out=out)
        total = out


def _numbers() -> Box:
    return Box("", (), (2,), np.dtype(np.int64))  # what is staged begins a line


def _slots(
    found: Mapping[Route, Sequence[Box]], memory: SharedMemory, rank: int
) -> dict[object, tuple[Box, tuple[Any, Any]]]:
    """Room for each box that this process gives, for even and odd launches, by the box's key."""
    given = {
        box.key: box for (source, _), boxes in found.items() if source == rank for box in boxes
    }
    return {key: (box, (memory.stage(box), memory.stage(box))) for key, box in given.items()}
