"""The traffic of collectives in closed form, in time proportional to the number of devices.

In most collectives, the number of elements from a sender to a receiver is a product of two factors,
one per device.  The receivers of a sender then differ only in their factor and in their machine, so
that it is enough to count them.

>>> from flow_core.sharding.topology import Placement
>>> devices = devices_of(Placement.parse("gpu", "0:0-3"))
>>> gather = Outer(devices, devices, (2, 2, 1, 1), (1, 1, 1, 1))
>>> gather.elements(), gather.times(1, LinkModel(machine=Link(0.0, 2.0)))[0]
(18, [3.0, 3.0, 1.5, 1.5])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from flow_core.sharding.topology import Device, Link, LinkModel, Placement


@lru_cache(maxsize=1024)
def devices_of(placement: Placement) -> tuple[Device, ...]:
    """Return the devices of a placement, by rank."""
    return tuple(placement.device(rank) for rank in range(placement.size))


@dataclass(frozen=True, slots=True)
class Outer:
    """Transfers from every sender to every receiver other than itself.

    Attributes:
        senders, receivers: the devices; no device occurs twice in one of them.
        given, taken: a factor for each sender and receiver.  The number of elements of a transfer
            is the product of its two factors.
    """

    senders: tuple[Device, ...]
    receivers: tuple[Device, ...]
    given: Sequence[int]
    taken: Sequence[int]

    def elements(self) -> int:
        """Return the number of elements of all transfers together."""
        taken = dict(zip(self.receivers, self.taken, strict=True))
        own = zip(self.senders, self.given, strict=True)
        return sum(self.given) * sum(self.taken) - sum(n * taken.get(d, 0) for d, n in own)

    def times(self, itemsize: int, links: LinkModel) -> tuple[list[float], list[float]]:
        """Return the predicted times of each sender and of each receiver."""
        ends = (self.senders, self.given), (self.receivers, self.taken)
        return _times(*ends, itemsize, links), _times(*ends[::-1], itemsize, links)


Ends = tuple[Sequence[Device], Sequence[int]]
"""Devices and their factors."""


def _times(own: Ends, others: Ends, itemsize: int, links: LinkModel) -> list[float]:
    """Return the time that each device of one end needs for its transfers with the other end."""
    everywhere = Counter(others[1])
    at_machine: dict[int, Counter[int]] = {}
    for device, factor in zip(*others, strict=True):
        at_machine.setdefault(device.machine, Counter())[factor] += 1
    received = dict(zip(*others, strict=True))
    known: dict[tuple[int, int, int | None], float] = {}
    found = []
    for device, factor in zip(*own, strict=True):
        itself = received.get(device)
        key = device.machine, factor, itself
        if key not in known:
            near = at_machine.get(device.machine, Counter())
            far = Counter({n: count - near[n] for n, count in everywhere.items()})
            near = near - Counter([] if itself is None else [itself])
            scale = factor * itemsize
            known[key] = _total(near, scale, links.machine) + _total(far, scale, links.network)
        found.append(known[key])
    return found


def _total(factors: Counter[int], scale: int, link: Link) -> float:
    """Return the time of transfers over links of one class; empty transfers do not take place."""
    return sum(count * link.seconds(n * scale) for n, count in factors.items() if n * scale)
