"""Large all-reduces between processes of one host: each combines its chunk for all of them.

Who owns a chunk reads it where the others have it and writes the result right into everybody's
output, piece by piece, while the piece is in the cache.  Nobody reads what another one has
written, so two rounds of tokens are enough; and where an output is its input's memory, as in most
plans, nothing is fetched from memory but what is combined.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flow_core.device import Launch
from flow_dist.phases import Box, Gather, Phases, routes
from flow_dist.shared import Meeting, Offers, SharedMemory, piece_by_piece, sides

Seen = tuple[int, int, Box, bool]
"""The owner of a chunk, who has a box of it, the box, and whether that is an output."""


def bind_sums(phases: Phases, memory: SharedMemory, meeting: Meeting) -> Iterator[Launch]:
    """The launches of this process's part of an all-reduce in two phases between neighbours."""
    combined, spread = phases.phases
    given, made = Offers(memory), Offers(memory)
    seen = list(_seen(combined, spread, meeting.owner))
    told: dict[int, list[Any]] = {}
    for owner, holder, box, is_output in seen:
        if holder == meeting.rank:
            told.setdefault(owner, []).append((made if is_output else given).place_of(box))
    views = _heard(seen, told, memory, meeting)
    outputs: dict[object, list[Any]] = {}
    for gather in spread:
        outputs.setdefault(gather.parts[0].key, []).append(_view(gather.target, views))
    yield from given.copies()
    yield from meeting.tokens(*sides(routes(combined, meeting.owner), meeting.rank))
    for gather in combined:
        if meeting.owner(gather.target.device) == meeting.rank:
            targets = [gather.target.view, *outputs.get(gather.target.key, ())]
            parts = [_view(part, views) for part in gather.parts]
            yield from piece_by_piece(phases.combine, targets, parts)
    yield from meeting.tokens(*sides(routes(spread, meeting.owner), meeting.rank))
    yield from made.fetches()


def _view(box: Box, views: Mapping[object, Any]) -> Any:
    """A box here or of a neighbour; None for those that this process has nothing to do with."""
    return views.get(box.key) if box.view is None else box.view


def _seen(
    combined: Sequence[Gather], spread: Sequence[Gather], owner: Callable[[str], int]
) -> Iterator[Seen]:
    """All boxes of a process that another one reads or fills, in an order that all agree on."""
    for gather in combined:
        here = owner(gather.target.device)
        for part in gather.parts:
            if owner(part.device) != here:
                yield here, owner(part.device), part, False
    for gather in spread:
        here, there = owner(gather.parts[0].device), owner(gather.target.device)
        if here != there:
            yield here, there, gather.target, True


def _heard(
    seen: Sequence[Seen],
    told: Mapping[int, Sequence[Any]],
    memory: SharedMemory,
    meeting: Meeting,
) -> dict[object, Any]:
    """The boxes of others that this process reads or fills, by their keys."""
    holders = {holder for owner, holder, _, _ in seen if owner == meeting.rank}
    texts = {owner: json.dumps(rows).encode() for owner, rows in told.items()}
    rows = {s: iter(json.loads(text)) for s, text in meeting.swap(texts, holders).items()}
    views: dict[object, Any] = {}
    for owner, holder, box, _ in seen:
        if owner == meeting.rank:
            place, strides = next(rows[holder])
            views[box.key] = memory.open(place, strides, box)
    return views
