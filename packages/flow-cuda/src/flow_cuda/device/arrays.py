"""Arrays in device memory: address, shape, element type and owning allocation."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import DeviceCopier
from flow_cuda.device.hardware import Hardware, Memory


@dataclass(frozen=True, slots=True, eq=False)
class DeviceArray:
    """A C-contiguous array in device memory."""

    memory: Memory  # the allocation, which the array keeps alive
    address: int  # address of the first element
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    hardware: Hardware

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Total size in bytes."""
        return self.size * self.itemsize

    @property
    def span(self) -> tuple[int, int]:
        return self.address, self.address + self.nbytes

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return a view of the elements with another shape; one size may be -1."""
        sizes = tuple(shape[0]) if shape and isinstance(shape[0], tuple | list) else shape
        if -1 in sizes:
            rest = prod(n for n in sizes if n != -1)
            sizes = tuple(self.size // rest if n == -1 else n for n in sizes)
        if prod(sizes) != self.size:
            raise ValueError(f"cannot reshape an array of shape {self.shape} to {sizes}")
        return DeviceArray(self.memory, self.address, sizes, self.dtype, self.hardware)

    def part(self, offset: int, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """Return a view with another shape and type that starts ``offset`` bytes into the array."""
        return DeviceArray(
            self.memory, self.address + offset, shape, np.dtype(dtype), self.hardware
        )

    @property
    def copier(self) -> DeviceCopier:
        """Operations that communication backends may run on the array's device."""
        return self.hardware.copier

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA Array Interface (version 3)."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }


@dataclass(frozen=True, slots=True)
class GpuArena:
    """One allocation on a device."""

    nbytes: int
    memory: Memory
    hardware: Hardware

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """Return a C-contiguous array of ``shape`` that starts at byte ``offset``."""
        address = self.memory.address + offset
        return DeviceArray(self.memory, address, tuple(shape), np.dtype(dtype), self.hardware)
