"""Devices and placements."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from flow_core.base.errors import GraphError
from flow_core.sharding.hashing import HashedOnce


class Device(NamedTuple):
    """One device of one machine.

    Attributes:
        type: device type, such as ``"gpu"``.
        machine: number of the machine.
        index: number of the device on its machine.

    >>> str(Device("gpu", 0, 1)), Device.parse("gpu:0:1") == Device("gpu", 0, 1)
    ('gpu:0:1', True)
    """

    type: str
    machine: int
    index: int  # type: ignore[assignment]  # the field's usual name; tuple.index is not used

    @classmethod
    def parse(cls, text: str) -> Device:
        """Return the device that a text such as ``"gpu:0:1"`` names.

        Raises:
            GraphError: the text does not name a device.
        """
        match = _DEVICE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise GraphError(
                "reading a device",
                found=f"{text!a:.60}",
                allowed=DEVICE_FORM,
            )
        return cls(match[1], int(match[2]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.type}:{self.machine}:{self.index}"


class Devices(tuple[Device, ...]):
    """Devices in order, a key of caches: their hash is computed once."""

    _hash: int

    def __hash__(self) -> int:
        if "_hash" not in self.__dict__:
            self._hash = super().__hash__()
        return self._hash


DEVICE_FORM = '"<type>:<machine>:<index>", such as "gpu:0:1"'
"""The text form of a device."""

_DEVICE = re.compile(r"([!-9;-~]{1,60}):([0-9]{1,9}):([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Placement(HashedOnce):
    """An ordered list of devices that an op runs on, with their hierarchy.

    >>> str(Placement.parse("gpu", "0:0-3"))
    'gpu[0:0-3]'
    """

    device_type: str
    devices: tuple[tuple[int, int], ...]
    hierarchy: tuple[int, ...] = ()
    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        if not self.hierarchy:
            object.__setattr__(self, "hierarchy", (len(self.devices),))
        object.__setattr__(self, "devices", _shared(self.devices))
        if prod(self.hierarchy) != len(self.devices):
            raise GraphError(
                "making a placement",
                found=f"hierarchy {self.hierarchy} for {len(self.devices)} devices",
                allowed="a hierarchy whose product is the number of devices",
            )

    @classmethod
    def parse(
        cls, device_type: str, ids: str | Sequence[str], hierarchy: Sequence[int] | None = None
    ) -> Placement:
        """Parse a placement in OneFlow's text form: ``"0:0-3"`` or ``["0:0-1", "1:0-1"]``.

        >>> Placement.parse("cpu", ["0:0", "1:2-3"]).devices
        ((0, 0), (1, 2), (1, 3))
        """
        texts = ids.split(";") if isinstance(ids, str) else ids
        wrong = not isinstance(texts, list | tuple) or not all(isinstance(t, str) for t in texts)
        if wrong or not texts:
            raise GraphError("reading device ids", found=f"{ids!r:.60}", allowed=_IDS)
        ranges = [_range(part) for text in texts for part in text.split(",")]
        if sum(map(_length, ranges)) > MOST_DEVICES:
            raise GraphError(
                "making a placement",
                found=f"{sum(map(_length, ranges)):,} devices in {ids!r:.60}",
                allowed=f"at most {MOST_DEVICES:,} devices",
            )
        devices = tuple((m, i) for m, first, last in ranges for i in range(first, last + 1))
        if len(set(devices)) != len(devices):
            raise GraphError("making a placement", found=f"a device twice in {ids!r:.60}")
        return cls(device_type, devices, _grid(hierarchy))

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.devices)

    def device(self, rank: int) -> Device:
        """Return the device at a position of the placement."""
        machine, index = self.devices[rank]
        return Device(self.device_type, machine, index)

    def only(self, rank: int) -> Placement:
        """Return the placement of the single device at a position.

        >>> str(Placement.parse("gpu", "0:0-3").only(2))
        'gpu[0:2]'
        """
        return Placement(self.device_type, self.devices[rank : rank + 1])

    def on_host(self) -> Placement:
        """Return a placement with one CPU for each device, on the same machine as the device.

        >>> str(Placement.parse("gpu", "0:1-2").on_host())
        'cpu[0:1-2]'
        """
        if self.device_type == "cpu":
            return self
        return Placement("cpu", self.devices, self.hierarchy)

    def __str__(self) -> str:
        return _format_placement(self)

    @classmethod
    def of_text(cls, text: str) -> Placement:
        """Return the placement of a text form.

        >>> str(Placement.of_text("gpu[0:0-1,1:2-3 as 2x2]"))
        'gpu[0:0-1,1:2-3 as 2x2]'
        """
        return _placement(text)


@lru_cache(maxsize=1024)
def _placement(text: str) -> Placement:
    kind, _, rest = text.removesuffix("]").partition("[")
    ids, _, grid = rest.partition(" as ")
    return Placement.parse(kind, ids, [int(n) for n in grid.split("x")] if grid else None)


@lru_cache(maxsize=1024)
def devices_of(placement: Placement) -> Devices:
    """Return the devices of a placement, by rank."""
    kind = placement.device_type
    return Devices([Device(kind, machine, index) for machine, index in placement.devices])


@lru_cache(maxsize=256)
def numbered(devices: Devices) -> Mapping[Device, int]:
    """Return the position of each device."""
    return {device: i for i, device in enumerate(devices)}


@lru_cache(maxsize=1024)
def _shared(devices: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return one object for equal devices, which Python compares in no time."""
    return devices


MOST_DEVICES = 1 << 16
"""Largest number of devices of a placement."""

_RANGE = re.compile(r"^@?(\d{1,9}):(\d{1,9})(?:-(\d{1,9}))?$")
_IDS = '"<machine>:<device>" or "<machine>:<first>-<last>", such as "0:0-3", or a list of these'


def _range(text: str) -> tuple[int, int, int]:
    """Return the machine, the first device and the last device that a text names."""
    match = _RANGE.match(text.strip())
    if match is None or (match[3] and int(match[3]) < int(match[2])):
        raise GraphError("reading device ids", found=f"{text!r:.60}", allowed=_IDS)
    return int(match[1]), int(match[2]), int(match[3] or match[2])


def _length(devices: tuple[int, int, int]) -> int:
    _, first, last = devices
    return last - first + 1


def _grid(hierarchy: Iterable[Any] | None) -> tuple[int, ...]:
    try:
        sizes = () if hierarchy is None else tuple(map(operator.index, hierarchy))
    except TypeError:
        sizes = (0,)
    if any(n < 1 for n in sizes):
        raise GraphError(
            "making a placement",
            found=f"hierarchy {hierarchy!r:.60}",
            allowed="a list of positive integers, such as (2, 4)",
        )
    return sizes


@lru_cache(maxsize=4096)
def _format_placement(placement: Placement) -> str:
    text = ",".join(_format_ranges(placement.devices))
    hierarchy = placement.hierarchy
    shape = "" if len(hierarchy) == 1 else " as " + "x".join(map(str, hierarchy))
    return f"{placement.device_type}[{text}{shape}]"


def _format_ranges(devices: tuple[tuple[int, int], ...]) -> list[str]:
    runs: list[list[int]] = []
    for machine, index in devices:
        if runs and runs[-1][0] == machine and runs[-1][2] == index - 1:
            runs[-1][2] = index
        else:
            runs.append([machine, index, index])
    return [f"{m}:{a}" if a == b else f"{m}:{a}-{b}" for m, a, b in runs]
