"""Instances of ragged values: arrays of changing shape in pooled memory.

A value of type ``tensor_buffer`` holds an array per element.  Kernels never change an array that
they did not make, so arrays are handed on and never copied, and memory goes back to the pool
when the last array on it is gone.
"""

from __future__ import annotations

import sys
import threading
from math import prod
from typing import Any

import numpy as np

from flow_core.base.errors import DataError

Array = Any  # numpy.ndarray; its element type and rank are known when it is there

_SEARCHED = 5
"""In so many size classes a free block is looked for: those up to twice the size."""

_SMALLEST = 4096
"""Below this many bytes numpy's own cache of small blocks is faster."""


class RowError(DataError):
    """A sample of a batch is unusable.

    Attributes:
        row: its position in the batch, -1 while that is not known.
    """

    row: int = -1


class InstanceError(RowError):
    """An instance of a ragged value is not what an op needs."""


def fail(op: str, row: int, found: str, allowed: str, hint: str | None = None) -> InstanceError:
    """The error about one instance of a batch."""
    error = InstanceError(f"{op}, instance {row}", found=found, allowed=allowed, hint=hint)
    error.row = row
    return error


def describe(x: Array) -> str:
    """Element type and shape, as errors show them.

    >>> describe(np.zeros((2, 3), np.uint8))
    'uint8[2,3]'
    """
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"


def size_class(nbytes: int) -> int:
    """The block size for a number of bytes: at most a quarter more, in few sizes.

    >>> [size_class(n) for n in (1, 4097, 10_000, 1 << 20)]
    [4096, 5120, 10240, 1048576]
    """
    if nbytes <= _SMALLEST:
        return _SMALLEST
    step = 1 << max((nbytes - 1).bit_length() - 3, 0)
    return -(-nbytes // step) * step


class Pool:
    """Blocks of memory in few sizes, free when no array uses them.

    Args:
        patience: after how many requests sizes without a new block give up half of their free
            blocks.
    """

    def __init__(self, patience: int = 8192) -> None:
        self._patience = patience
        self._requests = 0
        self._lock = threading.Lock()
        self._classes: dict[int, _SizeClass] = {}

    def take(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array that nobody else uses; its contents are arbitrary."""
        dtype = np.dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < _SMALLEST:
            return np.empty(shape, dtype)
        with self._lock:
            block = self._block(size_class(nbytes))
        return np.ndarray(shape, dtype, buffer=block)

    def _block(self, size: int) -> Array:
        """A free block of the size, else of one up to twice as large, else a new one."""
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
        """Bytes held, in use or not."""
        with self._lock:
            return sum(c.size * len(c.blocks) for c in self._classes.values())


def _references(blocks: list[Array], index: int) -> int:
    return sys.getrefcount(blocks[index])


_FREE = _references([np.empty(1, np.uint8)], 0)
"""References to a block that no array uses."""


class _SizeClass:
    """The blocks of one size; a cursor goes round, so that a request looks at few of them."""

    __slots__ = ("blocks", "cursor", "grown", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.blocks: list[Array] = []
        self.cursor = 0
        self.grown = False

    def free(self) -> Array | None:
        """A block that no array uses."""
        blocks = self.blocks
        for _ in range(len(blocks)):
            self.cursor = (self.cursor + 1) % len(blocks)
            if _references(blocks, self.cursor) == _FREE:
                return blocks[self.cursor]
        return None

    def grow(self) -> Array:
        """A new block."""
        self.blocks.append(np.empty(self.size, np.uint8))
        self.grown = True
        return self.blocks[-1]

    def shrink(self) -> None:
        """Gives up half of the free blocks, unless a new one was needed since the last time."""
        blocks = self.blocks
        if not self.grown:
            free = [i for i in range(len(blocks)) if _references(blocks, i) == _FREE]
            given_up = set(free[: (len(free) + 1) // 2])
            self.blocks = [b for i, b in enumerate(blocks) if i not in given_up]
        self.grown, self.cursor = False, 0


POOL = Pool()
"""The pool of this process."""


def copied(x: Array) -> Array:
    """A copy in pooled memory."""
    target = POOL.take(x.shape, x.dtype)
    np.copyto(target, x)
    return target
