"""The comm over MPI: exchanges between the devices of several processes, in host memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.device import Launch
from flow_core.errors import UnsupportedError
from flow_core.exchange import Exchange, check_arrays
from flow_dist.phases import links_from, phases_of
from flow_dist.point_to_point import PointToPoint
from flow_dist.world import MpiWorld, world


@dataclass(slots=True)
class _Meter:
    """What one exchange sends per launch, and how often it was launched."""

    links: Counter[tuple[str, str]]
    launches: int = 0

    def count(self) -> None:
        self.launches += 1


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
        self._meters: list[_Meter] = []

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
        bound = PointToPoint(phases_of(exchange, inputs, outputs), self._world.wire)
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
