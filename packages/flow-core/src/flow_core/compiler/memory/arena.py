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
import operator
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
    """The offsets of blocks."""

    offsets: tuple[int, ...]  # in bytes, by block
    nbytes: int
    lower_bound: int  # the largest number of bytes that are live at the same time
    peak: int  # a task at which that many bytes are live


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
    placer = _Placer(blocks)
    best, order = _sorted_best(placer, bound)
    random = Random(0)
    offsets, least = best, placer.height(best)
    count = max(1, len(blocks))
    for _ in range(min(TRIES, PLACEMENTS // count, COMPARISONS // count**2)):
        if least <= GOOD * bound:
            break
        order, same = placer.raised(order, offsets, random)
        offsets = placer.placed(order, offsets, same)
        if placer.height(offsets) < least:
            best, least = offsets, placer.height(offsets)
    return best


def _sorted_best(placer: _Placer, bound: int) -> tuple[list[int], list[int]]:
    """Return the offsets and the order of the best sorted order, or of the first at the bound."""
    tried = []
    for key in _KEYS:
        order = _sorted(placer.blocks, key)
        tried.append((placer.placed(order), order))
        if placer.height(tried[-1][0]) == bound:
            break
    return min(tried, key=lambda t: placer.height(t[0]))


def _sorted(blocks: Sequence[Block], key: Callable[[Block], tuple[int, int]]) -> list[int]:
    return sorted(range(len(blocks)), key=lambda i: key(blocks[i]))


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


FEW, CROWDED = 300, 250
"""The number of blocks below which a loop over all of them is faster than other ways, and the mean
number of blocks that are live with a block from which on arrays are faster than lists."""


class _Placer:
    """Places blocks in given orders, each into the lowest hole that is large enough."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        self.sizes = [aligned(block.nbytes) for block in blocks]
        self._others = _live_together(blocks) if len(blocks) >= FEW else None

    def height(self, offsets: Sequence[int]) -> int:
        """Return the end of the topmost block."""
        return max(map(operator.add, offsets, self.sizes), default=0)

    def raised(self, order: list[int], offsets: list[int], random: Random) -> tuple[list[int], int]:
        """Move the topmost block of an order to a random earlier position.

        Returns:
            The new order, and the number of blocks at its start that have not moved.
        """
        ends = list(map(operator.add, offsets, self.sizes))
        top = max(order, key=ends.__getitem__)
        place = order.index(top)
        rest = [i for i in order if i != top]
        to = random.randrange(place) if place else random.randrange(len(order))
        rest.insert(to, top)
        return rest, min(place, to)

    def placed(self, order: Sequence[int], known: Sequence[int] = (), same: int = 0) -> list[int]:
        """Return the offsets of the blocks, placed in an order.

        Args:
            known: the offsets for another order.
            same: the number of blocks with which both orders begin.
        """
        before, after, offsets = order[:same], order[same:], [-1] * len(order)
        for i in before:
            offsets[i] = known[i]
        if self._others is None:
            place = _place_by_loop if len(order) < FEW else _place_by_arrays
            place(self.blocks, before, after, offsets)
        else:
            for i in after:
                offsets[i] = self._lowest(self.sizes[i], offsets, self._others[i])
        return offsets

    def _lowest(self, size: int, offsets: Sequence[int], others: Sequence[int]) -> int:
        """Return the lowest offset with ``size`` bytes that no placed one of other blocks has."""
        offset, sizes = 0, self.sizes
        for low, i in sorted([(offsets[i], i) for i in others if offsets[i] >= 0]):
            if low - offset >= size:
                break
            offset = max(offset, low + sizes[i])
        return offset


def _live_together(blocks: Sequence[Block]) -> list[list[int]] | None:
    """Return the blocks that are live at the same time as each block; None if they are many."""
    first, last = (np.array([getattr(b, name) for b in blocks]) for name in ("first", "last"))
    found: list[list[int]] = []
    for i, block in enumerate(blocks):
        others = np.flatnonzero((first <= block.last) & (last >= block.first)).tolist()
        found.append([other for other in others if other != i])
    return found if sum(map(len, found)) < CROWDED * len(blocks) else None


def _place_by_loop(
    blocks: Sequence[Block], before: Sequence[int], order: Sequence[int], offsets: list[int]
) -> None:
    """Place the blocks of ``order`` by a loop over all placed blocks."""
    placed = sorted([_extent(blocks[i], offsets[i]) for i in before])
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


def _place_by_arrays(
    blocks: Sequence[Block], before: Sequence[int], order: Sequence[int], offsets: list[int]
) -> None:
    """Place the blocks of ``order`` by array operations on all placed blocks."""
    rows = sorted([_extent(blocks[i], offsets[i]) for i in before])
    placed = np.zeros((4, len(offsets)), np.int64)  # rows low, high, first, last; sorted by low
    placed[:, : len(rows)] = np.array(rows, np.int64).reshape(-1, 4).T
    for count, i in enumerate(order, len(rows)):
        block = blocks[i]
        size, begin, end = aligned(block.nbytes), block.first, block.last
        low, high, first, last = placed[:, :count]
        alive = (first <= end) & (last >= begin)
        offset = offsets[i] = _fitting(low[alive], high[alive], size)
        at = int(np.searchsorted(low, offset))
        placed[:, at + 1 : count + 1] = placed[:, at:count].copy()
        placed[:, at] = offset, offset + size, begin, end


def _extent(block: Block, offset: int) -> tuple[int, int, int, int]:
    """Return the first byte and the last + 1 of a block, and its first and last task."""
    return offset, offset + aligned(block.nbytes), block.first, block.last


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
