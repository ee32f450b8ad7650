"""Broadcasts of large boxes within one host, in which all ranks share the copying.

If every target rank copied for itself, the source rank would idle, and the same bytes would be read
from memory once per target.  Instead, every participating rank copies its share of the rows into
all targets, piece by piece, while the piece is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import Device
from flow_dist.phases import Box, Phases
from flow_dist.shm.memory import (
    CHUNK_BYTES,
    Access,
    Exports,
    PeerGroup,
    SharedMemory,
    open_views,
)


@dataclass(frozen=True, slots=True)
class _Broadcast:
    """A source box, its target boxes, and the ranks that share the copying, in order."""

    source: Box
    targets: tuple[Box, ...]
    ranks: tuple[int, ...]

    def share(self, rank: int) -> slice:
        """Return the rows of the first axis that a rank copies."""
        bounds = np.linspace(0, self.source.shape[0], len(self.ranks) + 1).astype(int)
        index = self.ranks.index(rank)
        return slice(int(bounds[index]), int(bounds[index + 1]))


def is_cooperative(phases: Phases, owner: Callable[[Device], int]) -> bool:
    """Return whether an exchange only copies boxes, each with enough rows, to several devices."""
    gathers = [gather for phase in phases.phases for gather in phase]
    if len(phases.phases) != 1 or any(len(gather.parts) != 1 for gather in gathers):
        return False
    broadcasts = _broadcasts(phases, owner)
    return all(len(b.targets) > 1 and b.source.shape[:1] >= (len(b.ranks),) for b in broadcasts)


def bind_cooperative_broadcast(
    phases: Phases, memory: SharedMemory, group: PeerGroup
) -> Iterator[Launch]:
    """Yield this process's launches of an exchange that `is_cooperative`.

    Tokens form two barriers: one before the copies, which waits until all sources and targets are
    ready, and one after the copies.
    """
    rank, owner = group.rank, group.owner
    broadcasts = _broadcasts(phases, owner)
    exports = Exports(memory)
    views = open_views(list(_accesses(broadcasts, owner)), exports, memory, group)
    own = [broadcast for broadcast in broadcasts if rank in broadcast.ranks]
    others = frozenset(r for broadcast in own for r in broadcast.ranks) - {rank}
    yield from phases.fills
    yield from exports.copies
    yield from group.tokens(others, others)
    for broadcast in own:
        rows = broadcast.share(rank)
        boxes = (broadcast.source, *broadcast.targets)
        source, *targets = (views.get(b.key, exports.view_of(b))[rows] for b in boxes)
        yield from _copies(source, targets)
    yield from group.tokens(others, others)
    yield from exports.fetches


def _broadcasts(phases: Phases, owner: Callable[[Device], int]) -> list[_Broadcast]:
    boxes: dict[object, list[Box]] = {}
    for gather in phases.phases[0]:
        (part,) = gather.parts
        boxes.setdefault(part.key, [part]).append(gather.target)
    return [
        _Broadcast(
            source, tuple(targets), tuple(sorted({owner(b.device) for b in (source, *targets)}))
        )
        for source, *targets in boxes.values()
    ]


def _accesses(broadcasts: Sequence[_Broadcast], owner: Callable[[Device], int]) -> Iterator[Access]:
    for broadcast in broadcasts:
        for box in (broadcast.source, *broadcast.targets):
            peer = owner(box.device)
            for rank in broadcast.ranks:
                if rank != peer:
                    yield Access(rank, peer, box, writes=box is not broadcast.source)


def _copies(source: Any, targets: Sequence[Any]) -> Iterator[Launch]:
    if not source.size:
        return
    step = max(1, CHUNK_BYTES // max(1, source.nbytes // source.shape[0]))
    for low in range(0, source.shape[0], step):
        for target in targets:
            yield partial(np.copyto, target[low : low + step], source[low : low + step])
