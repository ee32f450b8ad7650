"""Small boxes between processes of one host: each puts its own where the others look.

A process copies what it gives into its memory and then counts up a number there; who wants it
waits for the number and combines right from that memory.  Launches use some slots in turn, so who
gives waits only for those who are as many launches behind.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from flow_core.device import Launch
from flow_dist.phases import Box, Gather, Phases, Route, copied, launches_of, routes
from flow_dist.shared import Meeting, Segment, SharedMemory, open_segment, sides
from flow_dist.waiting import PATIENCE, wait

IN_ORDER = platform.machine().lower() in ("x86_64", "amd64")
"""Whether others see what a process stores in the order in which it does so, without barriers."""

GIVEN, TAKEN = 0, 8
"""Positions in the numbers of a process: launches of which it has given, or taken, its boxes.

A line of memory apart, as others look at one of them while the other one is written.
"""

SOON = 100
"""Looks with the core offered to others in between, before one waits as for anything else."""

SLOTS = 16
"""Slots at most for a box that goes to processes which give nothing in turn."""

SMALL = 1 << 16
"""Bytes that all slots of a box may have; two slots may have more."""

LINE = 64
"""Bytes between numbers that different processes look at."""


def bind_mailboxes(phases: Phases, memory: SharedMemory, meeting: Meeting) -> Iterator[Launch]:
    """The launches of this process's part of an exchange between neighbours."""
    yield from phases.fills
    for gathers in phases.phases:
        yield _bind(phases, gathers, memory, meeting)


@dataclass(slots=True)
class _Mail:
    """A phase: a launch that goes on to the next slots each time.

    Attributes:
        own: this process's numbers.
        given: the numbers of those from whom it takes.
        taken: the numbers of those to whom it gives, and who do not give it anything.
        copies: what fills the slots, by the remainder of the number of the launch.
        gathers: what combines, likewise.
        room: the last launch for which slots are known to be free.
        count: launches so far.
    """

    own: Any
    given: tuple[Any, ...]
    taken: tuple[Any, ...]
    copies: list[list[Launch]]
    gathers: list[list[Launch]]
    room: int
    count: int = 0

    def __call__(self) -> None:
        """Runs it."""
        self.count = count = self.count + 1
        if count > self.room:
            self._make_room(count)
        slot = count % len(self.copies)
        for copy in self.copies[slot]:
            copy()
        self.own[GIVEN] = count
        for number in self.given:
            if number[0] < count:
                _until(number, count)
        for gather in self.gathers[slot]:
            gather()
        self.own[TAKEN] = count

    def _make_room(self, count: int) -> None:
        """Waits until all have taken what the slots of a launch had before."""
        slots = len(self.copies)
        for number in self.taken:
            _until(number, count - slots)
        self.room = min([number[0] for number in self.taken]) + slots


def _until(number: Any, count: int) -> None:
    """Waits until a number of another process has come so far."""
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
            _until(self._theirs[source], self._taken[source])


def _number(memory: Any, rank: int) -> Any:
    """The number for a rank among those of a process."""
    return memoryview(memory[LINE * rank : LINE * rank + 8].view(np.int64))


# ----------------------------------------------------------------------------------- binding


def _bind(
    phases: Phases, gathers: Sequence[Gather], memory: SharedMemory, meeting: Meeting
) -> _Mail:
    found = routes(gathers, meeting.owner)
    targets, sources = sides(found, meeting.rank)
    slots, depth = _slots(found, memory, meeting.rank), _depth(found)
    numbers = memory.stage(_numbers())
    numbers[:] = 0
    told = {
        other: _told(memory, numbers, slots, found.get((meeting.rank, other), ()))
        for other in targets | sources
    }
    heard = {r: json.loads(text) for r, text in meeting.swap(told, targets | sources).items()}
    seen = {r: memoryview(memory.open(row[0], None, _numbers())) for r, row in heard.items()}
    arrived = {
        box.key: [memory.open(place, None, box) for place in row]
        for source in sources
        for box, row in zip(found[source, meeting.rank], heard[source][1], strict=True)
    }
    meeting.swap(dict.fromkeys(heard, b""), heard)  # others have it open, so it may be given up
    own = [g for g in gathers if meeting.owner(g.target.device) == meeting.rank]
    waited = targets - sources
    return _Mail(
        memoryview(numbers),
        tuple([seen[r][GIVEN : GIVEN + 1] for r in sorted(sources)]),
        tuple([seen[r][TAKEN : TAKEN + 1] for r in sorted(waited)]),
        [[copied(row[slot], box.view) for box, row in slots.values()] for slot in range(depth)],
        [list(_gathered(phases.combine, own, arrived, slot)) for slot in range(depth)],
        depth if waited else sys.maxsize,
    )


def _told(
    memory: SharedMemory, numbers: Any, slots: Mapping[object, Any], boxes: Iterable[Box]
) -> bytes:
    """What another process must know: where the numbers lie, and the slots of what it gets."""
    places = [[memory.place_of(slot) for slot in slots[box.key][1]] for box in boxes]
    return json.dumps([memory.place_of(numbers), places]).encode()


def _gathered(
    combine: Callable[..., Any],
    gathers: Iterable[Gather],
    arrived: Mapping[tuple[object, ...], Sequence[Any]],
    slot: int,
) -> Iterator[Launch]:
    """Combines what is in a process's own boxes, and in some slots of others."""
    for gather in gathers:
        parts = [arrived[p.key][slot] if p.view is None else p.view for p in gather.parts]
        yield from _combined(combine, gather.target.view, parts)


def _combined(combine: Callable[..., Any], target: Any, parts: Sequence[Any]) -> Iterator[Launch]:
    """As `launches_of`, in the same order, but for sums in place, which take numpy longer."""
    if len(parts) < 3:
        yield from launches_of(combine, target, parts)
        return
    between = [np.empty(target.shape, target.dtype) for _ in range(2)]
    total = parts[0]
    for i, part in enumerate(parts[1:], 1):
        out = target if i == len(parts) - 1 else between[i % 2]
        yield partial(combine, total, part, out)
        total = out


def _numbers() -> Box:
    return Box("", (), (2 * TAKEN,), np.dtype(np.int64))  # what is staged begins a line


def _depth(found: Mapping[Route, Sequence[Box]]) -> int:
    """How many slots each box has.

    Where all get something from those to whom they give, two are enough: who has got what another
    one gave at the last launch knows that it has taken all that came before.
    """
    if all((target, source) in found for source, target in found):
        return 2
    largest = max(box.nbytes for boxes in found.values() for box in boxes)
    return max(2, min(SLOTS, SMALL // max(1, largest)))


def _slots(
    found: Mapping[Route, Sequence[Box]], memory: SharedMemory, rank: int
) -> dict[object, tuple[Box, list[Any]]]:
    """Room for each box that this process gives, for launches in turn, by the box's key."""
    given = {
        box.key: box for (source, _), boxes in found.items() if source == rank for box in boxes
    }
    depth = _depth(found)
    return {key: (box, [memory.stage(box) for _ in range(depth)]) for key, box in given.items()}
