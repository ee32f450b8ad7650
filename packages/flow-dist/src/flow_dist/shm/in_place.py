"""Exchanges of large boxes within one host: ranks read the memory of their peers.

Every rank waits until the boxes that it reads are ready, combines them where they are, and returns
only after its peers have read its own boxes.

If every target rank copied a box for itself, the source rank would idle, and the same bytes would
be read from memory once per target.  Instead, the source of a box and the ranks that only copy it
share the copying: each copies some of the rows into all targets, piece by piece, while the piece is
in the cache.  The source decides this, because it alone knows all targets: the ranks first offer it
the locations of their targets, and it answers with the location of the box and, if the ranks share
the copying, with those of all targets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.base.arrays import Array
from flow_dist.phases import Box, Combine, Gather, Phases, Route, combine_launches, routes
from flow_dist.shm.memory import (
    CHUNK_BYTES,
    Exports,
    PeerGroup,
    SharedMemory,
    combine_in_chunks,
    peers,
)

MOST_SHARING = 8
"""Maximum number of ranks that share the copying of a box; each maps the targets of all others."""

Places = Sequence[Any]
"""The locations and strides of the targets of a box on one rank."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A box whose copying several ranks share.

    Attributes:
        ranks: the ranks, in order.
        source: the box.
        targets: its targets on these ranks.
    """

    ranks: Sequence[int]
    source: Array
    targets: Sequence[Array]

    def launches(self, rank: int) -> Iterator[Launch]:
        """Yield launches that copy the rows of a rank."""
        bounds = np.linspace(0, len(self.source), len(self.ranks) + 1).astype(int)
        low, high = (int(bounds[self.ranks.index(rank) + i]) for i in (0, 1))
        step = max(1, CHUNK_BYTES // max(1, self.source.nbytes // len(self.source)))
        for start in range(low, high, step):
            rows = slice(start, min(start + step, high))
            for target in self.targets:
                yield partial(np.copyto, target[rows], self.source[rows])


def bind_in_place(phases: Phases, memory: SharedMemory, group: PeerGroup) -> Iterator[Launch]:
    """Yield this process's launches of a one-phase exchange between ranks that share memory."""
    (gathers,) = phases.phases
    own = [gather for gather in gathers if group.owner(gather.target.device) == group.rank]
    reads = _reads(own, memory)
    routed = routes(gathers, group.owner)
    targets, sources = peers(routed, group.rank)
    exports = Exports(memory)
    views, copies = _connect(routed, reads, exports, memory, group)
    sharing = frozenset(rank for copy in copies.values() for rank in copy.ranks) - {group.rank}
    yield from phases.fills
    yield from exports.copies
    yield from group.tokens(targets | sharing, sources | sharing)
    for copy in copies.values():
        yield from copy.launches(group.rank)
    for gather in _pairwise_order(own, group):
        first = gather.parts[0].key
        if not (first in copies and reads[first].places):
            parts = [views[p.key] if p.view is None else p.view for p in gather.parts]
            yield from _combine(phases.combine, gather.target.view, parts)
    yield from group.tokens(sources | sharing, targets | sharing)


@dataclass(slots=True)
class _Reads:
    """How this process reads a box.

    Attributes:
        targets: the targets of the gathers that read the box.
        places: where other ranks may copy the box to; none if this process has to read it.
    """

    targets: list[Array] = field(default_factory=list)
    places: Places = ()


def _reads(own: Iterable[Gather], memory: SharedMemory) -> dict[object, _Reads]:
    found: dict[object, _Reads] = {}
    combined = set[object]()
    for gather in own:
        for part in gather.parts:
            found.setdefault(part.key, _Reads()).targets.append(gather.target.view)
            combined.update([part.key] if len(gather.parts) > 1 else [])
    for key, reads in found.items():
        places = [(memory.location_of(view), view.strides) for view in reads.targets]
        if key not in combined and all(location for location, _ in places):
            reads.places = places
    return found


def _connect(
    routed: Mapping[Route, Sequence[Box]],
    reads: Mapping[object, _Reads],
    exports: Exports,
    memory: SharedMemory,
    group: PeerGroup,
) -> tuple[dict[object, Array], dict[object, _Copy]]:
    """Map the boxes of peers, and find the boxes whose copying this process shares, by key."""
    rank, none = group.rank, _Reads()
    received = {source: boxes for (source, target), boxes in routed.items() if target == rank}
    sent = {target: boxes for (source, target), boxes in routed.items() if source == rank}
    offers = {s: [reads[box.key].places for box in boxes] for s, boxes in received.items()}
    own = {box.key: box for boxes in sent.values() for box in boxes}
    places: dict[object, dict[int, Places]] = {
        key: {rank: reads.get(key, none).places} for key in own
    }
    for target, rows in _swap(group, offers, sent).items():
        for box, row in zip(sent[target], rows, strict=True):
            places[box.key][target] = row
    shared = {key: _shared(box, places[key], rank) for key, box in own.items()}
    answers = {
        target: [
            (*exports.export(box, False), shared[box.key] if places[box.key][target] else None)
            for box in boxes
        ]
        for target, boxes in sent.items()
    }
    views: dict[object, Array] = {key: exports.view_of(box) for key, box in own.items()}
    found: list[tuple[Box, Any]] = [(own[key], row) for key, row in shared.items() if row]
    for source, answer in _swap(group, answers, received).items():
        for box, (location, strides, row) in zip(received[source], answer, strict=True):
            views[box.key] = memory.open(location, strides, box)
            found += [(box, row)] if row else []
    copies: dict[object, _Copy] = {}
    for box, row in found:
        mine = reads.get(box.key, none)
        offered = [place for r, own_places in row if r != rank for place in own_places]
        others = [memory.open(location, strides, box) for location, strides in offered]
        targets = [*(mine.targets if mine.places else ()), *others]
        copies[box.key] = _Copy([r for r, _ in row], views[box.key], targets)
    return views, copies


def _shared(box: Box, places: Mapping[int, Places], rank: int) -> list[tuple[int, Places]] | None:
    """Return the ranks that share the copying of a box, each with its targets; None if none do.

    Args:
        box: the box of this process.
        places: the targets that each rank offers.
        rank: the rank of this process, which copies even if it has no target.
    """
    row = [(r, offered) for r, offered in sorted(places.items()) if offered or r == rank]
    count = sum(len(offered) for _, offered in row)
    fits = 1 < len(row) <= MOST_SHARING and count > 1 and box.shape[:1] >= (len(row),)
    return row if fits else None


def _swap(
    group: PeerGroup, messages: Mapping[int, object], sources: Iterable[int]
) -> dict[int, Any]:
    sent = {rank: json.dumps(message).encode() for rank, message in messages.items()}
    return {rank: json.loads(text) for rank, text in group.swap(sent, sources).items()}


def _pairwise_order(own: Iterable[Gather], group: PeerGroup) -> list[Gather]:
    """Return the gathers of this process, ordered so that ranks read from each other in pairs.

    Pairwise exchange (Thakur, Rabenseifner, Gropp: Optimization of Collective Communication
    Operations in MPICH, 2005) keeps all ranks from reading the same memory at once.
    """
    return sorted(own, key=lambda gather: group.owner(gather.parts[-1].device) ^ group.rank)


def _combine(combine: Combine, target: Array, parts: Sequence[Array]) -> Iterator[Launch]:
    """Combine as `combine_launches` does, but chunk by chunk for three or more large 1-d parts."""
    rows = [target, *parts]
    if len(parts) < 3 or target.nbytes <= CHUNK_BYTES or any(row.ndim != 1 for row in rows):
        return combine_launches(combine, target, parts)
    return combine_in_chunks(combine, [target], parts)
