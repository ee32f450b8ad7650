"""Large all-reduces between ranks of one host: each rank combines one chunk for all ranks.

The owner of a chunk reads the parts from its peers' memory and writes each combined piece into
every peer's output while the piece is in the cache.  No rank reads what another rank has written,
so two rounds of tokens suffice.  If the outputs overwrite the inputs, as in most plans, only the
parts have to be fetched from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import Device
from flow_dist.phases import Box, Gather, Phases, routes
from flow_dist.shm.memory import (
    Access,
    Exports,
    PeerGroup,
    SharedMemory,
    combine_in_chunks,
    open_views,
    peers,
)


def bind_all_reduce(phases: Phases, memory: SharedMemory, group: PeerGroup) -> Iterator[Launch]:
    """Yield this process's launches of a two-phase all-reduce between ranks that share memory."""
    reduced, broadcast = phases.phases
    exports = Exports(memory)
    views = open_views(list(_accesses(reduced, broadcast, group.owner)), exports, memory, group)
    outputs: dict[object, list[Any]] = {}
    for gather in broadcast:
        outputs.setdefault(gather.parts[0].key, []).append(_view(gather.target, views))
    yield from exports.copies
    yield from group.tokens(*peers(routes(reduced, group.owner), group.rank))
    for gather in reduced:
        if group.owner(gather.target.device) == group.rank:
            targets = [gather.target.view, *outputs.get(gather.target.key, ())]
            parts = [_view(part, views) for part in gather.parts]
            yield from combine_in_chunks(phases.combine, targets, parts)
    yield from group.tokens(*peers(routes(broadcast, group.owner), group.rank))
    yield from exports.fetches


def _view(box: Box, views: Mapping[object, Any]) -> Any:
    """Return the array of a box of this process or a peer; None for boxes not used here."""
    return views.get(box.key) if box.view is None else box.view


def _accesses(
    reduced: Sequence[Gather], broadcast: Sequence[Gather], owner: Callable[[Device], int]
) -> Iterator[Access]:
    """Yield the accesses of chunk owners to the memory of their peers."""
    for gather in reduced:
        rank = owner(gather.target.device)
        for part in gather.parts:
            if owner(part.device) != rank:
                yield Access(rank, owner(part.device), part)
    for gather in broadcast:
        rank, peer = owner(gather.parts[0].device), owner(gather.target.device)
        if rank != peer:
            yield Access(rank, peer, gather.target, writes=True)
