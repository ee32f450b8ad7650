"""The comm over MPI: exchanges between the devices of several processes, in host memory."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.device import Arena, Launch
from flow_core.dtypes import tensor_buffer
from flow_core.errors import UnsupportedError
from flow_core.exchange import Exchange, check_arrays
from flow_dist.mailboxes import IN_ORDER, bind_mailboxes
from flow_dist.parcels import bind_parcels
from flow_dist.phases import Phases, apart, links_from, phases_of, routes
from flow_dist.point_to_point import bind_point_to_point
from flow_dist.shared import Meeting, SharedMemory, bind_shared
from flow_dist.spreads import bind_spreads, is_spread
from flow_dist.sums import bind_sums
from flow_dist.watch import WATCH
from flow_dist.world import MpiWorld, free, world

SHARED = 1 << 16
"""Bytes between two processes of a host from which they read each other's memory."""


@dataclass(slots=True)
class _Meter:
    """What one exchange sends per launch, and how often it was launched."""

    links: Counter[tuple[str, str]]
    launches: int = 0

    def count(self) -> None:
        self.launches += 1


class _Bound:
    """The part of an exchange that is this process's."""

    def __init__(
        self, exchange: Exchange, phases: Phases, joined: MpiWorld, memory: SharedMemory
    ) -> None:
        self._memory = memory  # others read it as long as this may be launched
        ranks = {joined.owner(device) for device in phases.devices}
        requests: list[Any] = []
        bind = _way(exchange, phases, joined, ranks)
        if bind is None:
            steps, requests = bind_point_to_point(phases, joined.wire)
            self._steps = tuple(steps)
        else:
            meeting = joined.meeting(joined.wire.tags())
            here = joined.rank in ranks or bool(phases.fills)
            self._steps = tuple(bind(phases, memory, meeting)) if here else ()
        weakref.finalize(self, free, requests)
        self._site = WATCH.site(
            phases.name,
            phases.what,
            ranks=ranks,
            at=exchange.line,
            lane=f"stream {exchange.stream}",
        )

    def __call__(self) -> None:
        """Runs it."""
        self._site.enter()
        for step in self._steps:
            step()
        self._site.leave()


Bind = Callable[[Phases, SharedMemory, Meeting], Iterator[Launch]]


def _way(
    exchange: Exchange, phases: Phases, joined: MpiWorld, ranks: Collection[int]
) -> Bind | None:
    """How an exchange is done where its members need not send and receive arrays."""
    if any(tensor.dtype.is_object for tensor in exchange.inputs):
        return bind_parcels
    if len(ranks) < 2 or not joined.share_memory(ranks):
        return None
    if _largest_route(phases, joined) >= SHARED:
        if is_spread(phases, joined.owner):
            return bind_spreads
        return bind_sums if len(phases.phases) == 2 else bind_shared
    return bind_mailboxes if IN_ORDER else None


def _largest_route(phases: Phases, joined: MpiWorld) -> int:
    found = [routes(gathers, joined.owner) for gathers in phases.phases]
    sizes = [sum(box.nbytes for box in boxes) for here in found for boxes in here.values()]
    return max(sizes, default=0)


class MpiComm:
    """Joins the devices of a plan over all processes of the program.

    Args:
        devices: text forms of all devices; each is of the process that `MpiWorld.owner` says.

    Attributes:
        devices: all devices that it joins.
        local: those of this process, which may be none.
    """

    name = "mpi"

    def __init__(self, devices: Sequence[str], joined: MpiWorld | None = None) -> None:
        self._world = joined or world()
        self.devices = tuple(devices)
        self.local = tuple(d for d in devices if self._world.owner(d) == self._world.rank)
        self._memory = SharedMemory()
        self._alone = len(self._world.neighbours[self._world.rank]) == 1  # all processes ask
        self._meters: list[_Meter] = []

    def arena(self, device: str, nbytes: int) -> Arena | None:
        """Memory for a local device that other processes of the host can read, if there are any."""
        return None if self._alone or not nbytes else self._memory.arena(nbytes)

    def bind(
        self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[Launch, ...]:
        """The launches of this process's part of an exchange; none where it has no part in it.

        Raises:
            PlanError: the arrays are not what the exchange says.
            UnsupportedError: records, which stay in the process that read them, would leave it.
        """
        check_arrays(exchange, self.local, inputs, outputs)
        self._refuse_records(exchange)
        given, copies = apart(exchange, inputs, outputs)
        phases = phases_of(exchange, given, outputs)
        bound = _Bound(exchange, phases, self._world, self._memory)
        if not set(exchange.devices) & set(self.local):
            return ()
        meter = _Meter(links_from(exchange, self.local, inputs, outputs))
        if not meter.links:
            return (*copies, bound)
        self._meters.append(meter)
        return (*copies, bound, meter.count)

    def _refuse_records(self, exchange: Exchange) -> None:
        owners = {self._world.owner(device) for device in exchange.devices}
        refused = [t for t in exchange.inputs if t.dtype.is_object and t.dtype != tensor_buffer]
        if len(owners) > 1 and refused:
            at = f" ({exchange.line})" if exchange.line else ""
            raise UnsupportedError(
                f"binding exchange {exchange.name!r}{at}",
                found=f"{refused[0]} that goes between ranks {sorted(owners)}",
                allowed="arrays of numbers, and tensors of changing shape",
                hint="decode records where they are read: on the same devices, each of which reads "
                "its own part of every batch",
            )

    def sent(self) -> Mapping[tuple[str, str], int]:
        """Bytes that local devices have sent so far, by (from, to)."""
        total: Counter[tuple[str, str]] = Counter()
        for meter in self._meters:
            for link, nbytes in meter.links.items():
                total[link] += nbytes * meter.launches
        return {link: nbytes for link, nbytes in total.items() if nbytes}
