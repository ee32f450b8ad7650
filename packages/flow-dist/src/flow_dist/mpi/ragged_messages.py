"""Phases of tensors whose shapes change: nobody knows before the step how much there is to send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch, pack, unpack
from flow_dist.phases import Box, Phases, launches_of, routes
from flow_dist.shm.memory import Rendezvous, SharedMemory


def bind_parcels(phases: Phases, _: SharedMemory, meeting: Rendezvous) -> Iterator[Launch]:
    """The launches of this process's part of an exchange of objects, which are only copied.

    In each phase a process sends every other one all boxes that it gets, in one message.
    """
    for gathers in phases.phases:
        given: dict[int, list[Any]] = {}
        taken: dict[int, list[tuple[Box, Any]]] = {}
        for (source, target), boxes in routes(gathers, meeting.owner).items():
            if source == meeting.rank:
                given[target] = [box.view for box in boxes]
            elif target == meeting.rank:
                taken[source] = [(box, np.empty(box.shape, object)) for box in boxes]
        arrived = {box.key: slot for row in taken.values() for box, slot in row}
        if given or taken:
            slots = {source: [slot for _, slot in row] for source, row in taken.items()}
            yield partial(_swap, meeting, given, slots)
        for gather in gathers:
            if meeting.owner(gather.target.device) == meeting.rank:
                parts = [arrived[p.key] if p.view is None else p.view for p in gather.parts]
                yield from launches_of(phases.combine, gather.target.view, parts)


def _swap(
    meeting: Rendezvous, given: Mapping[int, Sequence[Any]], taken: Mapping[int, Sequence[Any]]
) -> None:
    texts = {
        target: pack(np.concatenate([view.reshape(-1) for view in views])).tobytes()
        for target, views in given.items()
    }
    for source, text in meeting.swap(texts, taken).items():
        objects, first = unpack(np.frombuffer(text, np.uint8)), 0
        for slot in taken[source]:
            slot[...] = objects[first : first + slot.size].reshape(slot.shape)
            first += slot.size
