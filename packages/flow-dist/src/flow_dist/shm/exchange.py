"""Lock-free exchange of small boxes between ranks of one host, through slots and counters.

Every rank copies the boxes that it sends into slots of its own shared memory, publishes them by
advancing a counter, waits for its sources to do the same, and combines directly from their slots.
Launch ``n`` (from 1) uses slot ``n % depth`` of every box.

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
   suffices where all routes are bidirectional.  For other targets, the rank waits until
   ``consumed >= n``.
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

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from ctypes import c_int64
from dataclasses import dataclass
from functools import partial
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
"""The gathers of a rank, by the keys of their parts."""


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
        slots: the actions of a launch, indexed by the number of the launch modulo the depth.
        free_until: number of the last launch whose slots are known to be free.
        count: number of launches so far.
    """

    own: _Counters
    sources: tuple[WatchedCounter, ...]
    targets: tuple[WatchedCounter, ...]
    slots: tuple[_Slot, ...]
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
        depth = len(self.slots)
        for consumed, spins in self.targets:
            wait_until(consumed, count - depth, spins)
        self.free_until = min([consumed.value for consumed, _ in self.targets]) + depth


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
        sums: slots of the rank's sums, if partners may copy them.
    """

    counters: Any
    boxes: Slots
    sums: Slots

    def locations(self, memory: SharedMemory, boxes: Iterable[Box]) -> bytes:
        """Encode the locations that are needed by a peer that receives some of the boxes."""
        rows = [self.boxes[box.key] for box in boxes], self.sums.values()
        slots = [[[memory.location_of(slot) for slot in row] for row in part] for part in rows]
        return json.dumps([memory.location_of(self.counters), *slots]).encode()

    def counter_views(self) -> _Counters:
        return _Counters(*[counter(self.counters, line) for line in range(3)])


def _bind(
    combine: Combine,
    gathers: Sequence[Gather],
    memory: SharedMemory,
    group: PeerGroup,
) -> _BoundPhase:
    routed = routes(gathers, group.owner)
    targets, sources = peers(routed, group.rank)
    by_rank = _gathers_by_rank(gathers, group.owner)
    own_gathers, depth = by_rank.get(group.rank, {}), _depth(routed)
    partners = _sum_partners(by_rank, group.rank, targets & sources & WAIT_POLICY.same_core)
    sent = {
        b.key: b for (source, _), boxes in routed.items() if source == group.rank for b in boxes
    }
    own = _Published(
        memory.stage(_COUNTERS),
        _stage_slots(memory, sent, depth),
        _stage_slots(memory, _sums(own_gathers) if partners else {}, depth),
    )
    # Peers may read the counters as soon as they know where they are: clear them before `_connect`.
    own.counters[:] = 0
    others = _connect(own, routed, {r: _sums(by_rank[r]) for r in partners}, memory, group)
    counters = {r: published.counter_views() for r, published in others.items()}
    received = {key: row for published in others.values() for key, row in published.boxes.items()}
    # Invariant 3: what a target publishes proves that it has read; these publish nothing to read.
    unidirectional = targets - sources
    return _BoundPhase(
        own.counter_views(),
        watch({r: counters[r].published for r in sorted(sources)}),
        watch({r: counters[r].consumed for r in sorted(unidirectional)}),
        tuple(
            _Slot(
                in_sequence(
                    [copy_launch(own.boxes[key][slot], box.view) for key, box in sent.items()]
                ),
                [
                    (counters[r].summed, in_sequence(_copy_sums(own_gathers, others[r].sums, slot)))
                    for r in partners
                ],
                list(_combine_slot(combine, own_gathers, received, own.sums, slot)),
            )
            for slot in range(depth)
        ),
        depth if unidirectional else sys.maxsize,
    )


def _connect(
    own: _Published,
    routed: Mapping[Route, Sequence[Box]],
    sums: Mapping[int, Mapping[Key, Box]],
    memory: SharedMemory,
    group: PeerGroup,
) -> dict[int, _Published]:
    """Swap locations with all peers, and map the boxes of the peers and the sums of partners."""
    targets, sources = peers(routed, group.rank)
    messages = {
        r: own.locations(memory, routed.get((group.rank, r), ())) for r in targets | sources
    }
    others = {}
    for r, message in group.swap(messages, messages.keys()).items():
        counters, box_slots, sum_slots = json.loads(message)
        others[r] = _Published(
            memory.open(counters, None, _COUNTERS),
            _open_slots(memory, {b.key: b for b in routed.get((r, group.rank), ())}, box_slots),
            _open_slots(memory, sums[r], sum_slots) if r in sums else {},
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


def _gathers_by_rank(
    gathers: Iterable[Gather], owner: Callable[[Device], int]
) -> dict[int, GathersByParts]:
    """Return the gathers of each rank, by the keys of their parts."""
    by_rank: dict[int, GathersByParts] = {}
    for gather in gathers:
        own = by_rank.setdefault(owner(gather.target.device), {})
        own.setdefault(tuple([part.key for part in gather.parts]), []).append(gather)
    return by_rank


def _sum_partners(
    by_rank: Mapping[int, GathersByParts], rank: int, same_core: Iterable[int]
) -> list[int]:
    """Return the ranks on this rank's core that combine exactly the same parts as this rank."""
    mine = by_rank.get(rank, {})
    if not mine or min(map(len, mine)) < MIN_SHARED_PARTS:
        return []
    return [r for r in sorted(same_core) if mine.keys() == by_rank.get(r, {}).keys()]


def _sums(gathers: GathersByParts) -> dict[Key, Box]:
    return {key: same[0].target for key, same in gathers.items()}


def _combine_slot(
    combine: Combine, mine: GathersByParts, received: Slots, sums: Slots, slot: int
) -> Iterator[Launch]:
    """Yield launches that combine own boxes and peers' slots into targets, and sum slots if any."""
    for key, same in mine.items():
        parts = [received[p.key][slot] if p.view is None else p.view for p in same[0].parts]
        for target in [sums[key][slot]] if sums else [gather.target.view for gather in same]:
            yield from _combine(combine, target, parts)
    if sums:
        yield from _copy_sums(mine, sums, slot)


def _copy_sums(mine: GathersByParts, sums: Slots, slot: int) -> Iterator[Launch]:
    """Yield launches that copy published sums to all targets of this process."""
    for key, same in mine.items():
        for gather in same:
            yield copy_launch(gather.target.view, sums[key][slot])


def _combine(combine: Combine, target: Array, parts: Sequence[Array]) -> Iterator[Launch]:
    """Yield launches that combine as `combine_launches` does, but not in place, which is slower."""
    if len(parts) < 3:
        yield from combine_launches(combine, target, parts)
        return
    between = [np.empty(target.shape, target.dtype) for _ in range(2)]
    total = parts[0]
    for i, part in enumerate(parts[1:], 1):
        out = target if i == len(parts) - 1 else between[i % 2]
        yield partial(combine, total, part, out)
        total = out


def _depth(found: Mapping[Route, Collection[Box]]) -> int:
    """Return the number of slots per box, which the third invariant determines."""
    if all((target, source) in found for source, target in found):
        return 2
    largest = max(box.nbytes for boxes in found.values() for box in boxes)
    return max(2, min(MAX_DEPTH, SLOTS_BYTES // max(1, largest)))
