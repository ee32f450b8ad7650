"""The CPU through numpy: one allocation per plan, launches in a plain loop."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from flow_core.device import Event, Launch, Stream
from flow_core.sharding.topology import Device

PAGE = 64


class NumpyArena:
    """One allocation, aligned to a cache line.

    Attributes:
        nbytes: its size.
        memory: the array that holds it, and that arrays in it hold.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = np.empty(nbytes + PAGE, np.uint8)
        start = -self.memory.ctypes.data % PAGE
        self._bytes = self.memory[start : start + nbytes]

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """The C-contiguous array of ``shape`` at byte ``offset``."""
        size = prod(shape) * np.dtype(dtype).itemsize
        return self._bytes[offset : offset + size].view(dtype).reshape(shape)


class NumpyEvent:
    """An event of a stream that is always up to date."""

    def wait(self) -> None:
        """Returns at once: launches have run when they return."""


class NumpyStream:
    """Launches run when they are called, so a stream has nothing to wait for."""

    def record(self) -> Event:
        """An event that has happened."""
        return NumpyEvent()

    def wait_event(self, event: Event) -> None:
        """Waits for an event of another stream."""
        event.wait()

    def synchronize(self) -> None:
        """Returns at once."""


class NumpyDriver:
    """Driver of one CPU device.

    Args:
        device: the device.
        limit: bytes of memory of the device, None for no limit.

    >>> driver = NumpyDriver(Device("cpu", 0, 0))
    >>> driver.allocate(64).view(0, (4, 2), "float32").shape
    (4, 2)
    """

    def __init__(self, device: Device, limit: int | None = None) -> None:
        self.device = device
        self._free = limit

    def allocate(self, nbytes: int) -> NumpyArena:
        """One allocation of ``nbytes`` bytes, not initialised."""
        arena = NumpyArena(nbytes)
        if self._free is not None:
            self._take(nbytes)
            weakref.finalize(arena.memory, self._take, -nbytes)
        return arena

    def _take(self, nbytes: int) -> None:
        self._free = None if self._free is None else self._free - nbytes

    def stream(self, name: str) -> Stream:
        """A stream."""
        return NumpyStream()

    def copy_in(self, target: Any, source: Any) -> None:
        """Copies a host array into a planned array."""
        np.copyto(target, source)

    def copy_out(self, source: Any) -> Any:
        """A new array with the contents of a planned one."""
        return source.copy()

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """One callable for a step's launches, with floating point warnings off."""
        steps = tuple(launches)

        def run() -> None:
            with np.errstate(all="ignore"):
                for step in steps:
                    step()

        return run

    def memory(self) -> int | None:
        """What is left of the limit; without one, the operating system's holds."""
        return self._free
