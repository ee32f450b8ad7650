"""Counter-based random numbers: element i of step s is the same on any device.

The generator is Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC'11).  The key is (seed of the op, 0).  Block ``b`` of draw ``d`` of step ``s`` is the
encryption of the counter ``(b + 1, s, d, 0)``.  Its four 64-bit words are used as eight 32-bit
words, the less significant half of each word first.  Element i of a float32 draw is
``(word32[i] >> 8) * 2**-24``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from flow_core.base.arrays import Array

_MASK = (1 << 64) - 1
WORDS = 8


def op_seed(seed: int, name: str) -> int:
    """Return the 64-bit seed of an op: the FNV-1a hash of its name, mixed with the job's seed.

    >>> op_seed(0, "dropout") != op_seed(0, "dropout_1") != op_seed(1, "dropout_1")
    True
    """
    value = 0xCBF29CE484222325 ^ (seed & _MASK)
    for byte in name.encode() + seed.to_bytes(16, "little", signed=True):
        value = ((value ^ byte) * 0x100000001B3) & _MASK
    return value


class Uniform:
    """A generator of uniform float32 numbers in [0, 1), addressed by step, draw and index."""

    __slots__ = ("_bits", "_counter", "_generator", "_skipped", "_state")

    def __init__(self, seed: int) -> None:
        key = np.array([seed & _MASK, 0], np.uint64)  # a list with a large number becomes floats
        self._bits = np.random.Philox(0)  # it would read entropy even with a key
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

    def fill(self, out: Array, step: int, draw: int = 0, start: int = 0) -> None:
        """Fill a C-contiguous float32 array with elements ``start ... start + out.size``."""
        block, skip = divmod(start, WORDS)
        counter = self._counter
        counter[0], counter[1], counter[2] = block, step, draw
        self._bits.state = self._state
        if skip:
            self._generator.random(dtype=np.float32, out=self._skipped[:skip])
        self._generator.random(dtype=np.float32, out=out)


Place = tuple[tuple[int, ...], tuple[int, ...]]
"""The place of a box in a logical tensor: the tensor's shape, and the box's first index per axis.
"""

CHUNK = 1 << 14
"""Number of elements drawn at a time: a multiple of `WORDS`, small enough for the cache."""
GAP = 1 << 10
"""Gap between rows, in elements, up to which drawing and discarding the gap's numbers is faster
than restarting the generator after it (measured)."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of consecutive logical elements, divided into rows that begin with those of a box."""

    start: int  # index of the first logical element
    drawn: int  # the number of elements to draw
    kept: int  # the number of elements of each row that belong to the box
    period: int  # distance between the first elements of consecutive rows
    first: int  # index of the first kept element within the box

    @property
    def rows(self) -> int:
        return -(-self.drawn // self.period)


def stretches(shape: Sequence[int], place: Place | None = None) -> Iterator[Stretch]:
    """Yield the stretches to draw for a box of ``shape``; without ``place``, for a whole tensor.

    >>> list(stretches((2, 3), ((4, 5), (1, 2))))
    [Stretch(start=7, drawn=8, kept=3, period=5, first=0)]
    """
    if 0 in shape:
        return
    whole, low = place or (tuple(shape), (0,) * len(shape))
    cut = [i for i, n in enumerate(shape) if n != whole[i]]
    last = cut[-1] if cut else 0
    kept, period = prod(shape[last:]), prod(whole[last:])
    outer = cut[-2] if len(cut) > 1 else 0
    rows = prod(shape[outer:last])
    offset = sum(low[i] * prod(whole[i + 1 :]) for i in range(outer, len(shape)))
    if not cut:
        kept, period, rows = prod(shape), prod(shape), 1
    for count, at in enumerate(product(*map(range, shape[:outer]))):
        base = sum((a + low[i]) * prod(whole[i + 1 :]) for i, a in enumerate(at))
        yield from _rows(base + offset, rows, kept, period, count * rows * kept)


def _rows(start: int, rows: int, kept: int, period: int, first: int) -> Iterator[Stretch]:
    """Yield stretches for rows at equal distances; short rows that are close share a stretch."""
    if period <= CHUNK and period - kept <= GAP:
        most = max(1, CHUNK // period)
        for row in range(0, rows, most):
            count = min(most, rows - row)
            drawn = (count - 1) * period + kept
            yield Stretch(start + row * period, drawn, kept, period, first + row * kept)
        return
    for row in range(rows):
        for at in range(0, kept, CHUNK):
            size = min(CHUNK, kept - at)
            yield Stretch(start + row * period + at, size, size, size, first + row * kept + at)


def kept_of(stretch: Stretch, drawn: Array) -> Array:
    """Return a view, of shape (rows, kept), of a stretch's drawn elements that are in the box."""
    step = drawn.strides[0]
    shape = stretch.rows, stretch.kept
    return np.lib.stride_tricks.as_strided(drawn, shape, (stretch.period * step, step))


class Scratch:
    """Memory that `Numbers` reuse from chunk to chunk: two draws, and values in float64."""

    __slots__ = ("draws", "values")

    def __init__(self) -> None:
        self.draws = np.empty((2, 2 * CHUNK), np.float32)
        self.values = np.empty(2 * CHUNK, np.float64)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The uniform numbers of a chunk of a box.

    Attributes:
        count: the number of elements.
    """

    count: int
    _batch: Sequence[Stretch]
    _step: int
    _source: Uniform
    _scratch: Scratch

    def __call__(self, draw: int) -> Array:
        """Return the float32 numbers of a draw; the draw after the next one overwrites them."""
        drawn: Array = self._scratch.draws[draw % 2][: self.count]
        at = 0
        for s in self._batch:
            numbers, at = drawn[at : at + s.rows * s.kept], at + s.rows * s.kept
            if s.rows == 1:
                self._source.fill(numbers, self._step, draw, s.start)
            else:
                whole = np.empty(s.drawn, np.float32)
                self._source.fill(whole, self._step, draw, s.start)
                numbers.reshape(s.rows, s.kept)[...] = kept_of(s, whole)
        return drawn

    @property
    def values(self) -> Array:
        """A float64 array for the values of the chunk, which all chunks share."""
        return self._scratch.values[: self.count]


def by_chunk(
    seed: int, out: Array, place: Place | None, scratch: Scratch, step: int = 0
) -> Iterator[tuple[Any, Numbers]]:
    """Yield each chunk of a box: its consecutive elements, and their numbers.

    Args:
        out: C-contiguous array of the box.
    """
    flat, source, batch, count = out.reshape(-1), Uniform(seed), [], 0
    for s in stretches(out.shape, place):
        batch.append(s)
        count += s.rows * s.kept
        if count >= CHUNK:
            yield flat[batch[0].first :][:count], Numbers(count, batch, step, source, scratch)
            batch, count = [], 0
    if batch:
        yield flat[batch[0].first :][:count], Numbers(count, batch, step, source, scratch)


def normal(u: Array, v: Array, values: Array) -> None:
    """Compute standard normal numbers, rounded to float32, by the Box-Muller method.

    Args:
        u, v: uniform float32 numbers, which are overwritten.
        values: the float64 array to fill.

    >>> u, v, values = uniform(3, (10000,)), uniform(3, (10000,), draw=1), np.empty(10000)
    >>> normal(u, v, values)
    >>> round(float(values.std()), 1)
    1.0
    """
    np.negative(u, out=values)
    np.log1p(values, out=values)
    np.multiply(values, -2, out=values)
    np.sqrt(values, out=values)
    np.multiply(v, 2 * np.pi, out=v)
    np.cos(v, out=v)
    np.multiply(values, v, out=values)
    np.copyto(v, values, casting="same_kind")  # rounded to float32
    np.copyto(values, v)


def truncated_normal(numbers: Numbers) -> Array:
    """Return standard normal numbers; those outside of [-2, 2] are drawn again.

    >>> ((_, numbers),) = by_chunk(3, np.empty(1000, np.float32), None, Scratch())
    >>> float(abs(truncated_normal(numbers)).max()) <= 2
    True
    """
    values, attempt = numbers.values, 1
    normal(numbers(0), numbers(1), values)
    far = np.flatnonzero(np.abs(values) > 2)
    while far.size:
        again = np.empty(far.size)
        normal(numbers(2 * attempt)[far], numbers(2 * attempt + 1)[far], again)
        values[far] = again
        far, attempt = far[np.abs(again) > 2], attempt + 1
    return values


def placed_uniform(seed: int, shape: Sequence[int], place: Place | None) -> Array:
    """Return the `uniform` numbers of a box, equal to its elements' numbers in the logical tensor.

    >>> whole, part = uniform(7, (4, 5)), placed_uniform(7, (2, 3), ((4, 5), (1, 2)))
    >>> bool((whole[1:3, 2:] == part).all())
    True
    """
    out = np.empty(tuple(shape), np.float32)
    for elements, numbers in by_chunk(seed, out, place, Scratch()):
        elements[...] = numbers(0)
    return out


def uniform(seed: int, shape: Sequence[int], step: int = 0, draw: int = 0) -> Array:
    """Return a new float32 array of uniform numbers in [0, 1).

    >>> a, b = uniform(7, (20,)), np.empty(11, np.float32)
    >>> Uniform(7).fill(b, step=0, start=9)
    >>> bool((a[9:] == b).all())
    True
    """
    out = np.empty(tuple(shape), np.float32)
    Uniform(seed).fill(out, step, draw)
    return out
