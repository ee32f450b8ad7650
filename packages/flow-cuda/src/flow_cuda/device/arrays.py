"""Arrays of device memory: an address, a shape, an element type, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Workbench
from flow_cuda.device.hardware import Hardware, Memory


@dataclass(frozen=True, slots=True, eq=False)
class DeviceArray:
    """A C-contiguous array.

    Attributes:
        memory: the allocation, kept alive.
        address: of the first element.
        shape, dtype: as numpy's.
        hardware: the device.
    """

    memory: Memory
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    hardware: Hardware

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def span(self) -> tuple[int, int]:
        """The addresses that it covers."""
        return self.address, self.address + self.nbytes

    def reshape(self, *shape: Any) -> DeviceArray:
        """The same elements in another shape; one size may be -1."""
        sizes = tuple(shape[0]) if shape and isinstance(shape[0], tuple | list) else shape
        if -1 in sizes:
            rest = prod(n for n in sizes if n != -1)
            sizes = tuple(self.size // rest if n == -1 else n for n in sizes)
        if prod(sizes) != self.size:
            raise ValueError(f"an array of shape {self.shape} has no shape {sizes}")
        return DeviceArray(self.memory, self.address, sizes, self.dtype, self.hardware)

    def part(self, offset: int, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """What lies ``offset`` bytes after the start, in another shape and type."""
        return DeviceArray(
            self.memory, self.address + offset, shape, np.dtype(dtype), self.hardware
        )

    @property
    def workbench(self) -> Workbench:
        """What comms may do on its device."""
        return self.hardware.workbench

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What other libraries need to use the memory."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }


@dataclass(frozen=True, slots=True)
class GpuArena:
    """One allocation of a device."""

    nbytes: int
    memory: Memory
    hardware: Hardware

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """The C-contiguous array of ``shape`` that starts at byte ``offset``."""
        address = self.memory.address + offset
        return DeviceArray(self.memory, address, tuple(shape), np.dtype(dtype), self.hardware)
