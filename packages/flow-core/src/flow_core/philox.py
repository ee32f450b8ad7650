"""Counter-based random numbers: element i of step s is the same whatever computes it.

The generator is Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC'11).  The key is (seed of the op, 0).  Block ``b`` of draw ``d`` of step ``s`` is the
encryption of the counter ``(b + 1, s, d, 0)``, four 64-bit words, least significant halves
first: eight 32-bit words.  Element i of a float32 draw is ``(word32[i] >> 8) * 2**-24``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_MASK = (1 << 64) - 1
WORDS = 8


def op_seed(seed: int, name: str) -> int:
    """The 64-bit seed of an op: FNV-1a of its name, mixed with the job's seed.

    >>> op_seed(0, "dropout") != op_seed(0, "dropout_1") != op_seed(1, "dropout_1")
    True
    """
    value = 0xCBF29CE484222325 ^ (seed & _MASK)
    for byte in name.encode() + seed.to_bytes(16, "little", signed=True):
        value = ((value ^ byte) * 0x100000001B3) & _MASK
    return value


class Uniform:
    """Uniform float32 numbers in [0, 1), addressed by step, draw and element index."""

    __slots__ = ("_bits", "_counter", "_generator", "_skipped", "_state")

    def __init__(self, seed: int) -> None:
        key = np.array([seed & _MASK, 0], np.uint64)  # a list with a large number becomes floats
        self._bits = np.random.Philox(key=key)
        self._generator = np.random.Generator(self._bits)
        self._counter = np.zeros(4, np.uint64)
        self._state: Any = {
            **self._bits.state,
            "state": {"counter": self._counter, "key": key},
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        self._skipped = np.empty(WORDS, np.float32)

    def fill(self, out: Any, step: int, draw: int = 0, start: int = 0) -> None:
        """Fills a C-contiguous float32 array with elements ``start ... start + out.size``."""
        block, skip = divmod(start, WORDS)
        counter = self._counter
        counter[0], counter[1], counter[2] = block, step, draw
        self._bits.state = self._state
        if skip:
            self._generator.random(dtype=np.float32, out=self._skipped[:skip])
        self._generator.random(dtype=np.float32, out=out)


def uniform(seed: int, shape: Sequence[int], step: int = 0, draw: int = 0) -> Any:
    """A new float32 array of uniform numbers in [0, 1).

    >>> a, b = uniform(7, (20,)), np.empty(11, np.float32)
    >>> Uniform(7).fill(b, step=0, start=9)
    >>> bool((a[9:] == b).all())
    True
    """
    out = np.empty(tuple(shape), np.float32)
    Uniform(seed).fill(out, step, draw)
    return out


def normal(seed: int, shape: Sequence[int], step: int = 0, draw: int = 0) -> Any:
    """Standard normal float32 numbers by Box and Muller, two uniforms per element.

    >>> round(float(normal(3, (10000,)).std()), 1)
    1.0
    """
    u = uniform(seed, shape, step, 2 * draw).astype(np.float64)
    v = uniform(seed, shape, step, 2 * draw + 1)
    return (np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)).astype(np.float32)


def truncated_normal(seed: int, shape: Sequence[int], step: int = 0) -> Any:
    """Standard normal float32 numbers, redrawn where they leave [-2, 2].

    >>> float(abs(truncated_normal(3, (1000,))).max()) <= 2
    True
    """
    out = np.asarray(normal(seed, shape, step))  # one number alone is no array
    attempt = 1
    while (far := np.abs(out) > 2).any():
        out[far] = normal(seed, shape, step, attempt)[far]
        attempt += 1
    return out
