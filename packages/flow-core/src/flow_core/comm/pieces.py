"""The pieces of a reshard step: which box of a tensor goes from which rank to which.

Both ends of a transfer compute them from the layouts alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from operator import itemgetter
from typing import overload

from flow_core.base.shapes import Shape
from flow_core.comm.roles import partial_roles
from flow_core.sharding.layouts import TensorLayout, regions_of
from flow_core.sharding.sbp import Region, coordinates, intersect
from flow_core.sharding.topology import Device, devices_of


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a target part, taken from one source device.

    Attributes:
        source: the rank, in the source placement, of the device that holds the box.
        region: the box in logical coordinates.
        first: whether the box is copied; otherwise it is combined with the earlier pieces.
    """

    source: int
    region: Region
    first: bool


class Pieces(Sequence[tuple[Piece, ...]]):
    """The pieces of every target rank of a step, each computed on first use."""

    def __init__(self, shape: Shape, source: TensorLayout, target: TensorLayout) -> None:
        self._target = target
        self._arguments = shape, source, target
        self._known: dict[int, tuple[Piece, ...]] = {}

    def __len__(self) -> int:
        return self._target.placement.size

    def __iter__(self) -> Iterator[tuple[Piece, ...]]:
        """Yield the pieces of all ranks without keeping them."""
        contributors = _contributors(*self._arguments)
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
            self._known[rank] = tuple(_contributors(*self._arguments).pieces(rank))
        return self._known[rank]

    def taken_from(self, rank: int, sources: Collection[int]) -> Sequence[Piece]:
        """Return those pieces of a target rank that it takes from some source ranks, in order."""
        return _contributors(*self._arguments).taken_from(rank, sources)


class _Holders:
    """The source ranks that hold each region, among ranks with equal partial coordinates.

    Along each axis, the intervals of the regions are disjoint or equal, and the regions are all
    combinations of these intervals.

    Attributes:
        number: the position of each region, in the order of their first ranks.
    """

    def __init__(self, held: Mapping[Region, Sequence[int]], source: TensorLayout) -> None:
        self._held = held
        self.number = {region: i for i, region in enumerate(held)}
        self._devices = devices_of(source.placement)
        self._intervals = [
            sorted({interval for interval in axis if interval[0] < interval[1]})
            for axis in zip(*held, strict=True)
        ]
        self._near: dict[Region, dict[int, list[int]]] = {}

    def overlapping(self, wanted: Region) -> list[Region]:
        """Return the regions that overlap a region, in the order of their first ranks."""
        axes = []
        for intervals, (low, high) in zip(self._intervals, wanted, strict=True):
            first = bisect_right(intervals, low, key=itemgetter(1))
            last = bisect_left(intervals, high, key=itemgetter(0))
            axes.append(intervals[first:last] if low < high else [])
        return sorted(product(*axes), key=self.number.__getitem__)

    def nearest(self, region: Region, device: Device, rank: int) -> int:
        """Return the source rank from which a target rank takes a box of a region.

        A rank on the same device is preferred, then a rank on the same machine.  Among ranks that
        are equally near, target ranks choose in round-robin order.
        """
        ranks = self._held[region]
        if len(ranks) == 1:
            return ranks[0]
        if region not in self._near:
            at: dict[int, list[int]] = {}
            for source in ranks:
                at.setdefault(self._devices[source].machine, []).append(source)
            self._near[region] = at
        close = self._near[region].get(device.machine, ())
        own = [source for source in close if self._devices[source] == device]
        chosen = own or close or ranks
        return chosen[rank % len(chosen)]


class _Contributors:
    """The source ranks that contribute to each target rank.

    The contributors of a target rank are a list of `_Holders`, one for each combination of partial
    coordinates: the pieces from the first are copied, and those from the others combined with them.
    """

    def __init__(self, shape: Shape, source: TensorLayout, target: TensorLayout) -> None:
        self._wanted, self._given = regions_of(shape, target), regions_of(shape, source)
        self._roles = roles = partial_roles(source, target)
        self._source = source
        self._hierarchy = target.placement.hierarchy
        self._devices = devices_of(target.placement)
        self._known: dict[tuple[int, ...], list[_Holders]] = {}
        self._order: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}
        self._groups: dict[tuple[int, ...], dict[tuple[int, ...], dict[Region, list[int]]]] = {}
        self._places: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for rank, held in enumerate(self._given):
            at = coordinates(rank, source.placement.hierarchy)
            own, key = tuple([at[d] for d in roles.own]), source.partial_at(rank)
            self._places.append((own, key))
            self._groups.setdefault(own, {}).setdefault(key, {}).setdefault(held, []).append(rank)

    def pieces(self, rank: int) -> Iterator[Piece]:
        """Yield the pieces of a target rank."""
        wanted, device = self._wanted[rank], self._devices[rank]
        if any(low >= high for low, high in wanted):
            return
        for number, holders in enumerate(self._of(rank)):
            for region in holders.overlapping(wanted):
                box = intersect(region, wanted)
                if box is not None:
                    yield Piece(holders.nearest(region, device, rank), box, number == 0)

    def taken_from(self, rank: int, sources: Collection[int]) -> list[Piece]:
        """Return the pieces of a target rank from some source ranks, each of which holds a box."""
        wanted, device, found = self._wanted[rank], self._devices[rank], []
        for source in sources:
            region, (own, key) = self._given[source], self._places[source]
            box = intersect(region, wanted)
            if box is None or own != self._own(rank):
                continue
            number = self._numbers(own)[key]
            holders = self._of(rank)[number]
            if holders.nearest(region, device, rank) == source:
                place = number, holders.number[region]
                found.append((place, Piece(source, box, number == 0)))
        return [piece for _, piece in sorted(found, key=itemgetter(0))]

    def _own(self, rank: int) -> tuple[int, ...] | None:
        """Return the coordinates of the contributors of a target rank; None if it has none."""
        at = coordinates(rank, self._hierarchy)
        if any(at[d] for d in self._roles.first):
            return None
        return tuple([at[d] for d in self._roles.own])

    def _numbers(self, own: tuple[int, ...]) -> Mapping[tuple[int, ...], int]:
        """Return the order in which partial results are combined, by their coordinates."""
        if own not in self._order:
            self._order[own] = {key: i for i, key in enumerate(sorted(self._groups.get(own, {})))}
        return self._order[own]

    def _of(self, rank: int) -> list[_Holders]:
        """Return the contributors of a target rank."""
        own = self._own(rank)
        if own is None:
            return []
        if own not in self._known:
            keys = self._numbers(own)
            self._known[own] = [_Holders(self._groups[own][key], self._source) for key in keys]
        return self._known[own]


@lru_cache(maxsize=8)
def _contributors(shape: Shape, source: TensorLayout, target: TensorLayout) -> _Contributors:
    """Return the contributors of a step; those of the last few steps are kept."""
    return _Contributors(shape, source, target)
