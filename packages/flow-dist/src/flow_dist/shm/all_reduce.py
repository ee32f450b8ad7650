"""Large all-reduces between processes of one host: each combines its chunk for all of them.

Who owns a chunk reads it where the others have it and writes the result right into everybody's
output, piece by piece, while the piece is in the cache.  Nobody reads what another one has
written, so two rounds of tokens are enough; and where an output is its input's memory, as in most
plans, nothing is fetched from memory but what is combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flow_core.device import Launch
from flow_core.sharding.topology import Device
from flow_dist.phases import Box, Gather, Phases, routes
from flow_dist.shm.memory import (
    Access,
    Offers,
    Rendezvous,
    SharedMemory,
    opened,
    piece_by_piece,
    sides,
)


def bind_all_reduce(phases: Phases, memory: SharedMemory, meeting: Rendezvous) -> Iterator[Launch]:
    """The launches of this process's part of an all-reduce in two phases between neighbours."""
    combined, spread = phases.phases
    offers = Offers(memory)
    views = opened(list(_accesses(combined, spread, meeting.owner)), offers, memory, meeting)
    outputs: dict[object, list[Any]] = {}
    for gather in spread:
        outputs.setdefault(gather.parts[0].key, []).append(_view(gather.target, views))
    yield from offers.copies
    yield from meeting.tokens(*sides(routes(combined, meeting.owner), meeting.rank))
    for gather in combined:
        if meeting.owner(gather.target.device) == meeting.rank:
            targets = [gather.target.view, *outputs.get(gather.target.key, ())]
            parts = [_view(part, views) for part in gather.parts]
            yield from piece_by_piece(phases.combine, targets, parts)
    yield from meeting.tokens(*sides(routes(spread, meeting.owner), meeting.rank))
    yield from offers.fetches


def _view(box: Box, views: Mapping[object, Any]) -> Any:
    """A box here or of a neighbour; None for those that this process has nothing to do with."""
    return views.get(box.key) if box.view is None else box.view


def _accesses(
    combined: Sequence[Gather], spread: Sequence[Gather], owner: Callable[[Device], int]
) -> Iterator[Access]:
    """Owners of chunks read the parts of others, and fill their outputs."""
    for gather in combined:
        here = owner(gather.target.device)
        for part in gather.parts:
            if owner(part.device) != here:
                yield Access(here, owner(part.device), part)
    for gather in spread:
        here, there = owner(gather.parts[0].device), owner(gather.target.device)
        if here != there:
            yield Access(here, there, gather.target, fills=True)
