"""The transitions between layouts that one reshard step can do.

Legality follows from the roles of the hierarchy dimensions with partial results (`PartialRoles`).
A transition is one step if all of these hold:

* the partial dimensions that the step combines have one operation, and so do those that it makes;
* a kept dimension inside a combined one has the same operation, as inner results combine first;
* it is an all-reduce, or it combines each result on one device only, and within a device type.
  Combining on p devices costs p - 1 times as much as a reduce-scatter and an all-gather; between
  device types, boxes are only copied.
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
    """The hierarchy dimensions with partial results, by what a transition does with them.

    A kept dimension is partial in both layouts, and each device keeps its result.  Partial
    dimensions of the source that are not kept are combined.  A partial dimension of the target
    that is not kept is made in one of three ways: from a split of the same devices, where each
    device contributes its own part (``own``, as do kept dimensions); from copies on the same
    devices, for max and min, where each device takes a copy (in no list); else the first device
    of the dimension receives everything (``first``), and the others the neutral element.

    Attributes:
        kept, combined, made: dimensions of the layouts.
        own: dimensions in which a target rank takes pieces from its own coordinate only.
        first: dimensions in which only the target ranks of coordinate 0 take pieces.
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
    """Return the one step between two layouts, None where no single step can do it."""
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
    """Return the operation of all these partial dimensions; None when they differ."""
    found = {s.op for d in dimensions if isinstance(s := sbp[d], Partial)}
    return (found or {"sum"}).pop() if len(found) <= 1 else None


def _in_order(sbp: NdSbp, roles: PartialRoles) -> bool:
    """Whether every kept dimension inside a combined one has the same operation."""
    return all(sbp[d] == sbp[k] for d in roles.combined for k in roles.kept if k > d)


def _cannot_combine(source: TensorLayout, target: TensorLayout) -> bool:
    """Whether combining would cross device types, or repeat on several devices."""
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
    """Return the groups of an all-reduce: partial becomes broadcast, all else stays.

    Empty when the transition is none.
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
    """Return the holder to take a box from: the device itself, its machine, else round-robin."""
    if len(ranks) == 1:
        return ranks[0]
    devices, device = devices_of(source.placement), devices_of(target.placement)[rank]
    own = [r for r in ranks if devices[r] == device]
    close = own or [r for r in ranks if devices[r].machine == device.machine] or ranks
    return close[rank % len(close)]


Holders = Mapping[Region, Sequence[int]]
"""Region to the source ranks that hold it, among ranks of equal partial coordinates."""


class _Contributors:
    """The source ranks that contribute to each target rank.

    They form a list of `Holders`, one per combination of partial coordinates: the first is
    copied, the others are combined with it.
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
        """Return the contributors of all target ranks with these own coordinates."""
        found: dict[tuple[int, ...], dict[Region, list[int]]] = {}
        for rank, (at, key) in enumerate(zip(self._coordinates, self._partial, strict=True)):
            if own == tuple([at[d] for d in self._roles.own]):
                found.setdefault(key, {}).setdefault(self._held[rank], []).append(rank)
        return [found[key] for key in sorted(found)]
