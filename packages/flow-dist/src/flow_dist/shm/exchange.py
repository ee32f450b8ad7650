"""Lock-free exchange of small boxes between ranks of one host, through slots and counters.

Every rank copies the boxes that it sends into slots of its own shared memory, publishes them by
advancing a counter, waits for its sources to do the same, and combines directly from their slots.
Launch ``n`` (from 1) uses slot ``n % depth`` of every box.  A rank knows its own boxes and those
that it receives, but not those that its peers send each other.

Each rank has three counters, with the properties stated in `flow_dist.shm.counters`:

- ``published == n``: the slots of launch ``n`` hold this rank's boxes.
- ``consumed == n``: this rank has finished launch ``n`` and reads no slot of launches up to ``n``.
- ``summed == n``: the sum slots of launch ``n`` hold this rank's results.

Invariants:

1. Slots and counters of a rank are written by that rank only.
2. A rank reads a source's slots of launch ``n`` only after it has seen ``published >= n``, and
   before it sets its own ``consumed`` to ``n``.
3. A rank overwrites the slots of launch ``n``, at launch ``n + depth``, only when all its targets
   have finished launch ``n``.  A target that is also a source proves this with
   ``published >= n + 1``, for which the rank has waited in launch ``n + 1``; so a depth of 2
   suffices for a rank all of whose targets are sources.  For other targets, the rank waits until
   ``consumed >= n``.  Each rank chooses its depth, a power of two.
4. Ranks that share a core and combine the same parts share sums: the rank that combines first
   publishes its results, and its partners copy them.  A rank reads a partner's sum slots only if
   ``summed == n`` in its own launch ``n``.  The partner cannot overwrite the slots meanwhile:
   partners are sources of each other, so the partner does not pass launch ``n + 1`` before this
   rank publishes ``n + 1``.
5. Parts are combined in the order of the gather, so combined and copied results are equal bit for
   bit.

Memory ordering: the writer needs release order, so that its stores to slots become visible before
its store to ``published`` or ``summed``, and its loads from peers' slots complete before its store
to ``consumed`` and its next store to ``published``.  The reader needs acquire order, so that its
load of a counter precedes its loads from slots and its next stores to its own slots.  No invariant
relies on the order of a store and a later load from another address, which is the only order that
x86 relaxes.  So plain stores and loads suffice under
`flow_dist.shm.counters.TOTAL_STORE_ORDER`, which callers of `bind_exchange` must check.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes import c_int64
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import Device
from flow_core.base.arrays import Array
from flow_dist.control.waiting import WAIT_POLICY
from flow_dist.phases import (
    Box,
    Combine,
    Gather,
    Phases,
    Route,
    combine_into,
    combine_launches,
    copy_launch,
    in_sequence,
    routes,
)
from flow_dist.shm.counters import CACHE_LINE, WatchedCounter, counter, wait_until, watch
from flow_dist.shm.memory import PeerGroup, SharedMemory, peers

MAX_DEPTH = 16
"""Maximum number of slots of a box where routes are unidirectional."""

SLOTS_BYTES = 1 << 16
"""Maximum size in bytes of all slots of a box together; a box has two slots even if they exceed
this limit."""

MIN_SHARED_PARTS = 3
"""Minimum number of parts for which copying a partner's sum is faster than combining the parts."""

Key = tuple[object, ...]
"""The key of a box, or the keys of the parts of a sum."""

Slots = Mapping[Key, Sequence[Array]]
"""Arrays by key and slot number."""

GathersByParts = dict[Key, list[Gather]]
"""The gathers of this process, by the keys of their parts."""


def bind_exchange(phases: Phases, memory: SharedMemory, group: PeerGroup) -> Iterator[Launch]:
    """Yield this process's launches of an exchange between ranks that share memory."""
    yield from phases.fills
    for gathers in phases.phases:
        yield _bind(phases.combine, gathers, memory, group).launch


@dataclass(slots=True)
class _BoundPhase:
    """One phase of an exchange, whose launches cycle through the slots.

    Attributes:
        own: counters of this process.
        sources: ``published`` counters of the ranks that this process receives from.
        targets: ``consumed`` counters of the ranks that this process only sends to.
        slots: the actions of a launch, indexed by its number modulo their number, which is a
            multiple of the depths of this process and of its sources.
        depth: number of slots of each box of this process.
        free_until: number of the last launch whose slots are known to be free.
        count: number of launches so far.
    """

    own: _Counters
    sources: tuple[WatchedCounter, ...]
    targets: tuple[WatchedCounter, ...]
    slots: tuple[_Slot, ...]
    depth: int
    free_until: int
    count: int = 0

    def launch(self) -> None:
        """Publish, wait for the sources, then combine or copy a partner's sums."""
        self.count = count = self.count + 1
        if count > self.free_until:
            self._wait_for_slots(count)
        copy, sums, gathers = self.slots[count % len(self.slots)]
        published, consumed, summed = self.own
        copy()
        published.value = count
        for other, spins in self.sources:
            if other.value < count:
                wait_until(other, count, spins)
        for other, fetch in sums:
            if other.value == count:  # never greater: the next sum needs this process's boxes
                fetch()
                break
        else:
            for gather in gathers:
                gather()
            summed.value = count
        consumed.value = count

    def _wait_for_slots(self, count: int) -> None:
        """Wait until all targets have consumed the previous contents of a launch's slots."""
        for consumed, spins in self.targets:
            wait_until(consumed, count - self.depth, spins)
        self.free_until = min([consumed.value for consumed, _ in self.targets]) + self.depth


class _Slot(NamedTuple):
    """The actions of a launch.

    Attributes:
        copy: copies this process's boxes into their slots.
        sums: for each partner, its ``summed`` counter and a launch that copies its sums.
        gathers: launches that combine the slots of the sources and publish the sums.
    """

    copy: Launch
    sums: list[tuple[c_int64, Launch]]
    gathers: list[Launch]


class _Counters(NamedTuple):
    """The counters of one rank, as the docstring of the module defines them."""

    published: c_int64
    consumed: c_int64
    summed: c_int64


# ----------------------------------------------------------------------------------- binding


@dataclass(frozen=True, slots=True)
class _Published:
    """The shared memory of one rank's side of a phase.

    Attributes:
        counters: memory of the rank's counters.
        boxes: slots of the boxes that the rank sends.
        parts: a digest of the parts that the rank combines, if partners may copy its sums.
        sums: slots of the rank's sums, if partners may copy them.
    """

    counters: Any
    boxes: Slots
    parts: str
    sums: Slots

    def message(self, memory: SharedMemory, boxes: Iterable[Box]) -> bytes:
        """Encode what is needed by a peer that receives some of the boxes."""
        rows = [self.boxes[box.key] for box in boxes], self.sums.values()
        slots = [[[memory.location_of(slot) for slot in row] for row in part] for part in rows]
        return json.dumps([memory.location_of(self.counters), self.parts, *slots]).encode()

    def counter_views(self) -> _Counters:
        return _Counters(*[counter(self.counters, line) for line in range(3)])


def _bind(
    combine: Combine, gathers: Sequence[Gather], memory: SharedMemory, group: PeerGroup
) -> _BoundPhase:
    routed = routes(gathers, group.owner)
    targets, sources = peers(routed, group.rank)
    mine = _gathers_by_parts(gathers, group)
    near = sorted(targets & sources & WAIT_POLICY.same_core)
    is_shared = bool(near and mine) and min(map(len, mine)) >= MIN_SHARED_PARTS
    sent = {
        b.key: b for (source, _), boxes in routed.items() if source == group.rank for b in boxes
    }
    # Invariant 3: what a target publishes proves that it has read; these publish nothing to read.
    unidirectional = targets - sources
    depth = _depth(sent.values()) if unidirectional else 2
    sums = _sums(mine) if is_shared else {}
    own = _Published(
        memory.stage(_COUNTERS),
        _stage_slots(memory, sent, depth),
        _digest(sums),
        _stage_slots(memory, sums, depth),
    )
    # Peers may read the counters as soon as they know where they are: clear them before `_connect`.
    own.counters[:] = 0
    others = _connect(own, routed, sums, memory, group)
    counters = {r: published.counter_views() for r, published in others.items()}
    received = {key: row for published in others.values() for key, row in published.boxes.items()}
    copied = {r: others[r].sums for r in near if others[r].sums}
    kept = own.sums if any(published.sums for published in others.values()) else {}
    return _BoundPhase(
        own.counter_views(),
        watch({r: counters[r].published for r in sorted(sources)}),
        watch({r: counters[r].consumed for r in sorted(unidirectional)}),
        tuple(
            _Slot(
                in_sequence(
                    [copy_launch(_at(own.boxes[key], i), b.view) for key, b in sent.items()]
                ),
                [
                    (counters[r].summed, in_sequence(_copy_sums(mine, slots, i)))
                    for r, slots in copied.items()
                ],
                list(_combine_slot(combine, mine, received, kept, i)),
            )
            for i in range(max([depth, *map(len, received.values())]))
        ),
        depth,
        depth if unidirectional else sys.maxsize,
    )


def _connect(
    own: _Published,
    routed: Mapping[Route, Sequence[Box]],
    sums: Mapping[Key, Box],
    memory: SharedMemory,
    group: PeerGroup,
) -> dict[int, _Published]:
    """Swap locations with all peers, and map their boxes, and the sums of the same parts."""
    targets, sources = peers(routed, group.rank)
    messages = {r: own.message(memory, routed.get((group.rank, r), ())) for r in targets | sources}
    others = {}
    for r, message in group.swap(messages, messages.keys()).items():
        counters, parts, box_slots, sum_slots = json.loads(message)
        same = parts == own.parts and r in targets & sources
        others[r] = _Published(
            memory.open(counters, None, _COUNTERS),
            _open_slots(memory, {b.key: b for b in routed.get((r, group.rank), ())}, box_slots),
            parts,
            _open_slots(memory, sums, sum_slots) if same else {},
        )
    group.swap(dict.fromkeys(messages, b""), messages)  # peers have mapped it; it may now be freed
    return others


_HOST = Device("cpu", 0, 0)
_COUNTERS = Box(_HOST, (), (3 * CACHE_LINE,), np.dtype(np.uint8))  # staged boxes start a cache line


def _stage_slots(memory: SharedMemory, boxes: Mapping[Key, Box], depth: int) -> Slots:
    return {key: [memory.stage(box) for _ in range(depth)] for key, box in boxes.items()}


def _open_slots(memory: SharedMemory, boxes: Mapping[Key, Box], locations: Iterable[Any]) -> Slots:
    """Map the slots of a peer's boxes."""
    return {
        key: [memory.open(location, None, box) for location in row]
        for (key, box), row in zip(boxes.items(), locations, strict=True)
    }


def _gathers_by_parts(gathers: Iterable[Gather], group: PeerGroup) -> GathersByParts:
    """Return the gathers of this process, by the keys of their parts."""
    found: GathersByParts = {}
    for gather in gathers:
        if group.owner(gather.target.device) == group.rank:
            found.setdefault(tuple([part.key for part in gather.parts]), []).append(gather)
    return found


def _digest(sums: Iterable[Key]) -> str:
    """Return a text that is equal for equal parts in the same order; "" without any."""
    keys = list(sums)
    return hashlib.blake2b(repr(keys).encode()).hexdigest() if keys else ""


def _at(row: Sequence[Array], number: int) -> Array:
    """Return the slot of a launch."""
    return row[number % len(row)]


def _sums(gathers: GathersByParts) -> dict[Key, Box]:
    return {key: same[0].target for key, same in gathers.items()}


def _combine_slot(
    combine: Combine, mine: GathersByParts, received: Slots, sums: Slots, slot: int
) -> Iterator[Launch]:
    """Yield launches that combine own boxes and peers' slots into targets, and sum slots if any."""
    for key, same in mine.items():
        parts = [_at(received[p.key], slot) if p.view is None else p.view for p in same[0].parts]
        for target in [_at(sums[key], slot)] if sums else [gather.target.view for gather in same]:
            yield from _combine(combine, target, parts)
    if sums:
        yield from _copy_sums(mine, sums, slot)


def _copy_sums(mine: GathersByParts, sums: Slots, slot: int) -> Iterator[Launch]:
    """Yield launches that copy published sums to all targets of this process."""
    for key, same in mine.items():
        for gather in same:
            yield copy_launch(gather.target.view, _at(sums[key], slot))


def _combine(combine: Combine, target: Array, parts: Sequence[Array]) -> Iterator[Launch]:
    """Yield launches that combine as `combine_launches` does, but not in place, which is slower."""
    if len(parts) < 3:
        yield from combine_launches(combine, target, parts)
        return
    between = [np.empty(target.shape, target.dtype) for _ in range(2)]
    total = parts[0]
    for i, part in enumerate(parts[1:], 1):
        out = target if i == len(parts) - 1 else between[i % 2]
        yield combine_into(combine, total, part, out)
        total = out


def _depth(boxes: Iterable[Box]) -> int:
    """Return the number of slots per box, a power of two, if targets do not send in turn."""
    largest = max(box.nbytes for box in boxes)
    most = min(MAX_DEPTH, SLOTS_BYTES // max(1, largest))
    return 1 << max(2, most).bit_length() - 1
