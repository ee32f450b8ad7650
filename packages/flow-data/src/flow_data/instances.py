"""Elements of ragged batches (instances): arrays of variable shape in pooled memory.

A value of type ``tensor_buffer`` holds one array per element. Kernels never modify the arrays of
their inputs, so that arrays are passed by reference; memory returns to the pool when the last array
on it is deleted.
"""

from __future__ import annotations

import sys
import threading
from math import prod
from typing import Any

import numpy as np

from flow_core.base.errors import DataError

Array = Any  # numpy.ndarray, with element type and rank known at run time

_SEARCHED = 5
"""The number of size classes that are searched for a free block: those up to twice the size."""

_SMALLEST = 4096
"""The minimum size of a block in bytes; for smaller arrays, numpy's own cache is faster."""


class RowError(DataError):
    """The error for an invalid sample of a batch."""

    row: int = -1  # the sample's position in the batch; -1 if it is unknown


class InstanceError(RowError):
    """The error for an instance whose type, shape or content is wrong for an op."""


def instance_error(
    op: str, row: int, found: str, allowed: str, hint: str | None = None
) -> InstanceError:
    """Return the error about one instance of a batch."""
    error = InstanceError(f"{op}, instance {row}", found=found, allowed=allowed, hint=hint)
    error.row = row
    return error


def describe(x: Array) -> str:
    """Return the element type and shape of an array for error messages.

    >>> describe(np.zeros((2, 3), np.uint8))
    'uint8[2,3]'
    """
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"


def size_class(nbytes: int) -> int:
    """Round a number of bytes up to one of a few block sizes, by at most a quarter.

    >>> [size_class(n) for n in (1, 4097, 10_000, 1 << 20)]
    [4096, 5120, 10240, 1048576]
    """
    if nbytes <= _SMALLEST:
        return _SMALLEST
    step = 1 << max((nbytes - 1).bit_length() - 3, 0)
    return -(-nbytes // step) * step


class Pool:
    """A pool of memory blocks of a few sizes; a block is free when no array uses it.

    Args:
        patience: number of requests after which each size class that got no new block since the
            previous check releases half of its free blocks.
    """

    def __init__(self, patience: int = 8192) -> None:
        self._patience = patience
        self._requests = 0
        self._lock = threading.Lock()
        self._classes: dict[int, _SizeClass] = {}

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array in unused memory, with arbitrary contents."""
        dtype = np.dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < _SMALLEST:
            return np.empty(shape, dtype)
        with self._lock:
            block = self._block(size_class(nbytes))
        return np.ndarray(shape, dtype, buffer=block)

    def _block(self, size: int) -> Array:
        """Return a free block of the size or up to twice the size, or else a new block."""
        self._requests += 1
        if self._requests >= self._patience:
            self._requests = 0
            for known in self._classes.values():
                known.shrink()
        own = self._classes.get(size)
        if own is None:
            own = self._classes[size] = _SizeClass(size)
        larger = size
        for _ in range(_SEARCHED):
            blocks = self._classes.get(larger)
            found = None if blocks is None else blocks.free()
            if found is not None:
                return found
            larger = size_class(larger + 1)
        return own.grow()

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, used or free."""
        with self._lock:
            return sum(c.size * len(c.blocks) for c in self._classes.values())


def _references(blocks: list[Array], index: int) -> int:
    return sys.getrefcount(blocks[index])


_FREE = _references([np.empty(1, np.uint8)], 0)
"""The reference count of a block that no array uses."""


class _SizeClass:
    """The blocks of one size; a request starts at a cursor, so that it checks few blocks."""

    __slots__ = ("blocks", "cursor", "grown", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.blocks: list[Array] = []
        self.cursor = 0
        self.grown = False

    def free(self) -> Array | None:
        """Return a block that no array uses, or None if all blocks are in use."""
        blocks = self.blocks
        for _ in range(len(blocks)):
            self.cursor = (self.cursor + 1) % len(blocks)
            if _references(blocks, self.cursor) == _FREE:
                return blocks[self.cursor]
        return None

    def grow(self) -> Array:
        """Allocate a new block."""
        self.blocks.append(np.empty(self.size, np.uint8))
        self.grown = True
        return self.blocks[-1]

    def shrink(self) -> None:
        """Release half of the free blocks, unless a block was allocated since the last call."""
        blocks = self.blocks
        if not self.grown:
            free = [i for i in range(len(blocks)) if _references(blocks, i) == _FREE]
            released = set(free[: (len(free) + 1) // 2])
            self.blocks = [b for i, b in enumerate(blocks) if i not in released]
        self.grown, self.cursor = False, 0


POOL = Pool()
"""The memory pool of this process."""


def pooled_copy(x: Array) -> Array:
    """Return a copy in pooled memory."""
    target = POOL.allocate(x.shape, x.dtype)
    np.copyto(target, x)
    return target
