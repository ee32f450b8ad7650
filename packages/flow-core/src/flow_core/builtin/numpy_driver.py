"""Driver of CPU devices, based on numpy: one allocation per plan; launches run in a plain loop."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.builtin.calls import joined
from flow_core.device import Driver, Event, Launch, Stream
from flow_core.sharding.topology import Device

PAGE = 64


class NumpyArena:
    """One allocation whose start is aligned to a cache line.

    Attributes:
        memory: the array that owns the memory; all arrays in the arena keep it alive.
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
    """A completed event, since a stream never has pending work."""

    def wait(self) -> None:
        """Return at once: launches run synchronously."""


class NumpyStream:
    """A stream whose launches run when they are called, so that nothing is ever pending."""

    def record(self) -> Event:
        return NumpyEvent()

    def wait_event(self, event: Event) -> None:
        event.wait()

    def synchronize(self) -> None:
        """Return at once."""


class NumpyDriver(Driver):
    """Driver of one CPU device.

    Attributes:
        compile_group: one group for all devices, since all launches run in the calling thread.

    >>> driver = NumpyDriver(Device("cpu", 0, 0))
    >>> driver.allocate(64).view(0, (4, 2), "float32").shape
    (4, 2)
    """

    compile_group = "numpy"

    def __init__(self, device: Device, limit: int | None = None) -> None:
        self.device = device
        self._free = limit

    def allocate(self, nbytes: int) -> NumpyArena:
        """Allocate ``nbytes`` bytes of uninitialized memory."""
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
        """Copy a host array into an array of the plan."""
        target[...] = source  # half of the time of np.copyto

    def copy_out(self, source: Array, target: Array | None = None) -> Array:
        """Copy an array of the plan into ``target``, or into a new array, and return the copy."""
        if target is None:
            return source.copy()
        np.copyto(target, source)
        return target

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """Return one callable that runs a step's launches with floating-point warnings off.

        Consecutive launches of a package that can join them are one call; see `Joinable`.
        """
        steps = tuple(joined(launches))
        if len(steps) == 1 and hasattr(steps[0], "join"):
            return steps[0]

        def run() -> None:
            with np.errstate(all="ignore"):
                for step in steps:
                    step()

        return run

    def memory(self) -> int | None:
        """Return the unused bytes of the limit; None if only the operating system sets a limit."""
        return self._free
