"""The traffic of collectives in closed form, in time proportional to the number of devices.

In most collectives, the number of elements from a sender to a receiver is a product of two factors,
one per device.  The receivers of a sender then differ only in their factor and in their machine, so
that it is enough to count them.

>>> from flow_core.sharding.topology import Link
>>> devices = devices_of(Placement.parse("gpu", "0:0-3"))
>>> gather = Outer(devices, devices, (2, 2, 1, 1), (1, 1, 1, 1))
>>> gather.elements(), gather.times(1, LinkModel(machine=Link(0.0, 2.0)))[0]
(18, [3.0, 3.0, 1.5, 1.5])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from flow_core.sharding.topology import Device, LinkModel, Placement


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
    at_machine: dict[int, dict[int, int]] = {}
    for (_, machine, __), factor in zip(*others, strict=True):
        counts = at_machine.setdefault(machine, {})
        counts[factor] = counts.get(factor, 0) + 1
    near = {machine: tuple(sorted(counts.items())) for machine, counts in at_machine.items()}
    itself = dict(zip(*others, strict=True))
    known: dict[tuple[object, ...], float] = {}
    found = []
    for device, factor in zip(*own, strict=True):
        key = near.get(device.machine, ()), factor, itself.get(device)
        time = known.get(key)
        if time is None:
            time = known[key] = _time(*key, everywhere, itemsize, links)
        found.append(time)
    return found


def _time(
    near: tuple[tuple[int, int], ...],
    factor: int,
    itself: int | None,
    everywhere: Mapping[int, int],
    itemsize: int,
    links: LinkModel,
) -> float:
    """Return the time of one device's transfers; empty transfers do not take place.

    Args:
        near: the (factor, count) of the other ends on the same machine, with the device itself.
        factor: the device's factor.
        itself: the device's factor as the other end; None if it is not one.
        everywhere: the number of other ends with each factor.
        itemsize: the size of an element in bytes.
        links: the link model.
    """
    close, time = dict(near), 0.0
    for other, total in everywhere.items():
        nbytes = factor * other * itemsize
        if nbytes:
            count = close.get(other, 0)
            time += (count - (other == itself)) * links.machine.seconds(nbytes)
            time += (total - count) * links.network.seconds(nbytes)
    return time
