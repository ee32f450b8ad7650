"""The transitions between layouts that one reshard step can do.

Whether a transition is legal depends on the roles of the hierarchy dimensions that have partial
results (`PartialRoles`).  A transition is one step if all of the following conditions hold:

* all partial dimensions that the step combines have the same operation, such as a sum, and so do
  all partial dimensions that the step makes;
* a kept dimension inside a combined one has the same operation, because inner results combine
  first;
* if the step combines results, it is an all-reduce, or it combines each result on only one device
  and stays within a device type.  Combining the same result on each of p devices would cost p - 1
  times as much as a reduce-scatter and an all-gather; between device types, boxes are only copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flow_core.base.shapes import Shape
from flow_core.compiler.reshard.steps import (
    Piece,
    ReshardStep,
    TensorLayout,
    devices_of,
    regions_of,
)
from flow_core.sharding.sbp import (
    Broadcast,
    NdSbp,
    Partial,
    Region,
    Split,
    coordinates,
    intersect,
)


@dataclass(frozen=True, slots=True)
class PartialRoles:
    """The hierarchy dimensions with partial results, according to what a transition does with them.

    A kept dimension is partial in both layouts, and each device keeps its result.  Partial
    dimensions of the source that are not kept are combined.  A partial dimension of the target
    that is not kept is made in one of three ways.  If the source is split over the same devices,
    each device contributes its own part (the dimension is in ``own``, as are kept dimensions).  If
    the operation is max or min and the source has copies on the same devices, each device takes a
    copy (the dimension is neither in ``own`` nor in ``first``).  Otherwise, the first device of the
    dimension receives everything (the dimension is in ``first``), and the other devices receive the
    neutral element.

    Attributes:
        kept, combined: dimensions of the source that are kept and combined.
        made: dimensions of the target that are made.
        own: dimensions in which a target rank takes pieces from its own coordinate only.
        first: dimensions in which only the target ranks with coordinate 0 take pieces.
    """

    kept: frozenset[int]
    combined: tuple[int, ...]
    made: tuple[int, ...]
    own: tuple[int, ...]
    first: tuple[int, ...]


def partial_roles(source: TensorLayout, target: TensorLayout) -> PartialRoles:
    """Determine the roles of the partial dimensions in a transition."""
    same = source.placement == target.placement
    kept = _kept(source.sbp, target.sbp) if same else frozenset[int]()
    combined = [d for d, s in enumerate(source.sbp) if isinstance(s, Partial) and d not in kept]
    made = [d for d, t in enumerate(target.sbp) if isinstance(t, Partial) and d not in kept]
    split = [d for d in made if same and isinstance(source.sbp[d], Split)]
    copied = [
        d for d in made if same and isinstance(source.sbp[d], Broadcast) and not _is_sum(target, d)
    ]
    first = tuple(d for d in made if d not in split and d not in copied)
    return PartialRoles(kept, tuple(combined), tuple(made), tuple(sorted([*kept, *split])), first)


def _kept(source: NdSbp, target: NdSbp) -> frozenset[int]:
    pairs = enumerate(zip(source, target, strict=True))
    return frozenset([d for d, (s, t) in pairs if s == t and isinstance(s, Partial)])


def _is_sum(layout: TensorLayout, dimension: int) -> bool:
    return layout.sbp[dimension] == Partial("sum")


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
    pieces = _all_pieces(shape, source, target, roles)
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
) -> tuple[tuple[int, ...], ...]:
    """Return the groups of ranks if a transition is an all-reduce.

    In an all-reduce, the combined dimensions become broadcast, and all others stay the same.  The
    result is empty if the transition is not an all-reduce.
    """
    if source.placement != target.placement:
        return ()
    for d, (s, t) in enumerate(zip(source.sbp, target.sbp, strict=True)):
        if not (isinstance(t, Broadcast) if d in combined else s == t):
            return ()
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(source.placement.size):
        where = coordinates(rank, source.placement.hierarchy)
        rest = tuple([c for d, c in enumerate(where) if d not in combined])
        found.setdefault(rest, []).append(rank)
    groups = tuple(map(tuple, found.values()))
    return groups if len(groups[0]) > 1 else ()


def _all_pieces(
    shape: Shape, source: TensorLayout, target: TensorLayout, roles: PartialRoles
) -> tuple[tuple[Piece, ...], ...]:
    """Return the pieces of every target rank."""
    wanted = regions_of(shape, target)
    contributors = _Contributors(source, target, roles, regions_of(shape, source))
    return tuple(
        [
            tuple(_pieces(wanted[rank], contributors.of(rank), source, target, rank))
            for rank in range(target.placement.size)
        ]
    )


def _pieces(
    wanted: Region,
    groups: Sequence[Holders],
    source: TensorLayout,
    target: TensorLayout,
    rank: int,
) -> Iterator[Piece]:
    for number, holders in enumerate(groups):
        for region, ranks in holders.items():
            box = intersect(region, wanted)
            if box is not None:
                yield Piece(_nearest(source, target, ranks, rank), box, number == 0)


def _nearest(source: TensorLayout, target: TensorLayout, ranks: Sequence[int], rank: int) -> int:
    """Return the source rank from which a target rank takes a box.

    A rank on the same device is preferred, then a rank on the same machine.  Among ranks that are
    equally near, target ranks choose in round-robin order.
    """
    if len(ranks) == 1:
        return ranks[0]
    devices, device = devices_of(source.placement), devices_of(target.placement)[rank]
    own = [r for r in ranks if devices[r] == device]
    close = own or [r for r in ranks if devices[r].machine == device.machine] or ranks
    return close[rank % len(close)]


Holders = Mapping[Region, Sequence[int]]
"""Maps a region to the source ranks that hold it, among ranks with equal partial coordinates."""


class _Contributors:
    """The source ranks that contribute to each target rank.

    The contributors of a target rank are a list of `Holders`, one for each combination of partial
    coordinates: the pieces from the first are copied, and those from the others combined with them.
    """

    def __init__(
        self,
        source: TensorLayout,
        target: TensorLayout,
        roles: PartialRoles,
        held: Sequence[Region],
    ) -> None:
        self._held = held
        self._roles = roles
        self._hierarchy = target.placement.hierarchy
        self._known: dict[tuple[int, ...], list[Holders]] = {}
        size = source.placement.size
        self._coordinates = [coordinates(r, source.placement.hierarchy) for r in range(size)]
        self._partial = [source.partial_at(r) for r in range(size)]

    def of(self, rank: int) -> list[Holders]:
        """Return the contributors of a target rank."""
        at = coordinates(rank, self._hierarchy)
        if any(at[d] for d in self._roles.first):
            return []
        own = tuple([at[d] for d in self._roles.own])
        if own not in self._known:
            self._known[own] = self._make(own)
        return self._known[own]

    def _make(self, own: tuple[int, ...]) -> list[Holders]:
        """Return the contributors of all target ranks with the given ``own`` coordinates."""
        found: dict[tuple[int, ...], dict[Region, list[int]]] = {}
        for rank, (at, key) in enumerate(zip(self._coordinates, self._partial, strict=True)):
            if own == tuple([at[d] for d in self._roles.own]):
                found.setdefault(key, {}).setdefault(self._held[rank], []).append(rank)
        return [found[key] for key in sorted(found)]
