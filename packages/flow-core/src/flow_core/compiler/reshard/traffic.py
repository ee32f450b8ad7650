"""The traffic of collectives in closed form, in time proportional to the number of devices.

In most collectives, the number of elements from a sender to a receiver is a product of two factors,
one per device.  The receivers of a sender then differ only in their factor and in their link to the
sender, so that it is enough to count them.

>>> from flow_core.costs.links import Link
>>> links = LinkModel((Link("wire", "all", 0.0, 2.0),))
>>> devices = devices_of(Placement.parse("gpu", "0:0-3"))
>>> gather = Outer(devices, devices, (2, 2, 1, 1), (1, 1, 1, 1))
>>> gather.elements(), gather.times(1, links)[0]
(18, [3.0, 3.0, 1.5, 1.5])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from flow_core.costs.links import LinkModel
from flow_core.sharding.topology import Device, Placement


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
    columns = []
    pairs = zip(links.groups(tuple(own[0])), links.groups(tuple(others[0])), strict=True)
    for mine, theirs in pairs:
        counts: dict[int, Counter[int]] = {}
        for (group, factor), count in Counter(zip(theirs, others[1], strict=True)).items():
            counts.setdefault(group, Counter())[factor] = count
        columns.append([counts.get(group, _NONE) for group in mine])
    itself = dict(zip(*others, strict=True))
    known: dict[tuple[object, ...], float] = {}
    found = []
    rows = zip(*own, zip(*columns, strict=True), links.flows(own[0]), strict=True)
    for device, factor, near, flows in rows:
        key = *map(id, near), factor, itself.get(device), flows
        time = known.get(key)
        if time is None:
            time = known[key] = _time(near, factor, itself.get(device), itemsize, links, flows)
        found.append(time)
    return found


_NONE: Counter[int] = Counter()


def _time(
    near: Sequence[Counter[int]],
    factor: int,
    itself: int | None,
    itemsize: int,
    links: LinkModel,
    flows: tuple[int, ...],
) -> float:
    """Return the time of one device's transfers; empty transfers do not take place.

    Args:
        near: for each class of links, the number of other ends with each factor in the device's
            group, with the device itself.
        factor: the device's factor.
        itself: the device's factor as the other end; None if it is not one.
        itemsize: the size of an element in bytes.
        links: the link model.
        flows: for each class of links, the number of devices that share the device's uplink.
    """
    time, closer = 0.0, Counter(() if itself is None else (itself,))
    for link, counts, shared in zip(links.classes, near, flows, strict=True):
        for other, count in counts.items():
            nbytes = factor * other * itemsize
            if nbytes:
                time += (count - closer[other]) * link.seconds(nbytes, shared)
        closer = counts or closer
    return time
