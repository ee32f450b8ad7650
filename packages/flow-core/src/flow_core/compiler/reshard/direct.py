"""The transitions between layouts that one reshard step can do.

Whether a transition is legal depends on the roles of the hierarchy dimensions that have partial
results (`flow_core.compiler.reshard.roles`).  A transition is one step if all of the following
conditions hold:

* all partial dimensions that the step combines have the same operation, such as a sum, and so do
  all partial dimensions that the step makes;
* a kept dimension inside a combined one has the same operation, because inner results combine
  first;
* if the step combines results, it is an all-reduce, or it combines each result on only one device
  and stays within a device type.  Combining the same result on each of p devices would cost p - 1
  times as much as a reduce-scatter and an all-gather; between device types, boxes are only copied.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from operator import itemgetter
from typing import overload

from flow_core.base.shapes import Shape
from flow_core.compiler.reshard.roles import PartialRoles, partial_roles
from flow_core.compiler.reshard.steps import Piece, ReshardStep, regions_of
from flow_core.compiler.reshard.traffic import devices_of
from flow_core.sharding.layouts import Strides, TensorLayout
from flow_core.sharding.sbp import Broadcast, NdSbp, Partial, Region, coordinates, intersect
from flow_core.sharding.topology import Device


def direct(shape: Shape, source: TensorLayout, target: TensorLayout) -> ReshardStep | None:
    """Return the step from one layout to another, or None if no single step can do this."""
    roles = partial_roles(source, target)
    combine = _one_operation(source.sbp, roles.combined)
    fill = _one_operation(target.sbp, roles.made)
    if combine is None or fill is None or not _in_order(source.sbp, roles):
        return None
    groups = _all_reduced(source, target, roles.combined) if roles.combined else ()
    if groups:
        return ReshardStep(shape, source, target, (), combine, fill, groups)
    if roles.combined and _cannot_combine(source, target):
        return None
    pieces = _Pieces(shape, source, target, roles)
    return ReshardStep(shape, source, target, pieces, combine, fill)


def _one_operation(sbp: NdSbp, dimensions: Sequence[int]) -> str | None:
    """Return the operation of all given partial dimensions, or None if their operations differ."""
    found = {s.op for d in dimensions if isinstance(s := sbp[d], Partial)}
    return (found or {"sum"}).pop() if len(found) <= 1 else None


def _in_order(sbp: NdSbp, roles: PartialRoles) -> bool:
    """Return whether every kept dimension inside a combined one has the same operation."""
    return all(sbp[d] == sbp[k] for d in roles.combined for k in roles.kept if k > d)


def _cannot_combine(source: TensorLayout, target: TensorLayout) -> bool:
    """Return whether combining would cross device types, or be repeated on several devices."""
    if source.placement.device_type != target.placement.device_type:
        return True
    sizes = zip(target.sbp, target.placement.hierarchy, strict=True)
    repeated = [d for d, (s, n) in enumerate(sizes) if isinstance(s, Broadcast) and n > 1]
    if source.placement != target.placement:
        return bool(repeated)
    return any(isinstance(source.sbp[d], Partial) for d in repeated)


def _all_reduced(
    source: TensorLayout, target: TensorLayout, combined: Sequence[int]
) -> Sequence[tuple[int, ...]]:
    """Return the groups of ranks if a transition is an all-reduce.

    In an all-reduce, the combined dimensions become broadcast, and all others stay the same.  The
    result is empty if the transition is not an all-reduce.
    """
    if source.placement != target.placement:
        return ()
    for d, (s, t) in enumerate(zip(source.sbp, target.sbp, strict=True)):
        if not (isinstance(t, Broadcast) if d in combined else s == t):
            return ()
    hierarchy = source.placement.hierarchy
    if prod(hierarchy[d] for d in combined) == 1:
        return ()
    return Strides(hierarchy, tuple(combined))


class _Pieces(Sequence[tuple[Piece, ...]]):
    """The pieces of every target rank of a step, each computed on first use."""

    def __init__(
        self, shape: Shape, source: TensorLayout, target: TensorLayout, roles: PartialRoles
    ) -> None:
        self._target = target
        self._arguments = shape, source, target, roles
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


class _Holders:
    """The source ranks that hold each region, among ranks with equal partial coordinates.

    Along each axis, the intervals of the regions are disjoint or equal, and the regions are all
    combinations of these intervals.
    """

    def __init__(self, held: Mapping[Region, Sequence[int]], source: TensorLayout) -> None:
        self._held = held
        self._number = {region: i for i, region in enumerate(held)}
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
        return sorted(product(*axes), key=self._number.__getitem__)

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

    def __init__(
        self, shape: Shape, source: TensorLayout, target: TensorLayout, roles: PartialRoles
    ) -> None:
        self._wanted = regions_of(shape, target)
        self._roles, self._source = roles, source
        self._hierarchy = target.placement.hierarchy
        self._devices = devices_of(target.placement)
        self._known: dict[tuple[int, ...], list[_Holders]] = {}
        self._groups: dict[tuple[int, ...], dict[tuple[int, ...], dict[Region, list[int]]]] = {}
        for rank, held in enumerate(regions_of(shape, source)):
            at = coordinates(rank, source.placement.hierarchy)
            own = tuple([at[d] for d in roles.own])
            group = self._groups.setdefault(own, {}).setdefault(source.partial_at(rank), {})
            group.setdefault(held, []).append(rank)

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

    def _of(self, rank: int) -> list[_Holders]:
        """Return the contributors of a target rank."""
        at = coordinates(rank, self._hierarchy)
        if any(at[d] for d in self._roles.first):
            return []
        own = tuple([at[d] for d in self._roles.own])
        if own not in self._known:
            groups = self._groups.get(own, {})
            self._known[own] = [_Holders(groups[key], self._source) for key in sorted(groups)]
        return self._known[own]


@lru_cache(maxsize=8)
def _contributors(
    shape: Shape, source: TensorLayout, target: TensorLayout, roles: PartialRoles
) -> _Contributors:
    """Return the contributors of a step; those of the last few steps are kept."""
    return _Contributors(shape, source, target, roles)
