"""The traffic of collectives in closed form, in time proportional to the number of devices.

In most collectives, the number of elements from a sender to a receiver is a product of two factors,
one per device.  The receivers of a sender then differ only in their factor and in their link to the
sender, so that it is enough to count them.

>>> from flow_core.costs.links import Link
>>> from flow_core.sharding.topology import Placement, devices_of
>>> links = LinkModel((Link("wire", "all", 0.0, 2.0),))
>>> devices = devices_of(Placement.parse("gpu", "0:0-3"))
>>> gather = Outer(devices, devices, Factors.of(6, 4), Factors.of(4, 4))
>>> gather.elements(), gather.times(1, links)[0].tolist()
(18, [3.0, 3.0, 1.5, 1.5])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flow_core.costs.links import LinkModel
from flow_core.sharding.layouts import Ints, positions
from flow_core.sharding.topology import Devices


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of some devices: the sizes of a balanced split, times the size of each element.

    >>> Factors.of(7, 3, 10)
    Factors(count=3, size=20, first=30, longer=1)
    """

    count: int
    size: int  # the factor of the last device
    first: int  # the factor of the first devices, not smaller
    longer: int  # the number of the first devices

    @classmethod
    def of(cls, n: int, parts: int, each: int = 1) -> Factors:
        """Return the sizes of the parts of ``n`` elements of ``each`` units."""
        base, longer = divmod(n, parts)
        return cls(parts, base * each, (base + (longer > 0)) * each, longer or parts)

    def array(self) -> Ints:
        return np.where(self.kinds(), self.size, self.first)

    def kinds(self) -> Ints:
        """Return the number of the factor of each device: 0 for the first one, 1 for the other."""
        return (np.arange(self.count) >= self.longer).astype(np.int64)

    def total(self) -> int:
        return self.longer * self.first + (self.count - self.longer) * self.size


@dataclass(frozen=True, slots=True)
class Outer:
    """Transfers from every sender to every receiver other than itself."""

    senders: Devices  # no device occurs twice
    receivers: Devices  # no device occurs twice
    # A factor for each sender and receiver.  The number of elements of a transfer is the product of
    # its two factors.
    given: Factors
    taken: Factors

    def elements(self) -> int:
        """Return the number of elements of all transfers together."""
        at = positions(self.senders, self.receivers)
        own = self.given.array()[at >= 0] @ self.taken.array()[at[at >= 0]]
        return self.given.total() * self.taken.total() - int(own)

    def times(self, itemsize: int, links: LinkModel) -> tuple[NDArray[np.float64], ...]:
        """Return the predicted times of each sender and of each receiver."""
        ends = (self.senders, self.given), (self.receivers, self.taken)
        return _times(*ends, itemsize, links), _times(*ends[::-1], itemsize, links)


@dataclass(frozen=True, slots=True)
class Listed:
    """Transfers that are listed, as arrays."""

    senders: Devices
    receivers: Devices
    given: Ints  # the position of the sender of each transfer
    taken: Ints  # the position of its receiver
    sizes: Ints  # the number of elements of each transfer, not 0

    @classmethod
    def between(
        cls, senders: Devices, receivers: Devices, given: Ints, taken: Ints, sizes: Ints
    ) -> Listed:
        """Return those of some transfers that cross devices and have elements."""
        moving = (sizes > 0) & (positions(receivers, senders)[taken] != given)
        return cls(senders, receivers, given[moving], taken[moving], sizes[moving])

    def elements(self) -> int:
        """Return the number of elements of all transfers together."""
        return int(self.sizes.sum())

    def times(self, itemsize: int, links: LinkModel) -> tuple[NDArray[np.float64], ...]:
        """Return the predicted times of each sender and of each receiver."""
        ends = (self.senders, self.given), (self.receivers, self.taken)
        own, other = (
            [groups[position] for groups, position in links.groups(devices)] for devices, _ in ends
        )
        level = np.zeros(len(self.sizes), np.int64)
        for i in range(len(links.classes) - 1, -1, -1):
            level[own[i][self.given] == other[i][self.taken]] = i
        latency = np.array([link.latency for link in links.classes])[level]
        found = []
        for devices, at in ends:
            seconds = latency + self.sizes * itemsize * _per_byte(devices, at, links)[at, level]
            found.append(np.bincount(at, seconds, len(devices)).astype(np.float64))
        return tuple(found)


def _per_byte(devices: Devices, used: Ints, links: LinkModel) -> NDArray[np.float64]:
    """Return the seconds per byte of each device over each class of links."""
    found = np.zeros((len(devices), len(links.classes)))
    taking = np.unique(used)
    kinds, of_device = _distinct_flows(Devices([devices[i] for i in taking.tolist()]), links)
    rows = [
        [link.per_byte(n) for link, n in zip(links.classes, flows, strict=True)] for flows in kinds
    ]
    found[taking] = np.array(rows).reshape(-1, len(links.classes))[of_device]
    return found


Ends = tuple[Devices, Factors]
"""Devices and their factors."""


@lru_cache(maxsize=64)
def _times(own: Ends, others: Ends, itemsize: int, links: LinkModel) -> NDArray[np.float64]:
    """Return the time that each device of one end needs for its transfers with the other end.

    Devices with equal factors and equally many ends at each distance need the same time, which is
    computed once.
    """
    kinds, factors = others[1].kinds(), (others[1].first, others[1].size)
    itself = positions(own[0], others[0])
    columns = [own[1].kinds(), np.where(itself < 0, 0, 1 + kinds[itself])]
    near: list[Sequence[Mapping[int, int]]] = []
    for mine, theirs in zip(links.groups(own[0]), links.groups(others[0]), strict=True):
        groups, of_other = theirs
        size = len(groups), len(factors)
        counts = np.bincount(of_other * size[1] + kinds, minlength=size[0] * size[1]).reshape(size)
        rows, row_of = np.unique(counts, axis=0, return_inverse=True)
        at = np.minimum(np.searchsorted(groups, mine[0]), size[0] - 1)
        row_at = np.where(groups[at] == mine[0], row_of.reshape(-1)[at], len(rows))
        columns.append(row_at[mine[1]])
        near.append([
            {factors[i]: n for i, n in enumerate(row) if n} for row in [*rows.tolist(), ()]
        ])  # fmt: skip
    shared, of_device = _distinct_flows(own[0], links)
    columns.append(of_device)
    # The columns are the digits of a number: devices with equal numbers agree in all columns.
    key = np.zeros(len(own[0]), np.int64)
    for column in columns:
        key = key * (int(column.max()) + 1) + column
    first, position = _distinct(key)
    found = []
    for i in first:
        factor = own[1].first if i < own[1].longer else own[1].size
        _, alone, *places, flow = [int(column[i]) for column in columns]
        counts_near = [table[at] for table, at in zip(near, places, strict=True)]
        own_factor = factors[alone - 1] if alone else None
        found.append(_time(counts_near, factor, own_factor, itemsize, links, shared[flow]))
    return np.array(found)[position]


def _distinct(key: Ints) -> tuple[list[int], Ints]:
    """Return where each value is first, and the number of each entry's value.

    >>> _distinct(np.array([5, 2, 5]))[0], _distinct(np.array([5, 2, 5]))[1].tolist()
    ([1, 0], [1, 0, 1])
    """
    if int(key.max()) > 8 * len(key):  # too many possible values for a table
        _, first, position = np.unique(key, return_index=True, return_inverse=True)
        return first.tolist(), position
    at = np.full(int(key.max()) + 1, -1, np.int64)
    at[key[::-1]] = np.arange(len(key))[::-1]  # the last assignment counts
    values = np.flatnonzero(at >= 0)
    number = np.zeros_like(at)
    number[values] = np.arange(len(values))
    return at[values].tolist(), number[key]


def _distinct_flows(devices: Devices, links: LinkModel) -> tuple[Sequence[tuple[int, ...]], Ints]:
    """Return the distinct flows, and the position of those of each device."""
    if not any(link.uplink for link in links.classes):
        return [(1,) * len(links.classes)], np.zeros(len(devices), np.int64)
    known: dict[tuple[int, ...], int] = {}
    numbers = [known.setdefault(row, len(known)) for row in links.flows(devices)]
    return list(known), np.array(numbers, np.int64)


def _time(
    # For each class of links, the number of other ends with each factor in the device's group, with
    # the device itself.
    near: Sequence[Mapping[int, int]],
    factor: int,  # the device's factor
    itself: int | None,  # the device's factor as the other end; None if it is not one
    itemsize: int,  # the size of an element in bytes
    links: LinkModel,
    # For each class of links, the number of devices that share the device's uplink.
    flows: Sequence[int],
) -> float:
    """Return the time of one device's transfers; empty transfers do not take place."""
    time = 0.0
    closer: Mapping[int, int] = {} if itself is None else {itself: 1}
    for link, counts, shared in zip(links.classes, near, flows, strict=True):
        for other, count in counts.items():
            nbytes = factor * other * itemsize
            if nbytes:
                time += (count - closer.get(other, 0)) * link.seconds(nbytes, shared)
        closer = counts or closer
    return time
