"""Bind phases of object arrays and ragged tensors, whose sizes are known only at run time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch, pack, unpack
from flow_dist.phases import Box, Phases, combine_launches, routes
from flow_dist.shm.memory import PeerGroup, SharedMemory


def bind_ragged(phases: Phases, _: SharedMemory, group: PeerGroup) -> Iterator[Launch]:
    """Yield this process's launches of an exchange of objects, which are only copied.

    In each phase, a rank sends all boxes for a peer in one message.
    """
    for gathers in phases.phases:
        sent: dict[int, list[Any]] = {}
        received: dict[int, list[tuple[Box, Any]]] = {}
        for (source, target), boxes in routes(gathers, group.owner).items():
            if source == group.rank:
                sent[target] = [box.view for box in boxes]
            elif target == group.rank:
                received[source] = [(box, np.empty(box.shape, object)) for box in boxes]
        arrived = {box.key: slot for row in received.values() for box, slot in row}
        if sent or received:
            slots = {source: [slot for _, slot in row] for source, row in received.items()}
            yield partial(_swap, group, sent, slots)
        for gather in gathers:
            if group.owner(gather.target.device) == group.rank:
                parts = [arrived[p.key] if p.view is None else p.view for p in gather.parts]
                yield from combine_launches(phases.combine, gather.target.view, parts)


def _swap(
    group: PeerGroup, sent: Mapping[int, Sequence[Any]], received: Mapping[int, Sequence[Any]]
) -> None:
    messages = {
        target: pack(np.concatenate([view.reshape(-1) for view in views])).tobytes()
        for target, views in sent.items()
    }
    for source, message in group.swap(messages, received).items():
        objects, first = unpack(np.frombuffer(message, np.uint8)), 0
        for slot in received[source]:
            slot[...] = objects[first : first + slot.size].reshape(slot.shape)
            first += slot.size
