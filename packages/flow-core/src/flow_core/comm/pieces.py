"""The pieces of a reshard step: which box of a tensor goes from which rank to which.

Both ends of a transfer compute them from the layouts alone, in time proportional to their number:
the parts of balanced splits that overlap a part, and the ranks that hold equal parts, follow by
arithmetic from coordinates in the hierarchy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from operator import itemgetter
from typing import overload

import numpy as np

from flow_core.base.shapes import Shape, balanced_range
from flow_core.comm.roles import partial_roles
from flow_core.sharding.layouts import Ints, TensorLayout, coordinate_arrays, positions
from flow_core.sharding.sbp import Broadcast, Region, Split, coordinates, intersect
from flow_core.sharding.topology import Device, Placement, devices_of, numbered


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a target part, taken from one source device."""

    source: int  # the rank, in the source placement, of the device that holds the box
    region: Region  # the box in logical coordinates
    first: bool  # whether the box is copied; otherwise it is combined with the earlier pieces


class Pieces(Sequence[tuple[Piece, ...]]):
    """The pieces of every target rank of a step, each computed on first use."""

    def __init__(self, shape: Shape, source: TensorLayout, target: TensorLayout) -> None:
        self._target = target
        self._arguments = shape, source, target
        self._made: _Contributors | None = None
        self._known: dict[int, tuple[Piece, ...]] = {}

    def _contributors(self) -> _Contributors:
        if self._made is None:
            self._made = _Contributors(*self._arguments)
        return self._made

    def __len__(self) -> int:
        return self._target.placement.size

    def __iter__(self) -> Iterator[tuple[Piece, ...]]:
        """Yield the pieces of all ranks without keeping them."""
        contributors = self._contributors()
        return (tuple(contributors.pieces(rank)) for rank in range(len(self)))

    @overload
    def __getitem__(self, rank: int) -> tuple[Piece, ...]: ...

    @overload
    def __getitem__(self, rank: slice) -> list[tuple[Piece, ...]]: ...

    def __getitem__(self, rank: int | slice) -> tuple[Piece, ...] | list[tuple[Piece, ...]]:
        if isinstance(rank, slice):
            return [self[i] for i in range(*rank.indices(len(self)))]
        if rank not in self._known:
            if not 0 <= rank < len(self):
                raise IndexError(rank)
            self._known[rank] = tuple(self._contributors().pieces(rank))
        return self._known[rank]

    def taken_from(self, rank: int, sources: Collection[int]) -> Sequence[Piece]:
        """Return those pieces of a target rank that it takes from some source ranks, in order."""
        return self._contributors().taken_from(rank, sources)


Coordinates = Mapping[int, int]
"""Coordinates in some dimensions of a hierarchy."""


class _Contributors:
    """The source ranks that contribute to each target rank.

    A target rank takes pieces from source ranks with equal coordinates in some dimensions (`own` of
    the roles), in the order of their coordinates in the combined dimensions: the pieces from the
    first are copied, and those from the others combined with them.  Ranks that differ only in the
    dimensions of broadcast hold equal parts, and one of them contributes.
    """

    def __init__(self, shape: Shape, source: TensorLayout, target: TensorLayout) -> None:
        self._shape, self._source, self._target = shape, source, target
        self._roles = partial_roles(source, target)
        self._hierarchy = source.placement.hierarchy
        self._strides = [prod(self._hierarchy[d + 1 :]) for d in range(len(self._hierarchy))]
        self._copied = [d for d, s in enumerate(source.sbp) if isinstance(s, Broadcast)]
        self._copies = prod(self._hierarchy[d] for d in self._copied)
        self._splits: dict[int, list[int]] = {}
        for d, s in enumerate(source.sbp):
            if isinstance(s, Split):
                self._splits.setdefault(s.axis, []).append(d)
        self._close: dict[tuple[int, int], Sequence[int]] = {}

    def pieces(self, rank: int) -> Iterator[Piece]:
        wanted, own = self._target.region(self._shape, rank), self._own(rank)
        if own is None or any(low >= high for low, high in wanted):
            return
        device, combined = self._target.placement.device(rank), self._roles.combined
        held = self._overlapping(own, wanted)
        for key in product(*(range(self._hierarchy[d]) for d in combined)):
            offset = sum(c * self._strides[d] for c, d in zip(key, combined, strict=True))
            for first, region in held:
                box = intersect(region, wanted)
                if box is not None:
                    yield Piece(self._nearest(first + offset, device, rank), box, not any(key))

    def taken_from(self, rank: int, sources: Collection[int]) -> list[Piece]:
        """Return the pieces of a target rank from some source ranks, each of which holds a box."""
        wanted, own = self._target.region(self._shape, rank), self._own(rank)
        device, found = self._target.placement.device(rank), []
        for source in sources if own is not None else ():
            box = intersect(self._source.region(self._shape, source), wanted)
            at = coordinates(source, self._hierarchy)
            if box is None or any(at[d] != c for d, c in (own or {}).items()):
                continue
            first = source - sum(at[d] * self._strides[d] for d in self._copied)
            if self._nearest(first, device, rank) == source:
                key = [at[d] for d in self._roles.combined]
                found.append(((key, first), Piece(source, box, not any(key))))
        return [piece for _, piece in sorted(found, key=itemgetter(0))]

    def _own(self, rank: int) -> Coordinates | None:
        """Return the coordinates that a target rank shares with its sources; None without any."""
        at = coordinates(rank, self._target.placement.hierarchy)
        if any(at[d] for d in self._roles.first):
            return None
        return {d: at[d] for d in self._roles.own}

    def _overlapping(self, own: Coordinates, wanted: Region) -> list[tuple[int, Region]]:
        """Return the parts that overlap a part, each with the first rank that holds it.

        The ranks have the coordinate 0 in the combined dimensions.
        """
        base = sum(c * self._strides[d] for d, c in own.items() if not self._is_split(d))
        axes = [
            self._intervals((0, n), self._splits.get(axis, ()), own, bounds)
            for axis, (n, bounds) in enumerate(zip(self._shape, wanted, strict=True))
        ]
        found = [
            (base + sum(offset for offset, _ in row), tuple([interval for _, interval in row]))
            for row in product(*axes)
        ]
        return sorted(found)

    def _is_split(self, dimension: int) -> bool:
        return isinstance(self._source.sbp[dimension], Split)

    def _intervals(
        self,
        whole: tuple[int, int],
        dimensions: Sequence[int],
        own: Coordinates,
        wanted: tuple[int, int],
    ) -> list[tuple[int, tuple[int, int]]]:
        """Return the parts of nested splits that overlap an interval, with offsets of ranks."""
        if not dimensions:
            return [(0, whole)]
        (low, high), d = whole, dimensions[0]
        size, parts = high - low, self._hierarchy[d]
        found: list[tuple[int, tuple[int, int]]] = []
        both = parts_between(size, parts, wanted[0] - low, wanted[1] - low)
        for index in both if d not in own else [own[d]] if own[d] in both else ():
            start, stop = balanced_range(size, parts, index)
            inner = self._intervals((low + start, low + stop), dimensions[1:], own, wanted)
            found += [(index * self._strides[d] + offset, part) for offset, part in inner]
        return found

    def _nearest(self, first: int, device: Device, rank: int) -> int:
        """Return the source rank from which a target rank takes a box of a part.

        A rank on the same device is preferred, then a rank on the same machine.  Among ranks that
        are equally near, target ranks choose in round-robin order.

        Args:
            first: the first of the ranks that hold the part.
        """
        if self._copies == 1:
            return first
        own = numbered(devices_of(self._source.placement)).get(device)
        if own is not None and self._first(own) == first:
            return own
        key = first, device.machine
        if key not in self._close:
            near = _by_machine(self._source.placement).get(device.machine, ())
            self._close[key] = [other for other in near if self._first(other) == first]
        close = self._close[key]
        if close:
            return close[rank % len(close)]
        index = coordinates(rank % self._copies, [self._hierarchy[d] for d in self._copied])
        return first + sum(c * self._strides[d] for c, d in zip(index, self._copied, strict=True))

    def _first(self, rank: int) -> int:
        """Return the first of the ranks that hold the same part as a rank."""
        at = coordinates(rank, self._hierarchy)
        return rank - sum(at[d] * self._strides[d] for d in self._copied)


MOST_PAIRS = 1 << 22
"""The largest number of pairs of ranks that `listed_pieces` compares."""


def listed_pieces(
    shape: Shape, source: TensorLayout, target: TensorLayout
) -> tuple[Ints, Ints, Ints] | None:
    """Return the source rank, the target rank and the number of elements of all pieces, as arrays.

    All ranks that contribute different parts are compared with all target ranks at once; the result
    is None if these are too many.
    """
    roles, placement = partial_roles(source, target), source.placement
    at, to = (coordinate_arrays(end.placement.hierarchy) for end in (source, target))
    copied = [d for d, s in enumerate(source.sbp) if isinstance(s, Broadcast)]
    first = np.arange(placement.size)
    for d in copied:
        first = first - at[d] * prod(placement.hierarchy[d + 1 :])
    # Ranks that differ in dimensions with B alone have equal parts: the first one stands for them.
    distinct = np.flatnonzero(first == np.arange(placement.size))
    if len(distinct) * target.placement.size > MOST_PAIRS:
        return None
    # A piece is the intersection of two boxes, whose size is the product of the overlaps by axis.
    sizes = np.ones((target.placement.size, len(distinct)), np.int64)
    for d in roles.first:
        sizes *= (to[d] == 0)[:, None]
    for d in roles.own:
        sizes *= at[d][distinct] == to[d][:, None]
    held, wanted = source.bounds(shape), target.bounds(shape)
    for axis, n in enumerate(shape):
        low, high = (side[distinct] for side in held[axis]) if axis in held else (0, n)
        start, stop = (side[:, None] for side in wanted[axis]) if axis in wanted else (0, n)
        sizes *= np.maximum(np.minimum(high, stop) - np.maximum(low, start), 0)
    taken, column = np.nonzero(sizes)
    given = _nearest_holders(placement, target.placement, copied, first, distinct[column], taken)
    return given, taken, sizes[taken, column]


def _nearest_holders(
    source: Placement,
    target: Placement,
    copied: Sequence[int],  # the dimensions of the source in which ranks hold equal parts
    first: Ints,  # the first of the ranks that hold the part of each source rank
    wanted: Ints,  # the first of the ranks that hold each part
    taken: Ints,  # the target rank that takes it
) -> Ints:
    """Return the source ranks from which target ranks take parts, as chosen by `_Contributors`."""
    if not copied:
        return wanted
    machines, at = np.unique([machine for machine, _ in source.devices], return_inverse=True)
    key = first * len(machines) + at.reshape(-1)
    order = np.argsort(key, kind="stable")
    keys, starts, counts = np.unique(key[order], return_index=True, return_counts=True)
    made = np.array([machine for machine, _ in target.devices], np.int64)[taken]
    near = np.minimum(np.searchsorted(machines, made), len(machines) - 1)
    close = wanted * len(machines) + near
    row = np.minimum(np.searchsorted(keys, close), len(keys) - 1)
    found = order[starts[row] + taken % counts[row]]
    sizes = [source.hierarchy[d] for d in copied]
    far = wanted.copy()
    for d, index in zip(copied, np.unravel_index(taken % prod(sizes), sizes), strict=True):
        far += index * prod(source.hierarchy[d + 1 :])
    found = np.where((keys[row] == close) & (machines[near] == made), found, far)
    own = positions(devices_of(target), devices_of(source))[taken]
    return np.where((own >= 0) & (first[own] == wanted), own, found)


def parts_between(size: int, parts: int, low: int, high: int) -> range:
    """Return the parts of a balanced split that overlap an interval.

    >>> parts_between(7, 3, 2, 4), parts_between(2, 4, 0, 9), parts_between(7, 3, 7, 9)
    (range(0, 2), range(0, 2), range(0, 0))
    """
    low, high = max(low, 0), min(high, size)
    if low >= high:
        return range(0)
    base, extra = divmod(size, parts)
    ends = [
        x // (base + 1) if x < extra * (base + 1) else extra + (x - extra * (base + 1)) // base
        for x in (low, high - 1)
    ]
    return range(ends[0], ends[1] + 1)


@lru_cache(maxsize=64)
def _by_machine(placement: Placement) -> Mapping[int, Sequence[int]]:
    found: dict[int, list[int]] = {}
    for rank, (machine, _) in enumerate(placement.devices):
        found.setdefault(machine, []).append(rank)
    return found
