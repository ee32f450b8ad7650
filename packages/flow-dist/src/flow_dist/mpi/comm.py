"""The communicator (comm) over MPI: exchanges in host memory between devices of processes."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flow_core.authoring.backends import Arena, Comm, DevicePair, Exchange, Launch, check_arrays
from flow_core.authoring.specs import Device
from flow_core.base.dtypes import tensor_buffer
from flow_core.base.errors import UnsupportedError
from flow_dist.control.watch import WATCH, Site
from flow_dist.mpi.all_reduce import bind_collectively
from flow_dist.mpi.point_to_point import bind_point_to_point
from flow_dist.mpi.ragged_messages import bind_ragged
from flow_dist.mpi.world import MpiWorld, free_requests, world
from flow_dist.phases import (
    Phases,
    copy_overwritten_inputs,
    in_sequence,
    is_small,
    link_bytes,
    phases_of,
    routes,
    what_of,
)
from flow_dist.shm.all_reduce import bind_all_reduce
from flow_dist.shm.cooperative_broadcast import bind_cooperative_broadcast, is_cooperative
from flow_dist.shm.counters import TOTAL_STORE_ORDER
from flow_dist.shm.exchange import bind_exchange
from flow_dist.shm.memory import PeerGroup, SharedMemory, bind_pairwise

IN_PLACE_BYTES = 1 << 16
"""Minimum number of bytes of a route within a host for which ranks read peers' memory in place."""


MANY_RANKS = 32
"""Minimum number of ranks for which MPI's collectives run an all-reduce.

Between 2 and 4 ranks of one host, they take 1.4 to 2 times as long as persistent messages, whose
number grows with the square of the number of ranks."""

Bind = Callable[[Phases, SharedMemory, PeerGroup], Iterator[Launch]]


def _bind(
    exchange: Exchange, phases: Phases, joined: MpiWorld, memory: SharedMemory, ranks: set[int]
) -> tuple[Iterable[Launch], list[Any]]:
    """Return this process's launches of an exchange, and the requests that they start."""
    bind = _shared_transport(exchange, phases, joined, ranks)
    if bind is None:
        return bind_point_to_point(phases, joined.transport)
    takes_part = joined.rank in ranks
    if not takes_part and not phases.fills:
        return (), []
    return bind(phases, memory, joined.peer_group(ranks if takes_part else ())), []


def _is_in_chunks(exchange: Exchange, ranks: Sequence[int]) -> bool:
    """Return whether a rank needs its own transfers only, whichever transport moves them.

    Each rank of an all-reduce in chunks has a transfer with the owner of the largest chunk, and one
    with a rank without a chunk if there is one.  On these, transports depend.
    """
    is_reduced = exchange.collective == "all_reduce" and len(set(ranks)) == len(ranks)
    return is_reduced and not is_small(exchange)


def _is_collective(exchange: Exchange, ranks: Sequence[int], joined: MpiWorld) -> bool:
    """Return whether MPI's collectives run an exchange; they cannot share memory."""
    return (
        exchange.collective == "all_reduce"
        and MANY_RANKS <= len(ranks) == len(set(ranks))
        and not exchange.inputs[0].dtype.is_object
        and not (exchange.local is None and joined.share_memory(ranks))
    )


def _release(requests: Sequence[Any], memory: SharedMemory) -> None:
    """Free the requests of a launch and drop its memory, which peers may read until then."""
    free_requests(requests)
    del memory


def _shared_transport(
    exchange: Exchange, phases: Phases, joined: MpiWorld, ranks: Collection[int]
) -> Bind | None:
    """Return the function that binds an exchange over shared memory; None if MPI must send."""
    if any(tensor.dtype.is_object for tensor in exchange.inputs[:1]):
        return bind_ragged
    if len(ranks) < 2 or exchange.local is not None or not joined.share_memory(ranks):
        return None
    if _largest_route(phases, joined) >= IN_PLACE_BYTES:
        if is_cooperative(phases, joined.owner):
            return bind_cooperative_broadcast
        return bind_all_reduce if len(phases.phases) == 2 else bind_pairwise
    return bind_exchange if TOTAL_STORE_ORDER else None


def _largest_route(phases: Phases, joined: MpiWorld) -> int:
    by_phase = [routes(gathers, joined.owner) for gathers in phases.phases]
    sizes = [
        sum(box.nbytes for box in boxes) for by_route in by_phase for boxes in by_route.values()
    ]
    return max(sizes, default=0)


class MpiComm(Comm):
    """The connection of a plan's devices over all processes of the program.

    Args:
        devices: all devices; `MpiWorld.owner` maps each device to a rank.
        joined: the processes; by default all processes of the program.

    Attributes:
        devices: all devices that the comm connects.
        local: the devices of this process, possibly none.
    """

    name = "mpi"

    def __init__(self, devices: Sequence[Device], joined: MpiWorld | None = None) -> None:
        self._world = joined or world()
        self.devices = tuple(devices)
        self.local = tuple(d for d in devices if self._world.owner(d) == self._world.rank)
        self._memory = SharedMemory()
        peers = self._world.shared_memory_peers  # a collective of all processes
        self._has_peers = len(peers[self._world.rank]) > 1
        self._wanted: dict[frozenset[Device], Collection[Device] | None] = {}
        self._sent: list[tuple[Site, Exchange]] = []

    def arena(self, device: Device, nbytes: int) -> Arena | None:
        """Return memory for a local device that peers on this host can map; None without peers."""
        return self.staging(nbytes) if self._has_peers and nbytes else None

    def staging(self, nbytes: int) -> Arena:
        """Return memory that peers on this host can map."""
        return self._memory.arena(nbytes)

    def wanted(self, devices: Collection[Device], is_regular: bool) -> Collection[Device] | None:
        """Return the devices of this process, unless all processes share memory."""
        key = frozenset(devices)
        if key not in self._wanted:
            ranks = {self._world.owner(device) for device in devices}
            self._wanted[key] = None if self._world.share_memory(ranks) else self.local
        return self._wanted[key]

    def bind(
        self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[Launch, ...]:
        """Return this process's launches of an exchange; none if the process does not take part.

        Raises:
            PlanError: the arrays do not match the exchange.
            UnsupportedError: records would be sent, but they cannot leave the process that reads
                them.
        """
        check_arrays(exchange, self.local, inputs, outputs)
        self._check_no_records(exchange)
        joined, members = self._world, self._world.owners(exchange.devices)
        if joined.rank not in members:
            return ()
        copies: list[Launch] = []
        requests: list[Any] = []
        steps: Iterable[Launch]
        ranks: Collection[int] = members
        if _is_collective(exchange, members, joined):
            comm, own = joined.communicator(members, exchange.stream), members.index(joined.rank)
            steps = bind_collectively(exchange, own, comm, inputs, outputs)
        else:
            own_inputs, copies = copy_overwritten_inputs(exchange, inputs, outputs)
            is_cut = _is_in_chunks(exchange, members)
            known = replace(exchange, local=frozenset(self.local)) if is_cut else exchange
            phases = phases_of(known, own_inputs, outputs)
            if known.local is None:
                ranks = set(map(joined.owner, phases.devices))
            steps, requests = _bind(exchange, phases, joined, self._memory, set(ranks))
        lane = f"stream {exchange.stream}"
        what = what_of(exchange)
        site = WATCH.site(exchange.name, what, ranks=ranks, at=exchange.line, lane=lane)
        launch = site.around(in_sequence(steps))
        weakref.finalize(launch, _release, requests, self._memory)
        self._sent.append((site, exchange))
        return (*copies, launch)

    def _check_no_records(self, exchange: Exchange) -> None:
        one = exchange.inputs[:1]  # all have the same element type
        refused = [t for t in one if t.dtype.is_object and t.dtype != tensor_buffer]
        owners = {self._world.owner(device) for device in exchange.devices} if refused else ()
        if len(owners) > 1:
            at = f" ({exchange.line})" if exchange.line else ""
            raise UnsupportedError(
                f"binding exchange {exchange.name!r}{at}",
                found=f"{refused[0]} that is sent between ranks {sorted(owners)}",
                allowed="arrays of numbers, and tensors of changing shape",
                hint="decode records on the devices that read them; each device reads its own part "
                "of every batch",
            )

    def sent(self) -> Mapping[DevicePair, int]:
        """Return the bytes that local devices have sent so far, keyed by (sender, receiver)."""
        total: Counter[DevicePair] = Counter()
        for site, exchange in self._sent:
            for link, nbytes in link_bytes(exchange, self.local).items():
                total[link] += nbytes * site.count
        return {link: nbytes for link, nbytes in total.items() if nbytes}
