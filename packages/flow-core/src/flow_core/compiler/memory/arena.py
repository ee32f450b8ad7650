"""The offsets of buffers with known live ranges in an arena.

The size of the largest set of bytes that are live at the same time is a lower bound on the size of
the arena.  The better result of two heuristics is taken.  The first heuristic places the largest
block first, each block into the lowest hole (as in Pisarchyk and Lee, "Efficient Memory Management
for Deep Neural Net Inference", 2020).  The second one places blocks in order of time, each into the
best-fitting hole; very large graphs use only this heuristic, because it is O(n log n).  While the
bound is not met, a local search improves the order of the first heuristic by moving the topmost
block to an earlier position.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from flow_core.base.alignment import aligned
from flow_core.base.arrays import Array

LARGEST_FIRST_LIMIT = 3000
PLACEMENTS = 60_000
COMPARISONS = 24_000_000
TRIES = 1000
"""Limits of the search for a better order, as numbers: of placed blocks, of compared pairs of
blocks, and of orders."""
GOOD = 1.002
"""The search ends when the size of the arena is at most this multiple of the lower bound."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of bytes that are live from task ``first`` to task ``last``, inclusive."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """The offsets of blocks.

    Attributes:
        offsets: the byte offset of each block.
        nbytes: the size of the arena.
        lower_bound: the largest number of bytes that are live at the same time.
        peak: a task at which that many bytes are live.
    """

    offsets: tuple[int, ...]
    nbytes: int
    lower_bound: int
    peak: int


def plan_arena(blocks: Sequence[Block]) -> ArenaLayout:
    """Place all blocks such that blocks that are live at the same time do not overlap.

    >>> plan_arena([Block(64, 0, 1), Block(64, 1, 2), Block(64, 2, 3)]).nbytes
    128
    """
    bound, peak = live_peak(blocks)
    best = _first_come(blocks)
    if len(blocks) <= LARGEST_FIRST_LIMIT and _height(blocks, best) > bound:
        best = min(best, _searched(blocks, bound), key=lambda o: _height(blocks, o))
    return ArenaLayout(tuple(best), _height(blocks, best), bound, peak)


def _searched(blocks: Sequence[Block], bound: int) -> list[int]:
    """Return the best offsets among the sorted orders and changes to the best of these orders."""
    best, order = _sorted_best(blocks, bound)
    random = Random(0)
    offsets = best
    count = max(1, len(blocks))
    for _ in range(min(TRIES, PLACEMENTS // count, COMPARISONS // count**2)):
        if _height(blocks, best) <= GOOD * bound:
            break
        order = _raised(blocks, order, offsets, random)
        offsets = _lowest_hole(blocks, order)
        if _height(blocks, offsets) < _height(blocks, best):
            best = offsets
    return best


def _sorted_best(blocks: Sequence[Block], bound: int) -> tuple[list[int], list[int]]:
    """Return the offsets and the order of the best sorted order, or of the first at the bound."""
    tried = []
    for key in _KEYS:
        order = sorted(range(len(blocks)), key=lambda i: key(blocks[i]))
        tried.append((_lowest_hole(blocks, order), order))
        if _height(blocks, tried[-1][0]) == bound:
            break
    return min(tried, key=lambda t: _height(blocks, t[0]))


def _raised(
    blocks: Sequence[Block], order: list[int], offsets: list[int], random: Random
) -> list[int]:
    """Move the topmost block of an order to a random earlier position."""
    top = max(order, key=lambda i: offsets[i] + aligned(blocks[i].nbytes))
    place = order.index(top)
    rest = [i for i in order if i != top]
    rest.insert(random.randrange(place) if place else random.randrange(len(order)), top)
    return rest


def live_peak(blocks: Sequence[Block]) -> tuple[int, int]:
    """Return the largest number of live bytes, and a task at which that many bytes are live."""
    if not blocks:
        return 0, 0
    end = max(b.last for b in blocks) + 2
    change = np.zeros(end, np.int64)
    np.add.at(change, [b.first for b in blocks], [aligned(b.nbytes) for b in blocks])
    np.add.at(change, [b.last + 1 for b in blocks], [-aligned(b.nbytes) for b in blocks])
    live = np.cumsum(change)
    peak = int(live.argmax())
    return int(live[peak]), peak


def _height(blocks: Sequence[Block], offsets: Sequence[int]) -> int:
    return max((o + aligned(b.nbytes) for o, b in zip(offsets, blocks, strict=True)), default=0)


def _by_size(block: Block) -> tuple[int, int]:
    return -block.nbytes, block.first


def _by_area(block: Block) -> tuple[int, int]:
    return -block.nbytes * (block.last - block.first + 1), block.first


def _by_start(block: Block) -> tuple[int, int]:
    return block.first, -block.nbytes


_KEYS: tuple[Callable[[Block], tuple[int, int]], ...] = (_by_size, _by_area, _by_start)


def _lowest_hole(blocks: Sequence[Block], order: Sequence[int]) -> list[int]:
    """Place blocks in the given order, each into the lowest hole that is large enough."""
    return (_place_by_loop if len(blocks) < FEW else _place_by_arrays)(blocks, order)


FEW = 300
"""The number of blocks below which a loop is faster than array operations."""


def _place_by_loop(blocks: Sequence[Block], order: Sequence[int]) -> list[int]:
    """Implement `_lowest_hole` by a loop over the placed blocks."""
    placed: list[tuple[int, int, int, int]] = []  # (low, high, first, last), sorted by low
    offsets = [0] * len(blocks)
    for i in order:
        block = blocks[i]
        size, begin, end = aligned(block.nbytes), block.first, block.last
        offset = 0
        # ``placed`` is sorted by low end and ``offset`` is above all live blocks so far, so the
        # first gap that is large enough is the lowest one.
        for low, high, first, last in placed:
            if first <= end and last >= begin:
                if low - offset >= size:
                    break
                if high > offset:
                    offset = high
        offsets[i] = offset
        bisect.insort(placed, (offset, offset + size, begin, end))
    return offsets


def _place_by_arrays(blocks: Sequence[Block], order: Sequence[int]) -> list[int]:
    """Implement `_lowest_hole` by array operations on all placed blocks."""
    placed = np.zeros((4, len(blocks)), np.int64)  # rows low, high, first, last; sorted by low
    offsets = [0] * len(blocks)
    for count, i in enumerate(order):
        block = blocks[i]
        size, begin, end = aligned(block.nbytes), block.first, block.last
        low, high, first, last = placed[:, :count]
        alive = (first <= end) & (last >= begin)
        offset = offsets[i] = _fitting(low[alive], high[alive], size)
        at = int(np.searchsorted(low, offset))
        placed[:, at + 1 : count + 1] = placed[:, at:count].copy()
        placed[:, at] = offset, offset + size, begin, end
    return offsets


def _fitting(low: Array, high: Array, size: int) -> int:
    """Return the lowest offset with ``size`` free bytes, given the occupied ranges in order."""
    reached = np.concatenate([[0], np.maximum.accumulate(high)])
    fits = low - reached[:-1] >= size
    return int(reached[fits.argmax() if fits.any() else -1])


def _first_come(blocks: Sequence[Block]) -> list[int]:
    """Place blocks in order of time, each into the smallest free hole that is large enough."""
    order = sorted(range(len(blocks)), key=lambda i: (blocks[i].first, -blocks[i].nbytes))
    ends = sorted(range(len(blocks)), key=lambda i: blocks[i].last)
    holes = _Holes()
    offsets, freed = [0] * len(blocks), 0
    for i in order:
        # Both orders are by time, so each block is freed once: O(n log n) in total.
        while freed < len(ends) and blocks[ends[freed]].last < blocks[i].first:
            gone = ends[freed]
            holes.free(offsets[gone], aligned(blocks[gone].nbytes))
            freed += 1
        offsets[i] = holes.take(aligned(blocks[i].nbytes))
    return offsets


class _Holes:
    """The free ranges, by offset and by size; the space above the topmost range is unlimited."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}
        self._top = 0

    def take(self, size: int) -> int:
        """Take ``size`` bytes from the smallest hole that has as many; return their offset."""
        if size == 0:
            return 0
        i = bisect.bisect_left(self._by_size, (size, -1))
        if i == len(self._by_size):
            return self._grow(size)
        hole, offset = self._by_size[i]
        self._remove(offset, hole)
        if hole > size:
            self._insert(offset + size, hole - size)
        return offset

    def free(self, offset: int, size: int) -> None:
        """Free a range and merge it with free neighbors."""
        if size == 0:
            return
        after = self._size_at.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        start = self._start_of_end.get(offset)
        if start is not None:
            before = offset - start
            self._remove(start, before)
            offset, size = start, size + before
        self._insert(offset, size)

    def _grow(self, size: int) -> int:
        start = self._start_of_end.get(self._top)
        if start is not None:
            self._remove(start, self._top - start)
        else:
            start = self._top
        self._top = start + size
        return start

    def _insert(self, offset: int, size: int) -> None:
        bisect.insort(self._by_size, (size, offset))
        self._size_at[offset] = size
        self._start_of_end[offset + size] = offset

    def _remove(self, offset: int, size: int) -> None:
        del self._by_size[bisect.bisect_left(self._by_size, (size, offset))]
        del self._size_at[offset]
        del self._start_of_end[offset + size]
