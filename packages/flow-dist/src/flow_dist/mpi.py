"""The comm over MPI: exchanges between the devices of several processes, in host memory."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.device import Arena, Launch
from flow_core.errors import UnsupportedError
from flow_core.exchange import Exchange, check_arrays
from flow_dist.phases import Phases, links_from, phases_of, routes
from flow_dist.point_to_point import bind_point_to_point
from flow_dist.shared import SharedMemory, bind_shared
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
        if joined.share_memory(ranks) and _largest_route(phases, joined) >= SHARED:
            tag = joined.wire.tags()
            here = joined.rank in ranks
            self._steps = tuple(bind_shared(phases, memory, joined.meeting(tag)) if here else ())
        else:
            steps, requests = bind_point_to_point(phases, joined.wire)
            self._steps = tuple(steps)
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
            UnsupportedError: objects, which stay in the process that made them, would leave it.
        """
        check_arrays(exchange, self.local, inputs, outputs)
        self._refuse_objects(exchange)
        phases = phases_of(exchange, inputs, outputs)
        bound = _Bound(exchange, phases, self._world, self._memory)
        if not set(exchange.devices) & set(self.local):
            return ()
        meter = _Meter(links_from(exchange, self.local, inputs, outputs))
        if not meter.links:
            return (bound,)
        self._meters.append(meter)
        return (bound, meter.count)

    def _refuse_objects(self, exchange: Exchange) -> None:
        owners = {self._world.owner(device) for device in exchange.devices}
        if len(owners) > 1 and any(t.dtype.is_object for t in exchange.inputs):
            raise UnsupportedError(
                f"binding exchange {exchange.name!r}",
                found=f"tensors of changing shape that go between ranks {sorted(owners)}",
                allowed="arrays of numbers",
                hint="decode or pad them where they are read",
            )

    def sent(self) -> Mapping[tuple[str, str], int]:
        """Bytes that local devices have sent so far, by (from, to)."""
        total: Counter[tuple[str, str]] = Counter()
        for meter in self._meters:
            for link, nbytes in meter.links.items():
                total[link] += nbytes * meter.launches
        return {link: nbytes for link, nbytes in total.items() if nbytes}
