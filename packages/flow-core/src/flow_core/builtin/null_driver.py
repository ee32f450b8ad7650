"""Driver and comm of null devices, which allocate and run nothing but count the requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import PlanError
from flow_core.comm.exchange import DevicePair, Exchange, check_arrays
from flow_core.device import Comm, Driver, Event, Launch, Stream
from flow_core.sharding.topology import Device


@dataclass(frozen=True, slots=True)
class NullArray:
    """An array of the null device: a position in an arena, without contents.

    >>> NullArray(64, (2, 3), np.dtype("float32")).nbytes
    24
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes that the array would occupy on a real device."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class NullArena:
    """An arena that has a size but no memory."""

    nbytes: int

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> NullArray:
        """Return the array at byte ``offset``.

        Raises `PlanError` if the array would be outside the arena.
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
    """An event that has completed."""

    def wait(self) -> None:
        """Return at once."""


class NullStream:
    """A stream on which nothing is ever queued."""

    def record(self) -> Event:
        return NullEvent()

    def wait_event(self, event: Event) -> None:
        event.wait()

    def synchronize(self) -> None:
        """Return at once."""


class NullDriver(Driver):
    """Driver of one null device.

    Attributes:
        allocated: bytes of all arenas together.
        launched: number of launches that a real device would have run.
        copied_in, copied_out: bytes that a real device would have copied in and out.

    >>> driver = NullDriver(Device("null", 0, 0))
    >>> step = driver.compile([print, print])
    >>> step(), step(), driver.launched
    (None, None, 4)
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.allocated = self.launched = self.copied_in = self.copied_out = 0

    def allocate(self, nbytes: int) -> NullArena:
        """Return an arena without memory."""
        self.allocated += nbytes
        return NullArena(nbytes)

    def stream(self, name: str) -> Stream:
        return NullStream()

    def copy_in(self, target: NullArray, source: Any) -> None:
        """Count the bytes of a host array.

        Raises `PlanError` if the shapes or element types differ.
        """
        array = np.asarray(source)
        if (array.shape, array.dtype) != (target.shape, target.dtype):
            raise PlanError(
                "copying into an array of the null device",
                found=f"{array.dtype}{list(array.shape)}",
                allowed=f"{target.dtype}{list(target.shape)}",
            )
        self.copied_in += target.nbytes

    def copy_out(self, source: NullArray, target: Array | None = None) -> Array:
        """Return zeros with the shape and element type of ``source``: nothing was computed."""
        self.copied_out += source.nbytes
        if target is None:
            return np.zeros(source.shape, source.dtype)
        target.fill(0)
        return target

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """Return a callable that counts the launches instead of running them."""
        count = len(launches)

        def run() -> None:
            self.launched += count

        return run

    def memory(self) -> int | None:
        """Return None, which means that memory has no limit."""
        return None


class NullComm(Comm):
    """Communicator (comm) of null devices, which checks the bound arrays and sends nothing.

    Attributes:
        devices, local: all devices that the comm connects.
        bound: the exchanges bound so far.
    """

    name = "null"

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = self.local = tuple(devices)
        self.bound: list[Exchange] = []

    def bind(
        self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[Launch, ...]:
        """Check the arrays of an exchange and return no launches."""
        check_arrays(exchange, self.local, inputs, outputs)
        self.bound.append(exchange)
        return ()

    def sent(self) -> Mapping[DevicePair, int]:
        """Return an empty mapping, because no bytes are sent."""
        return {}
