"""The comm over MPI: exchanges between the devices of several processes, in host memory."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flow_core.base.dtypes import tensor_buffer
from flow_core.base.errors import UnsupportedError
from flow_core.device import Arena, Launch
from flow_core.exchange import DevicePair, Exchange, check_arrays
from flow_core.sharding.topology import Device
from flow_dist.control.watch import WATCH, Site
from flow_dist.mpi.point_to_point import bind_point_to_point
from flow_dist.mpi.ragged_messages import bind_parcels
from flow_dist.mpi.world import MpiWorld, free, world
from flow_dist.phases import Phases, apart, in_turn, links_from, phases_of, routes
from flow_dist.shm.all_reduce import bind_all_reduce
from flow_dist.shm.cooperative_broadcast import bind_cooperative_broadcast, is_cooperative
from flow_dist.shm.counters import IN_ORDER
from flow_dist.shm.exchange import bind_exchange
from flow_dist.shm.memory import Rendezvous, SharedMemory, bind_shared

SHARED = 1 << 16
"""Bytes between two processes of a host from which they read each other's memory."""


Bind = Callable[[Phases, SharedMemory, Rendezvous], Iterator[Launch]]


def _bound(
    exchange: Exchange, phases: Phases, joined: MpiWorld, memory: SharedMemory
) -> tuple[Launch, Site]:
    """The part of an exchange that is this process's, and the place where it waits."""
    ranks = {joined.owner(device) for device in phases.devices}
    steps: Iterable[Launch] = ()
    requests: list[Any] = []
    bind = _way(exchange, phases, joined, ranks)
    if bind is None:
        steps, requests = bind_point_to_point(phases, joined.wire)
    else:
        meeting = joined.meeting(joined.wire.tags())
        if joined.rank in ranks or phases.fills:
            steps = bind(phases, memory, meeting)
    lane = f"stream {exchange.stream}"
    site = WATCH.site(phases.name, phases.what, ranks=ranks, at=exchange.line, lane=lane)
    launch = site.around(in_turn(steps))
    weakref.finalize(launch, _give_up, requests, memory)
    return launch, site


def _give_up(requests: Sequence[Any], memory: SharedMemory) -> None:
    """When nobody can launch an exchange any more; until then others may read this memory."""
    free(requests)
    del memory


def _way(
    exchange: Exchange, phases: Phases, joined: MpiWorld, ranks: Collection[int]
) -> Bind | None:
    """How an exchange is done where its members need not send and receive arrays."""
    if any(tensor.dtype.is_object for tensor in exchange.inputs):
        return bind_parcels
    if len(ranks) < 2 or not joined.share_memory(ranks):
        return None
    if _largest_route(phases, joined) >= SHARED:
        if is_cooperative(phases, joined.owner):
            return bind_cooperative_broadcast
        return bind_all_reduce if len(phases.phases) == 2 else bind_shared
    return bind_exchange if IN_ORDER else None


def _largest_route(phases: Phases, joined: MpiWorld) -> int:
    found = [routes(gathers, joined.owner) for gathers in phases.phases]
    sizes = [sum(box.nbytes for box in boxes) for here in found for boxes in here.values()]
    return max(sizes, default=0)


class MpiComm:
    """Joins the devices of a plan over all processes of the program.

    Args:
        devices: all devices; `MpiWorld.owner` tells the process of each.

    Attributes:
        devices: all devices that it joins.
        local: those of this process, which may be none.
    """

    name = "mpi"

    def __init__(self, devices: Sequence[Device], joined: MpiWorld | None = None) -> None:
        self._world = joined or world()
        self.devices = tuple(devices)
        self.local = tuple(d for d in devices if self._world.owner(d) == self._world.rank)
        self._memory = SharedMemory()
        self._alone = len(self._world.neighbours[self._world.rank]) == 1  # all processes ask
        self._sent: list[tuple[Site, Counter[DevicePair]]] = []

    def arena(self, device: Device, nbytes: int) -> Arena | None:
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
        launch, site = _bound(exchange, phases, self._world, self._memory)
        if not set(exchange.devices) & set(self.local):
            return ()
        links = links_from(exchange, self.local, inputs, outputs)
        if links:
            self._sent.append((site, links))
        return (*copies, launch)

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

    def sent(self) -> Mapping[DevicePair, int]:
        """Bytes that local devices have sent so far, by (from, to)."""
        total: Counter[DevicePair] = Counter()
        for site, links in self._sent:
            for link, nbytes in links.items():
                total[link] += nbytes * site.count
        return {link: nbytes for link, nbytes in total.items() if nbytes}
