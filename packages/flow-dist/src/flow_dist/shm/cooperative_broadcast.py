"""Large boxes that several devices of one host want: all take part in copying them.

Where each reads for itself, who gives idles while others copy, and the same bytes are fetched from
memory once per reader.  Here every process that has to do with a box copies its share of it right
into everybody's output, piece by piece, while the piece is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from flow_core.device import Launch
from flow_core.sharding.topology import Device
from flow_dist.phases import Box, Phases
from flow_dist.shm.memory import PIECE, Access, Offers, Rendezvous, SharedMemory, opened


@dataclass(frozen=True, slots=True)
class _Spread:
    """A box, the boxes that it is copied to, and the ranks that share the work, in order."""

    source: Box
    targets: tuple[Box, ...]
    ranks: tuple[int, ...]

    def share(self, rank: int) -> slice:
        """The rows of the first axis that are a process's."""
        bounds = np.linspace(0, self.source.shape[0], len(self.ranks) + 1).astype(int)
        index = self.ranks.index(rank)
        return slice(int(bounds[index]), int(bounds[index + 1]))


def is_cooperative(phases: Phases, owner: Callable[[Device], int]) -> bool:
    """Whether an exchange does nothing but copy boxes, each to several devices."""
    gathers = [gather for phase in phases.phases for gather in phase]
    if len(phases.phases) != 1 or any(len(gather.parts) != 1 for gather in gathers):
        return False
    found = _spreads(phases, owner)
    return all(len(s.targets) > 1 and s.source.shape[:1] >= (len(s.ranks),) for s in found)


def bind_cooperative_broadcast(
    phases: Phases, memory: SharedMemory, meeting: Rendezvous
) -> Iterator[Launch]:
    """The launches of this process's part of an exchange that `is_cooperative`, between neighbours.

    Nobody copies until all have said that their boxes are ready, to be read and to be written; at
    the end, all wait until all have copied.
    """
    rank, owner = meeting.rank, meeting.owner
    found = _spreads(phases, owner)
    offers = Offers(memory)
    views = opened(list(_accesses(found, owner)), offers, memory, meeting)
    own = [spread for spread in found if rank in spread.ranks]
    others = frozenset(r for spread in own for r in spread.ranks) - {rank}
    yield from phases.fills
    yield from offers.copies
    yield from meeting.tokens(others, others)
    for spread in own:
        rows = spread.share(rank)
        boxes = (spread.source, *spread.targets)
        source, *targets = (views.get(b.key, offers.view_of(b))[rows] for b in boxes)
        yield from _copies(source, targets)
    yield from meeting.tokens(others, others)
    yield from offers.fetches


def _spreads(phases: Phases, owner: Callable[[Device], int]) -> list[_Spread]:
    boxes: dict[object, list[Box]] = {}
    for gather in phases.phases[0]:
        (part,) = gather.parts
        boxes.setdefault(part.key, [part]).append(gather.target)
    return [
        _Spread(
            source, tuple(targets), tuple(sorted({owner(b.device) for b in (source, *targets)}))
        )
        for source, *targets in boxes.values()
    ]


def _accesses(spreads: Sequence[_Spread], owner: Callable[[Device], int]) -> Iterator[Access]:
    for spread in spreads:
        for box in (spread.source, *spread.targets):
            there = owner(box.device)
            for by in spread.ranks:
                if by != there:
                    yield Access(by, there, box, fills=box is not spread.source)


def _copies(source: Any, targets: Sequence[Any]) -> Iterator[Launch]:
    if not source.size:
        return
    step = max(1, PIECE // max(1, source.nbytes // source.shape[0]))
    for low in range(0, source.shape[0], step):
        for target in targets:
            yield partial(np.copyto, target[low : low + step], source[low : low + step])
