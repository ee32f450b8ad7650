"""Small boxes between processes of one host: each puts its own where the others look.

A process copies what it gives into its memory and then counts up there; who wants it waits for
the count and combines right from that memory.  Launches use some slots in turn, so who gives waits
only for those who are as many launches behind.  Processes that run on one core after the other
share sums: the first one leaves them for those who come later.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from ctypes import c_int64
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flow_core.device import Launch
from flow_core.sharding.topology import Device
from flow_dist.control.waiting import PATIENCE
from flow_dist.phases import Box, Gather, Phases, Route, copied, in_turn, launches_of, routes
from flow_dist.shm.counters import LINE, Watched, counter, until, watched
from flow_dist.shm.memory import Rendezvous, SharedMemory, sides

SLOTS = 16
"""Slots at most for a box that goes to processes which give nothing in turn."""

SMALL = 1 << 16
"""Bytes that all slots of a box may have; two slots may have more."""

MANY = 3
"""Parts from which on it takes longer to sum them up than to copy the sum."""

Key = tuple[object, ...]
"""Of a box; or of a sum, the keys of its parts."""

Rows = Mapping[Key, Sequence[Any]]
"""Arrays for launches in turn."""

Wanted = dict[Key, list[Gather]]
"""The gathers of a process, by the keys of their parts."""


def bind_exchange(phases: Phases, memory: SharedMemory, meeting: Rendezvous) -> Iterator[Launch]:
    """The launches of this process's part of an exchange between neighbours."""
    yield from phases.fills
    for gathers in phases.phases:
        yield _bind(phases.combine, gathers, memory, meeting).launch


@dataclass(slots=True)
class _Mail:
    """A phase: a launch that goes on to the next slots each time.

    Attributes:
        own: this process's counters.
        given: those of the processes from which it takes.
        taken: those of the processes to which it gives, and which do not give it anything.
        slots: what to do, by the remainder of the number of the launch.
        room: the last launch for which slots are known to be free.
        count: launches so far.
    """

    own: _Counters
    given: tuple[Watched, ...]
    taken: tuple[Watched, ...]
    slots: tuple[_Slot, ...]
    room: int
    count: int = 0

    def launch(self) -> None:
        """Runs it."""
        self.count = count = self.count + 1
        if count > self.room:
            self._make_room(count)
        copy, sums, gathers = self.slots[count % len(self.slots)]
        given, taken, summed = self.own
        copy()
        given.value = count
        for other, looks in self.given:
            if other.value < count:
                until(other, count, looks)
        for other, fetch in sums:
            if other.value == count:  # no more: who sums up the next one has this process's boxes
                fetch()
                break
        else:
            for gather in gathers:
                gather()
            summed.value = count
        taken.value = count

    def _make_room(self, count: int) -> None:
        """Waits until all have taken what the slots of a launch had before."""
        slots = len(self.slots)
        for taken, looks in self.taken:
            until(taken, count - slots, looks)
        self.room = min([taken.value for taken, _ in self.taken]) + slots


class _Slot(NamedTuple):
    """What to do for a launch.

    Attributes:
        copy: fills the slot.
        sums: counters of those who may have left the same sums, and what fetches these.
        gathers: combine what is in the slots of others, and leave the sums.
    """

    copy: Launch
    sums: list[tuple[c_int64, Launch]]
    gathers: list[Launch]


class _Counters(NamedTuple):
    """How many launches a process has given its boxes of, taken others, and left its sums of."""

    given: c_int64
    taken: c_int64
    summed: c_int64


# ----------------------------------------------------------------------------------- binding


@dataclass(frozen=True, slots=True)
class _Left:
    """What a process leaves where others find it.

    Attributes:
        counters: the memory of its counters.
        boxes: what it gives.
        sums: its sums, where others may take them.
    """

    counters: Any
    boxes: Rows
    sums: Rows

    def told(self, memory: SharedMemory, boxes: Iterable[Box]) -> bytes:
        """What another process must know, which gets some boxes."""
        rows = [self.boxes[box.key] for box in boxes], self.sums.values()
        places = [[[memory.place_of(slot) for slot in row] for row in part] for part in rows]
        return json.dumps([memory.place_of(self.counters), *places]).encode()

    def count(self) -> _Counters:
        """Its counters."""
        return _Counters(*[counter(self.counters, line) for line in range(3)])


def _bind(
    combine: Callable[..., Any],
    gathers: Sequence[Gather],
    memory: SharedMemory,
    meeting: Rendezvous,
) -> _Mail:
    found = routes(gathers, meeting.owner)
    targets, sources = sides(found, meeting.rank)
    wanted = _wanted(gathers, meeting.owner)
    mine, depth = wanted.get(meeting.rank, {}), _depth(found)
    partners = _partners(wanted, meeting.rank, targets & sources & PATIENCE.near)
    given = {
        b.key: b for (source, _), boxes in found.items() if source == meeting.rank for b in boxes
    }
    own = _Left(
        memory.stage(_COUNTERS),
        _staged(memory, given, depth),
        _staged(memory, _sums(mine) if partners else {}, depth),
    )
    own.counters[:] = 0
    others = _met(own, found, {r: _sums(wanted[r]) for r in partners}, memory, meeting)
    counts = {r: left.count() for r, left in others.items()}
    arrived = {key: row for left in others.values() for key, row in left.boxes.items()}
    waited = targets - sources
    return _Mail(
        own.count(),
        watched({r: counts[r].given for r in sorted(sources)}),
        watched({r: counts[r].taken for r in sorted(waited)}),
        tuple(
            _Slot(
                in_turn([copied(own.boxes[key][slot], box.view) for key, box in given.items()]),
                [
                    (counts[r].summed, in_turn(_copies(mine, others[r].sums, slot)))
                    for r in partners
                ],
                list(_gathered(combine, mine, arrived, own.sums, slot)),
            )
            for slot in range(depth)
        ),
        depth if waited else sys.maxsize,
    )


def _met(
    own: _Left,
    found: Mapping[Route, Sequence[Box]],
    sums: Mapping[int, Mapping[Key, Box]],
    memory: SharedMemory,
    meeting: Rendezvous,
) -> dict[int, _Left]:
    """Shows others what is left for them, and opens what they leave: boxes, and sums of some."""
    targets, sources = sides(found, meeting.rank)
    told = {r: own.told(memory, found.get((meeting.rank, r), ())) for r in targets | sources}
    others = {}
    for r, text in meeting.swap(told, told.keys()).items():
        place, boxes, left = json.loads(text)
        others[r] = _Left(
            memory.open(place, None, _COUNTERS),
            _opened(memory, {box.key: box for box in found.get((r, meeting.rank), ())}, boxes),
            _opened(memory, sums[r], left) if r in sums else {},
        )
    meeting.swap(dict.fromkeys(told, b""), told)  # others have it open, so it may be given up
    return others


_HOST = Device("cpu", 0, 0)
_COUNTERS = Box(_HOST, (), (3 * LINE,), np.dtype(np.uint8))  # what is staged begins a line


def _staged(memory: SharedMemory, boxes: Mapping[Key, Box], depth: int) -> Rows:
    """Room for boxes, for launches in turn."""
    return {key: [memory.stage(box) for _ in range(depth)] for key, box in boxes.items()}


def _opened(memory: SharedMemory, boxes: Mapping[Key, Box], places: Iterable[Any]) -> Rows:
    """The same room of another process."""
    return {
        key: [memory.open(place, None, box) for place in row]
        for (key, box), row in zip(boxes.items(), places, strict=True)
    }


def _wanted(gathers: Iterable[Gather], owner: Callable[[Device], int]) -> dict[int, Wanted]:
    """What each process combines."""
    found: dict[int, Wanted] = {}
    for gather in gathers:
        here = found.setdefault(owner(gather.target.device), {})
        here.setdefault(tuple([part.key for part in gather.parts]), []).append(gather)
    return found


def _partners(wanted: Mapping[int, Wanted], rank: int, near: Iterable[int]) -> list[int]:
    """The processes from which this one can take all that it would have to sum up."""
    mine = wanted.get(rank, {})
    if not mine or min(map(len, mine)) < MANY:
        return []
    return [r for r in sorted(near) if mine.keys() == wanted.get(r, {}).keys()]


def _sums(wanted: Wanted) -> dict[Key, Box]:
    return {key: same[0].target for key, same in wanted.items()}


def _gathered(
    combine: Callable[..., Any], mine: Wanted, arrived: Rows, sums: Rows, slot: int
) -> Iterator[Launch]:
    """Combines what is in a process's own boxes and in some slots of others, and leaves sums."""
    for key, same in mine.items():
        parts = [arrived[p.key][slot] if p.view is None else p.view for p in same[0].parts]
        for target in [sums[key][slot]] if sums else [gather.target.view for gather in same]:
            yield from _combined(combine, target, parts)
    if sums:
        yield from _copies(mine, sums, slot)


def _copies(mine: Wanted, sums: Rows, slot: int) -> Iterator[Launch]:
    """Copies sums that somebody has left to all targets here."""
    for key, same in mine.items():
        for gather in same:
            yield copied(gather.target.view, sums[key][slot])


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


def _depth(found: Mapping[Route, Collection[Box]]) -> int:
    """How many slots each box has.

    Where all get something from those to whom they give, two are enough: who has got what another
    one gave at the last launch knows that it has taken all that came before.
    """
    if all((target, source) in found for source, target in found):
        return 2
    largest = max(box.nbytes for boxes in found.values() for box in boxes)
    return max(2, min(SLOTS, SMALL // max(1, largest)))
