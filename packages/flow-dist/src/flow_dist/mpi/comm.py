"""The communicator (comm) over MPI: exchanges in host memory between devices of processes."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
    what_of,
)
from flow_dist.shm.all_reduce import bind_all_reduce
from flow_dist.shm.counters import TOTAL_STORE_ORDER
from flow_dist.shm.exchange import bind_exchange
from flow_dist.shm.in_place import bind_in_place
from flow_dist.shm.memory import PeerGroup, SharedMemory

IN_PLACE_BYTES = 1 << 16
"""Minimum number of bytes from one device to another for which ranks of a host read in place what
their peers send."""


MANY_RANKS = 32
"""Minimum number of ranks for which MPI's collectives run an all-reduce.

Between 2 and 4 ranks of one host, they take 1.4 to 2 times as long as persistent messages, whose
number grows with the square of the number of ranks."""

Bind = Callable[[Phases, SharedMemory, PeerGroup], Iterator[Launch]]


def _is_collective(exchange: Exchange, ranks: Sequence[int], joined: MpiWorld) -> bool:
    """Return whether MPI's collectives run an exchange; they cannot share memory."""
    return (
        exchange.collective == "all_reduce"
        and MANY_RANKS <= len(ranks) == len(set(ranks))
        and not exchange.inputs[0].dtype.is_object
        and not joined.share_memory(ranks)
    )


def _release(requests: Sequence[Any], memory: SharedMemory) -> None:
    """Free the requests of a launch and drop its memory, which peers may read until then."""
    free_requests(requests)
    del memory


def _shared_transport(exchange: Exchange, ranks: Collection[int], joined: MpiWorld) -> Bind | None:
    """Return the function that binds an exchange over shared memory; None if MPI must send.

    It follows from what all ranks know of the exchange.
    """
    if any(tensor.dtype.is_object for tensor in exchange.inputs[:1]):
        return bind_ragged
    if len(set(ranks)) < 2 or not joined.share_memory(ranks):
        return None
    if exchange.most_bytes() >= IN_PLACE_BYTES:
        if exchange.collective != "all_reduce":
            return bind_in_place
        if not is_small(exchange):
            return bind_all_reduce
    return bind_exchange if TOTAL_STORE_ORDER else None


class MpiComm(Comm):
    """The connection of a plan's devices over all processes of the program.

    Args:
        devices: all devices; `MpiWorld.owner` maps each device to a rank.
        joined: the processes; by default all processes of the program.
    """

    name = "mpi"

    def __init__(self, devices: Sequence[Device], joined: MpiWorld | None = None) -> None:
        self._world = joined or world()
        self.devices = tuple(devices)  # all devices that the comm connects
        # The devices of this process, possibly none.
        self.local = tuple(d for d in devices if self._world.owner(d) == self._world.rank)
        self._memory = SharedMemory()
        peers = self._world.shared_memory_peers  # a collective of all processes
        self._has_peers = len(peers[self._world.rank]) > 1
        self._sent: list[tuple[Site, Exchange]] = []

    def arena(self, device: Device, nbytes: int) -> Arena | None:
        """Return memory for a local device that peers on this host can map; None without peers."""
        return self.staging(nbytes) if self._has_peers and nbytes else None

    def staging(self, nbytes: int) -> Arena:
        """Return memory that peers on this host can map."""
        return self._memory.arena(nbytes)

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
        if _is_collective(exchange, members, joined):
            comm, own = joined.communicator(members, exchange.stream), members.index(joined.rank)
            steps = bind_collectively(exchange, own, comm, inputs, outputs)
        else:
            own_inputs, copies = copy_overwritten_inputs(exchange, inputs, outputs)
            phases = phases_of(exchange.part_of(self.local), own_inputs, outputs)
            bind = _shared_transport(exchange, members, joined)
            if bind is None:
                steps, requests = bind_point_to_point(phases, joined.transport)
            elif any(phases.phases):
                near = set(map(joined.owner, phases.devices))
                steps = bind(phases, self._memory, joined.peer_group(near))
            else:
                steps = phases.fills
        lane = f"stream {exchange.stream}"
        what = what_of(exchange)
        site = WATCH.site(exchange.name, what, ranks=members, at=exchange.line, lane=lane)
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
