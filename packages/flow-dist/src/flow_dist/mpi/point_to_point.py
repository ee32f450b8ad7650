"""Phases over MPI's persistent sends and receives, between any hosts.

Small boxes for one process travel together, large ones each by itself and, where they are
contiguous on both sides, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from flow_core.device import Launch
from flow_core.sharding.topology import Device
from flow_dist.control.waiting import wait
from flow_dist.phases import Box, Gather, Phases, launches_of, routes

ALONE = 16384
"""Bytes from which a box travels by itself."""


@dataclass(slots=True)
class Wire:
    """What the transport needs of MPI.

    Attributes:
        comm: the communicator.
        rank: this process's.
        owner: the rank of a device's process.
        tags: gives a new tag; all processes ask equally often.
    """

    comm: Any
    rank: int
    owner: Callable[[Device], int]
    tags: Callable[[], int]


@dataclass(slots=True)
class _Phase:
    """The messages of one phase, and what is done around them."""

    before: list[Launch] = field(default_factory=list)
    receives: list[Any] = field(default_factory=list)
    sends: list[Any] = field(default_factory=list)
    own: list[Launch] = field(default_factory=list)
    after: list[Launch] = field(default_factory=list)


def bind_point_to_point(phases: Phases, wire: Wire) -> tuple[list[Launch], list[Any]]:
    """The launches of this process's part of an exchange, and the requests that they start."""
    bound = [_bind(gathers, phases, wire) for gathers in phases.phases]
    requests = [r for phase in bound for r in (*phase.receives, *phase.sends)]
    return [*phases.fills, *_steps(bound)], requests


def _steps(bound: Iterable[_Phase]) -> Iterator[Launch]:
    from mpi4py import MPI

    for phase in bound:
        start, requests = MPI.Prequest.Startall, [*phase.receives, *phase.sends]
        if phase.before and phase.receives:
            yield partial(start, phase.receives)
            yield from phase.before
            yield partial(start, phase.sends)
        else:
            yield from phase.before
            if requests:
                yield partial(start, requests)
        yield from phase.own
        if requests:
            done = partial(MPI.Request.Testall, requests)
            yield partial(wait, done)
        yield from phase.after


# ----------------------------------------------------------------------------------- binding


def _bind(gathers: Sequence[Gather], phases: Phases, wire: Wire) -> _Phase:
    """The messages of a phase; all processes number them alike."""
    phase = _Phase()
    arrived: dict[object, Any] = {}
    for (source, target), boxes in routes(gathers, wire.owner).items():
        messages = [[box] for box in boxes if box.nbytes >= ALONE]
        small = [box for box in boxes if box.nbytes < ALONE]
        for message in [*messages, *([small] if small else [])]:
            tag = wire.tags()
            if source == wire.rank:
                phase.sends.append(_send(phase, message, wire.comm, target, tag))
            elif target == wire.rank:
                alone = _only_target(gathers, message, wire)
                phase.receives.append(_receive(message, alone, arrived, wire.comm, source, tag))
    _combine(phase, gathers, phases, arrived, wire)
    return phase


def _send(phase: _Phase, message: Sequence[Box], comm: Any, target: int, tag: int) -> Any:
    if len(message) == 1 and message[0].view.flags.c_contiguous:
        return comm.Send_init(_bytes(message[0].view), target, tag)
    packed = np.empty(sum(box.nbytes for box in message), np.uint8)
    for box, slot in _slots(message, packed):
        phase.before.append(partial(np.copyto, slot, box.view))
    return comm.Send_init(packed, target, tag)


def _receive(
    message: Sequence[Box], alone: Any, arrived: dict[object, Any], comm: Any, source: int, tag: int
) -> Any:
    """Receives right into the target where nothing else has to be done."""
    if alone is not None:
        arrived[message[0].key] = alone
        return comm.Recv_init(_bytes(alone), source, tag)
    packed = np.empty(sum(box.nbytes for box in message), np.uint8)
    for box, slot in _slots(message, packed):
        arrived[box.key] = slot
    return comm.Recv_init(packed, source, tag)


def _slots(message: Sequence[Box], packed: Any) -> Iterator[tuple[Box, Any]]:
    offset = 0
    for box in message:
        slot = packed[offset : offset + box.nbytes].view(box.dtype).reshape(box.shape)
        offset += box.nbytes
        yield box, slot


def _bytes(array: Any) -> Any:
    return array.reshape(-1).view(np.uint8)


def _only_target(gathers: Iterable[Gather], message: Sequence[Box], wire: Wire) -> Any:
    """The contiguous target that is nothing but the message, None where there is none."""
    if len(message) > 1:
        return None
    key = message[0].key
    for gather in gathers:
        if wire.owner(gather.target.device) == wire.rank and any(
            p.key == key for p in gather.parts
        ):
            fits = len(gather.parts) == 1 and gather.target.view.flags.c_contiguous
            return gather.target.view if fits else None
    return None


def _combine(
    phase: _Phase,
    gathers: Iterable[Gather],
    phases: Phases,
    arrived: dict[object, Any],
    wire: Wire,
) -> None:
    """What is done with the parts: at once where all are this process's own."""
    for gather in gathers:
        if wire.owner(gather.target.device) != wire.rank:
            continue
        here = all(wire.owner(part.device) == wire.rank for part in gather.parts)
        parts = [arrived.get(p.key) if p.view is None else p.view for p in gather.parts]
        target = gather.target.view
        if len(parts) == 1 and parts[0] is target:
            continue  # received where it belongs
        (phase.own if here else phase.after).extend(launches_of(phases.combine, target, parts))
