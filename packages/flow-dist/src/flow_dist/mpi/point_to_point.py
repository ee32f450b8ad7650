"""Bind phases to MPI's persistent sends and receives, between any hosts.

Small boxes for one rank are packed into one message.  Large boxes are sent separately and, if they
are contiguous on both sides, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import Device
from flow_dist.control.waiting import wait
from flow_dist.phases import Box, Gather, Phases, combine_launches, routes

PACK_BELOW = 16384
"""Boxes of fewer bytes than this are packed into one message per peer."""


@dataclass(slots=True)
class Transport:
    """The MPI objects and functions that point-to-point messages need."""

    comm: Any  # the MPI communicator
    rank: int  # rank of this process
    owner: Callable[[Device], int]  # maps a device to the rank that owns it
    # Returns a new tag for messages from one rank to another; both call it equally often.
    tags: Callable[[int, int], int]


@dataclass(slots=True)
class _Phase:
    """The messages of one phase, and the launches that run around the messages."""

    before: list[Launch] = field(default_factory=list)
    receives: list[Any] = field(default_factory=list)
    sends: list[Any] = field(default_factory=list)
    own: list[Launch] = field(default_factory=list)
    after: list[Launch] = field(default_factory=list)


def bind_point_to_point(phases: Phases, transport: Transport) -> tuple[list[Launch], list[Any]]:
    """Return this process's launches of an exchange, and the requests that the launches start."""
    bound = [_bind(gathers, phases, transport) for gathers in phases.phases]
    requests = [r for phase in bound for r in (*phase.receives, *phase.sends)]
    return [*phases.fills, *_steps(bound)], requests


def _steps(bound: Iterable[_Phase]) -> Iterator[Launch]:
    for phase in bound:
        requests = [*phase.receives, *phase.sends]
        if not requests:
            yield from (*phase.before, *phase.own, *phase.after)
            continue
        from mpi4py import MPI

        start = MPI.Prequest.Startall
        if phase.before and phase.receives:
            yield partial(start, phase.receives)
            yield from phase.before
            yield partial(start, phase.sends)
        else:
            yield from phase.before
            yield partial(start, requests)
        yield from phase.own
        done = partial(MPI.Request.Testall, requests)
        yield partial(wait, done)
        yield from phase.after


# ----------------------------------------------------------------------------------- binding


def _bind(gathers: Sequence[Gather], phases: Phases, transport: Transport) -> _Phase:
    """Create the messages of a phase, with tags in an order that is equal at both ends."""
    phase = _Phase()
    arrived: dict[object, Any] = {}
    rank, owner = transport.rank, transport.owner
    targets = {
        p.key: g for g in reversed(gathers) if owner(g.target.device) == rank for p in g.parts
    }
    for (source, target), boxes in routes(gathers, owner).items():
        messages = [[box] for box in boxes if box.nbytes >= PACK_BELOW]
        small = [box for box in boxes if box.nbytes < PACK_BELOW]
        for message in [*messages, *([small] if small else [])] if rank in (source, target) else ():
            tag = transport.tags(source, target)
            if source == rank:
                phase.sends.append(_send(phase, message, transport.comm, target, tag))
            else:
                view = _only_target(targets, message)
                request = _receive(message, view, arrived, transport.comm, source, tag)
                phase.receives.append(request)
    _combine(phase, gathers, phases, arrived, transport)
    return phase


def _send(phase: _Phase, message: Sequence[Box], comm: Any, target: int, tag: int) -> Any:
    if len(message) == 1 and message[0].view.flags.c_contiguous:
        return comm.Send_init(_bytes(message[0].view), target, tag)
    packed = np.empty(sum(box.nbytes for box in message), np.uint8)
    for box, slot in _slots(message, packed):
        phase.before.append(partial(np.copyto, slot, box.view))
    return comm.Send_init(packed, target, tag)


def _receive(
    message: Sequence[Box], view: Any, arrived: dict[object, Any], comm: Any, source: int, tag: int
) -> Any:
    """Receive a message, directly into the target if nothing else is combined with the message."""
    if view is not None:
        arrived[message[0].key] = view
        return comm.Recv_init(_bytes(view), source, tag)
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


def _only_target(targets: Mapping[Any, Gather], message: Sequence[Box]) -> Any:
    """Return the contiguous target that is a copy of the message, or None if there is none.

    Args:
        targets: the first gather of this process that reads a box, by the key of the box.
    """
    if len(message) > 1:
        return None
    gather = targets[message[0].key]
    fits = len(gather.parts) == 1 and gather.target.view.flags.c_contiguous
    return gather.target.view if fits else None


def _combine(
    phase: _Phase,
    gathers: Iterable[Gather],
    phases: Phases,
    arrived: dict[object, Any],
    transport: Transport,
) -> None:
    """Add launches that combine parts; they do not wait for messages if all parts are local."""
    for gather in gathers:
        if transport.owner(gather.target.device) != transport.rank:
            continue
        local = all(transport.owner(part.device) == transport.rank for part in gather.parts)
        parts = [arrived[p.key] if p.view is None else p.view for p in gather.parts]
        target = gather.target.view
        if len(parts) == 1 and parts[0] is target:
            continue  # received in place
        (phase.own if local else phase.after).extend(
            combine_launches(phases.combine, target, parts)
        )
