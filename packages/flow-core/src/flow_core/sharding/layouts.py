"""The layout of a tensor on a placement, and the parts that devices hold, as arrays over ranks.

An array has one entry per rank, so that large placements are described without an object per
device.  An axis that no dimension of the hierarchy splits is whole on every device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import overload

import numpy as np
from numpy.typing import NDArray

from flow_core.base.shapes import Shape
from flow_core.sharding.hashing import HashedOnce
from flow_core.sharding.sbp import (
    NdSbp,
    Partial,
    Region,
    Split,
    coordinates,
    format_nd_sbp,
    local_region,
    parse_nd_sbp,
)
from flow_core.sharding.topology import Devices, Placement, numbered

Ints = NDArray[np.int64]
Bounds = Mapping[int, tuple[Ints, Ints]]
"""The first and the last element + 1 of each rank's part along each split axis."""


@dataclass(frozen=True, slots=True)
class TensorLayout(HashedOnce):
    """The layout of a tensor: a placement, and an SBP for each hierarchy dimension.

    >>> from flow_core.sharding.sbp import B
    >>> str(TensorLayout(Placement.parse("gpu", "0:0-1"), (B,)))
    'gpu[0:0-1] B'
    """

    placement: Placement
    sbp: NdSbp
    __hash__ = HashedOnce.__hash__

    def region(self, shape: Shape, rank: int) -> Region:
        """Return the part of the logical tensor that a device holds."""
        return local_region(shape, self.sbp, self.placement.hierarchy, rank)

    def partial_at(self, rank: int) -> tuple[int, ...]:
        """Return the device's coordinates in the dimensions of partial results."""
        where = coordinates(rank, self.placement.hierarchy)
        return tuple([c for c, s in zip(where, self.sbp, strict=True) if isinstance(s, Partial)])

    def bounds(self, shape: Shape) -> Bounds:
        """Return the parts of all ranks along the axes that are split.

        >>> layout = TensorLayout(Placement.parse("gpu", "0:0-2"), (Split(0),))
        >>> [side.tolist() for side in layout.bounds((7, 4))[0]]
        [[0, 3, 5], [3, 5, 7]]
        """
        return _bounds(shape, self.sbp, self.placement.hierarchy)

    def sizes(self, shape: Shape) -> Ints:
        """Return the number of elements of each rank's part.

        >>> layout = TensorLayout(Placement.parse("gpu", "0:0-2"), (Split(0),))
        >>> layout.sizes((7, 4)).tolist()
        [12, 8, 8]
        """
        found = self.bounds(shape)
        rest = prod(n for axis, n in enumerate(shape) if axis not in found)
        sizes = np.full(self.placement.size, rest, np.int64)
        for low, high in found.values():
            sizes *= high - low
        return sizes

    @classmethod
    def of_text(cls, text: str) -> TensorLayout:
        """Return the layout of a text form.

        >>> str(TensorLayout.of_text("gpu[0:0-3 as 2x2] (S(0), B)"))
        'gpu[0:0-3 as 2x2] (S(0), B)'
        """
        placement, _, sbp = text.partition("] ")
        return cls(Placement.of_text(placement), parse_nd_sbp(sbp))

    def __str__(self) -> str:
        return f"{self.placement} {format_nd_sbp(self.sbp)}"


@lru_cache(maxsize=8)
def regions_of(shape: Shape, layout: TensorLayout) -> tuple[Region, ...]:
    """Return the part of a tensor that each rank holds."""
    return tuple([layout.region(shape, rank) for rank in range(layout.placement.size)])


@lru_cache(maxsize=64)
def _bounds(shape: Shape, sbp: NdSbp, hierarchy: tuple[int, ...]) -> Bounds:
    found: dict[int, tuple[Ints, Ints]] = {}
    for entry, parts, index in zip(sbp, hierarchy, coordinate_arrays(hierarchy), strict=True):
        if isinstance(entry, Split):
            low, high = found.get(entry.axis, (0, shape[entry.axis]))
            base, extra = np.divmod(high - low, parts)
            start = low + index * base + np.minimum(index, extra)
            found[entry.axis] = start, start + base + (index < extra)
    return found


@lru_cache(maxsize=64)
def coordinate_arrays(hierarchy: tuple[int, ...]) -> tuple[Ints, ...]:
    """Return the coordinate of every rank in each dimension of a hierarchy.

    >>> [axis.tolist() for axis in coordinate_arrays((2, 3))]
    [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    """
    return tuple(np.unravel_index(np.arange(prod(hierarchy)), hierarchy))


@dataclass(frozen=True, slots=True)
class Strides(Sequence[tuple[int, ...]]):
    """Groups of ranks that differ in their coordinates of some hierarchy dimensions only.

    >>> list(Strides((2, 3), (0,)))
    [(0, 3), (1, 4), (2, 5)]
    """

    hierarchy: tuple[int, ...]
    within: tuple[int, ...]  # the dimensions in which the members of a group differ

    def array(self) -> Ints:
        """Return the ranks as an array of shape [groups, members], both in ascending order."""
        return _members(self.hierarchy, self.within)

    def __len__(self) -> int:
        return prod(n for d, n in enumerate(self.hierarchy) if d not in self.within)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return map(tuple, self.array().tolist())

    @overload
    def __getitem__(self, index: int) -> tuple[int, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, ...]]: ...

    def __getitem__(self, index: int | slice) -> tuple[int, ...] | list[tuple[int, ...]]:
        found = self.array()[index].tolist()
        return list(map(tuple, found)) if isinstance(index, slice) else tuple(found)


@lru_cache(maxsize=64)
def _members(hierarchy: tuple[int, ...], within: tuple[int, ...]) -> Ints:
    outside = [d for d in range(len(hierarchy)) if d not in within]
    ranks = np.arange(prod(hierarchy)).reshape(hierarchy).transpose(*outside, *within)
    return ranks.reshape(prod(hierarchy[d] for d in outside), -1)


@lru_cache(maxsize=64)
def positions(devices: Devices, others: Devices) -> Ints:
    """Return the position of each device among others, -1 if it is not one of them."""
    if devices is others:
        return np.arange(len(devices))
    known = numbered(others)
    return np.array([known.get(device, -1) for device in devices], np.int64)


def holds_partial(layout: TensorLayout) -> bool:
    """Return whether a layout has partial results."""
    return any(isinstance(s, Partial) for s in layout.sbp)


def same_parts(shape: Shape, one: TensorLayout, other: TensorLayout) -> bool:
    """Return whether every rank holds the same part in both layouts.

    >>> flat, grid = (Placement.parse("gpu", "0:0-3", h) for h in ((4,), (2, 2)))
    >>> same_parts((8,), TensorLayout(flat, (Split(0),)), TensorLayout(grid, (Split(0), Split(0))))
    True
    """
    found = one.bounds(shape), other.bounds(shape)
    for axis in {*found[0], *found[1]}:
        whole = np.int64(0), np.int64(shape[axis])
        ends = zip(*(bounds.get(axis, whole) for bounds in found), strict=True)
        if any(np.any(a != b) for a, b in ends):
            return False
    return True
