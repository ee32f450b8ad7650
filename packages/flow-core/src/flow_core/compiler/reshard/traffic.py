"""The traffic of collectives in closed form, in time proportional to the number of devices.

In most collectives, the number of elements from a sender to a receiver is a product of two factors,
one per device.  The receivers of a sender then differ only in their factor and in their link to the
sender, so that it is enough to count them.

>>> from flow_core.costs.links import Link
>>> from flow_core.sharding.topology import Placement, devices_of
>>> links = LinkModel((Link("wire", "all", 0.0, 2.0),))
>>> devices = devices_of(Placement.parse("gpu", "0:0-3"))
>>> gather = Outer(devices, devices, np.array([2, 2, 1, 1]), np.array([1, 1, 1, 1]))
>>> gather.elements(), gather.times(1, links)[0].tolist()
(18, [3.0, 3.0, 1.5, 1.5])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flow_core.costs.links import LinkModel
from flow_core.sharding.layouts import Ints
from flow_core.sharding.topology import Device


def balanced_sizes(n: int, parts: int) -> Ints:
    """Return the sizes of a balanced split.

    >>> balanced_sizes(7, 3).tolist()
    [3, 2, 2]
    """
    base, extra = divmod(n, parts)
    return base + (np.arange(parts) < extra)


@dataclass(frozen=True, slots=True, eq=False)
class Outer:
    """Transfers from every sender to every receiver other than itself.

    Attributes:
        senders, receivers: the devices; no device occurs twice in one of them.
        given, taken: a factor for each sender and receiver.  The number of elements of a transfer
            is the product of its two factors.
    """

    senders: tuple[Device, ...]
    receivers: tuple[Device, ...]
    given: Ints
    taken: Ints

    def elements(self) -> int:
        """Return the number of elements of all transfers together."""
        at = _positions(self.senders, self.receivers)
        own = self.given[at >= 0] @ self.taken[at[at >= 0]]
        return int(self.given.sum()) * int(self.taken.sum()) - int(own)

    def times(self, itemsize: int, links: LinkModel) -> tuple[NDArray[np.float64], ...]:
        """Return the predicted times of each sender and of each receiver."""
        ends = (self.senders, self.given), (self.receivers, self.taken)
        return _times(*ends, itemsize, links), _times(*ends[::-1], itemsize, links)


Ends = tuple[tuple[Device, ...], Ints]
"""Devices and their factors."""


def _times(own: Ends, others: Ends, itemsize: int, links: LinkModel) -> NDArray[np.float64]:
    """Return the time that each device of one end needs for its transfers with the other end.

    Devices with equal factors and equally many ends at each distance need the same time, which is
    computed once.
    """
    values, kinds = np.unique(-others[1], return_inverse=True)  # the largest factors first
    factors: list[int] = (-values).tolist()
    itself = _positions(own[0], others[0])
    columns = [_numbered(own[1]), np.where(itself < 0, 0, 1 + kinds[itself])]
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
    key = np.zeros(len(own[0]), np.int64)
    for column in columns:
        key = key * (int(column.max()) + 1) + column
    _, first, position = np.unique(key, return_index=True, return_inverse=True)
    found = []
    for i, factor in zip(first.tolist(), own[1][first].tolist(), strict=True):
        _, alone, *places, flow = [int(column[i]) for column in columns]
        counts_near = [table[at] for table, at in zip(near, places, strict=True)]
        own_factor = factors[alone - 1] if alone else None
        found.append(_time(counts_near, factor, own_factor, itemsize, links, shared[flow]))
    return np.array(found)[position]


def _numbered(values: Ints) -> Ints:
    return np.unique(values, return_inverse=True)[1]


def _distinct_flows(
    devices: tuple[Device, ...], links: LinkModel
) -> tuple[Sequence[tuple[int, ...]], Ints]:
    """Return the distinct flows, and the position of those of each device."""
    if not any(link.uplink for link in links.classes):
        return [(1,) * len(links.classes)], np.zeros(len(devices), np.int64)
    known: dict[tuple[int, ...], int] = {}
    numbers = [known.setdefault(row, len(known)) for row in links.flows(devices)]
    return list(known), np.array(numbers, np.int64)


def _positions(devices: tuple[Device, ...], others: tuple[Device, ...]) -> Ints:
    """Return the position of each device among others, -1 if it is not one of them."""
    if devices is others:
        return np.arange(len(devices))
    known = {device: i for i, device in enumerate(others)}
    return np.array([known.get(device, -1) for device in devices], np.int64)


def _time(
    near: Sequence[Mapping[int, int]],
    factor: int,
    itself: int | None,
    itemsize: int,
    links: LinkModel,
    flows: Sequence[int],
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
    time = 0.0
    closer: Mapping[int, int] = {} if itself is None else {itself: 1}
    for link, counts, shared in zip(links.classes, near, flows, strict=True):
        for other, count in counts.items():
            nbytes = factor * other * itemsize
            if nbytes:
                time += (count - closer.get(other, 0)) * link.seconds(nbytes, shared)
        closer = counts or closer
    return time
