"""Driver of the CPU with numpy: one allocation per plan, launches in a plain loop."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.device import Event, Launch, Stream
from flow_core.sharding.topology import Device

PAGE = 64


class NumpyArena:
    """One allocation, aligned to a cache line.

    Attributes:
        nbytes: size in bytes.
        memory: the array that owns the memory, referenced by all arrays in it.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = np.empty(nbytes + PAGE, np.uint8)
        start = -self.memory.ctypes.data % PAGE
        self._bytes = self.memory[start : start + nbytes]

    def view(self, offset: int, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return the C-contiguous array of ``shape`` at byte ``offset``."""
        size = prod(shape) * np.dtype(dtype).itemsize
        return self._bytes[offset : offset + size].view(dtype).reshape(shape)


class NumpyEvent:
    """An event of a stream that is always up to date."""

    def wait(self) -> None:
        """Return at once: launches run synchronously."""


class NumpyStream:
    """A stream whose launches run when they are called, so that it never waits."""

    def record(self) -> Event:
        """Return a completed event."""
        return NumpyEvent()

    def wait_event(self, event: Event) -> None:
        """Wait for an event of another stream."""
        event.wait()

    def synchronize(self) -> None:
        """Return at once."""


class NumpyDriver:
    """Driver of one CPU device.

    Args:
        device: the device.
        limit: bytes of memory of the device, None for no limit.

    Attributes:
        device: the device.
        compile_group: launches run in the calling thread, whichever device they belong to.

    >>> driver = NumpyDriver(Device("cpu", 0, 0))
    >>> driver.allocate(64).view(0, (4, 2), "float32").shape
    (4, 2)
    """

    compile_group = "numpy"

    def __init__(self, device: Device, limit: int | None = None) -> None:
        self.device = device
        self._free = limit

    def allocate(self, nbytes: int) -> NumpyArena:
        """Allocate ``nbytes`` bytes, not initialised."""
        arena = NumpyArena(nbytes)
        if self._free is not None:
            self._take(nbytes)
            weakref.finalize(arena.memory, self._take, -nbytes)
        return arena

    def _take(self, nbytes: int) -> None:
        self._free = None if self._free is None else self._free - nbytes

    def stream(self, name: str) -> Stream:
        """Create a stream."""
        return NumpyStream()

    def copy_in(self, target: Array, source: Array) -> None:
        """Copy a host array into a planned array."""
        np.copyto(target, source)

    def copy_out(self, source: Array, target: Array | None = None) -> Array:
        """Copy a planned array into ``target``, by default a new array, and return it."""
        if target is None:
            return source.copy()
        np.copyto(target, source)
        return target

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """Return one callable for a step's launches, with floating-point warnings off."""
        steps = tuple(launches)

        def run() -> None:
            with np.errstate(all="ignore"):
                for step in steps:
                    step()

        return run

    def memory(self) -> int | None:
        """Return the remaining bytes of the limit, None for no limit but the operating system's."""
        return self._free
