"""Links between devices: classes with latency, bandwidth and shared bottlenecks.

A class joins all devices of a group, such as the devices of a machine.  Classes are ordered from
the smallest groups to the one of all devices; two devices communicate over the first class of which
one group has both.

>>> links = LinkModel()
>>> links.between(Device("gpu", 0, 0), Device("gpu", 1, 0)).name
'network'
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flow_core.base.errors import ConfigError
from flow_core.sharding.hashing import HashedOnce
from flow_core.sharding.topology import Device

ALGORITHMS = ("direct", "ring", "tree", "hierarchical")
"""The algorithms of collectives; see `flow_core.costs.collectives`."""


@dataclass(frozen=True, slots=True)
class Link:
    """A class of links.

    Attributes:
        name: the name in reports.
        joins: the devices of a group: "4 devices" of a machine, "machine", "16 machines" or "all".
        latency: seconds per message.
        bandwidth: bytes per second of a device in each direction.
        uplink: bytes per second that all devices of a group of the class below together exchange
            with other groups in each direction, as over the only network adapter of a machine; 0
            for no common limit.
    """

    name: str
    joins: str
    latency: float
    bandwidth: float
    uplink: float = 0.0

    def seconds(self, nbytes: float, flows: int = 1) -> float:
        """Return the time of a message, one of several flows that share the uplink.

        >>> link = Link("wire", "all", 1e-6, 1e8, uplink=2e8)
        >>> link.seconds(100), link.seconds(100, flows=4)
        (2e-06, 3e-06)
        """
        return self.latency + nbytes * self.per_byte(flows)

    def per_byte(self, flows: int = 1) -> float:
        """Return the seconds per byte of one of several flows that share the uplink."""
        return max(1 / self.bandwidth, flows / self.uplink if self.uplink else 0.0)

    def group(self, device: Device) -> tuple[int, ...]:
        """Return the number of the group that a device belongs to.

        >>> Link("bridge", "2 devices", 0.0, 1.0).group(Device("gpu", 1, 3))
        (1, 1)
        """
        kind, size = group_size(self.joins)
        if kind == "devices":
            return device.machine, device.index // size
        return (device.machine // size,) if kind == "machines" else ()


Groups = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The numbers of groups in ascending order, and the position in them of each device's group."""


@lru_cache(maxsize=64)
def group_size(joins: str) -> tuple[str, int]:
    """Return what the groups of a class consist of, and how many of it.

    >>> [group_size(text) for text in ("4 devices", "machine", "16 machines", "all")]
    [('devices', 4), ('machines', 1), ('machines', 16), ('all', 0)]

    Raises:
        ConfigError: the text has another form.
    """
    if joins in ("machine", "all"):
        return ("machines", 1) if joins == "machine" else ("all", 0)
    match = re.fullmatch(r"([1-9][0-9]{0,6}) (devices|machines)", joins)
    if match is None:
        raise ConfigError(
            "reading a class of links",
            found=f"joins = {joins!r:.60}",
            allowed='"4 devices" (of a machine), "machine", "16 machines" or "all"',
        )
    return match[2], int(match[1])


LOCAL = Link("local", "1 devices", 0.0, 1e11)
"""The link of a device with itself; only reports use it."""


@dataclass(frozen=True, slots=True)
class LinkModel(HashedOnce):
    """The classes of links between devices, and the algorithms of collectives over them.

    Attributes:
        classes: the classes, from the smallest groups to the one of all devices.
        algorithms: the algorithms that the communication library has.  Without the hierarchical
            one, plans reduce within machines and then between them where that is faster.
    """

    classes: tuple[Link, ...] = (
        Link("machine", "machine", 2e-6, 1e10),
        Link("network", "all", 2e-5, 1.25e9),
    )
    algorithms: tuple[str, ...] = ("direct", "ring", "tree")
    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        sizes = [group_size(link.joins) for link in self.classes]
        order = ("devices", "machines", "all")
        ranks = [(order.index(kind), size) for kind, size in sizes]
        if not ranks or ranks[-1][0] != 2 or ranks != sorted(set(ranks)):
            raise ConfigError(
                "reading the classes of links",
                found=", ".join(f"{link.name} of {link.joins}" for link in self.classes) or "none",
                allowed='classes from the smallest groups to the largest one, "all"',
            )

    def between(self, a: Device, b: Device) -> Link:
        """Return the class of the link between two devices."""
        return LOCAL if a == b else self.classes[self.level(a, b)]

    def level(self, a: Device, b: Device) -> int:
        """Return the number of the first class with a group that has both devices."""
        return next(i for i, c in enumerate(self.classes) if c.group(a) == c.group(b))

    def groups(self, devices: tuple[Device, ...]) -> tuple[Groups, ...]:
        """Return, for each class, the groups of devices, and the position of each device's group.

        >>> found = LinkModel().groups((Device("gpu", 3, 0), Device("gpu", 4, 1)))
        >>> [[part.tolist() for part in groups] for groups in found]
        [[[3, 4], [0, 1]], [[0], [0, 0]]]
        """
        return _groups(self, devices)

    def flows(self, devices: Sequence[Device]) -> list[tuple[int, ...]]:
        """Return, for each device and class, how many of the devices share the device's uplink."""
        if not any(link.uplink for link in self.classes):
            return [(1,) * len(self.classes)] * len(devices)
        columns: list[list[int]] = [[1] * len(devices)]
        for below in self.classes[:-1]:
            groups = [below.group(device) for device in devices]
            count = Counter(groups)
            columns.append([count[group] for group in groups])
        return list(zip(*columns, strict=True))

    def without_latency(self) -> LinkModel:
        return _without_latency(self)


@lru_cache(maxsize=64)
def _groups(links: LinkModel, devices: tuple[Device, ...]) -> tuple[Groups, ...]:
    found = []
    machine, index = np.array([d[1:] for d in devices], np.int64).reshape(-1, 2).T
    for link in links.classes:
        kind, size = group_size(link.joins)
        if kind == "all":
            found.append(np.zeros_like(machine))
        elif kind == "machines":
            found.append(machine // size)
        else:
            found.append(machine << 32 | index // size)
    pairs = [np.unique(numbers, return_inverse=True) for numbers in found]
    return tuple([(groups, position.reshape(-1)) for groups, position in pairs])


@lru_cache(maxsize=8)
def _without_latency(links: LinkModel) -> LinkModel:
    return replace(links, classes=tuple(replace(link, latency=0.0) for link in links.classes))
