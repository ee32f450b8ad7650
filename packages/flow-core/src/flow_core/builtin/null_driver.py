"""A driver that allocates nothing, runs nothing, and counts what it was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import PlanError
from flow_core.device import Event, Launch, Stream
from flow_core.exchange import DevicePair, Exchange, check_arrays
from flow_core.sharding.topology import Device


@dataclass(frozen=True, slots=True)
class NullArray:
    """What an array of the null device is: a place in an arena, without contents.

    >>> NullArray(64, (2, 3), np.dtype("float32")).nbytes
    24
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes that it would take."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class NullArena:
    """An arena of a size, without memory."""

    nbytes: int

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> NullArray:
        """The array at byte ``offset``.

        Raises:
            PlanError: it would lie outside the arena.
        """
        array = NullArray(offset, tuple(shape), np.dtype(dtype))
        if offset < 0 or offset + array.nbytes > self.nbytes:
            raise PlanError(
                "taking an array from an arena of the null device",
                found=f"bytes {offset} to {offset + array.nbytes}",
                allowed=f"0 to {self.nbytes}",
            )
        return array


class NullEvent:
    """An event that has happened."""

    def wait(self) -> None:
        """Returns at once."""


class NullStream:
    """A stream on which nothing is ever queued."""

    def record(self) -> Event:
        """An event that has happened."""
        return NullEvent()

    def wait_event(self, event: Event) -> None:
        """Waits for an event of another stream."""
        event.wait()

    def synchronize(self) -> None:
        """Returns at once."""


class NullDriver:
    """Driver of one null device.

    Attributes:
        device: the device.
        allocated: bytes of all arenas together.
        launched: launches that would have run.
        copied_in, copied_out: bytes that would have moved.

    >>> driver = NullDriver(Device("null", 0, 0))
    >>> step = driver.compile([print, print])
    >>> step(), step(), driver.launched
    (None, None, 4)
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.allocated = self.launched = self.copied_in = self.copied_out = 0

    def allocate(self, nbytes: int) -> NullArena:
        """An arena without memory."""
        self.allocated += nbytes
        return NullArena(nbytes)

    def stream(self, name: str) -> Stream:
        """A stream."""
        return NullStream()

    def copy_in(self, target: NullArray, source: Any) -> None:
        """Counts the bytes of a host array.

        Raises:
            PlanError: shapes or element types differ.
        """
        array = np.asarray(source)
        if (array.shape, array.dtype) != (target.shape, target.dtype):
            raise PlanError(
                "copying into an array of the null device",
                found=f"{array.dtype}{list(array.shape)}",
                allowed=f"{target.dtype}{list(target.shape)}",
            )
        self.copied_in += target.nbytes

    def copy_out(self, source: NullArray) -> Array:
        """Zeros of an array's shape and element type, since nothing was computed."""
        self.copied_out += source.nbytes
        return np.zeros(source.shape, source.dtype)

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """A callable that counts a stream's launches instead of running them."""
        count = len(launches)

        def run() -> None:
            self.launched += count

        return run

    def memory(self) -> int | None:
        """No limit."""
        return None


class NullComm:
    """Joins null devices: checks what is bound, and sends nothing.

    Args:
        devices: all devices.

    Attributes:
        devices, local: all devices that it joins.
        bound: the exchanges.
    """

    name = "null"

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = self.local = tuple(devices)
        self.bound: list[Exchange] = []

    def bind(
        self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[Launch, ...]:
        """No launches."""
        check_arrays(exchange, self.local, inputs, outputs)
        self.bound.append(exchange)
        return ()

    def sent(self) -> Mapping[DevicePair, int]:
        """Nothing."""
        return {}
