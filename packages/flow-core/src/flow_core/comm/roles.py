"""What a transition between layouts does with the dimensions of partial results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flow_core.base.shapes import Shape
from flow_core.sharding.layouts import Ints, TensorLayout, coordinate_arrays
from flow_core.sharding.sbp import Broadcast, NdSbp, Partial, Split


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
    """

    kept: frozenset[int]  # dimensions that are partial in both layouts
    combined: tuple[int, ...]  # partial dimensions of the source whose parts are combined
    # Dimensions in which the transition creates the partial results of the target.
    made: tuple[int, ...]
    # Dimensions in which a target rank takes pieces from its own coordinate only.
    own: tuple[int, ...]
    # Dimensions in which only the target ranks with coordinate 0 take pieces.
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


IN_PLACE, COPY, SLICE, PAD, FILL = range(5)
"""What a rank does in a step without transfers.

It keeps its part, makes an empty part, cuts its part, pads its part, or fills a part.
"""


def own_parts(shape: Shape, source: TensorLayout, target: TensorLayout) -> Ints | None:
    """Return what each rank does if all ranks make their part from what they hold, else None."""
    roles = partial_roles(source, target)
    if source.placement != target.placement or roles.combined:
        return None
    at = coordinate_arrays(target.placement.hierarchy)
    takes = np.ones(target.placement.size, np.bool_)
    for d in roles.first:
        takes &= at[d] == 0
    held, wanted = source.bounds(shape), target.bounds(shape)
    alone, covered, kept, meets = (np.ones_like(takes) for _ in range(4))
    empty = np.full_like(takes, 0 in shape)
    for axis in {*held, *wanted}:
        whole = np.int64(0), np.int64(shape[axis])
        (low, high), (start, stop) = held.get(axis, whole), wanted.get(axis, whole)
        inside = (low <= start) & (stop <= high)
        if {d for d, s in enumerate(source.sbp) if s == Split(axis)} - set(roles.own):
            alone &= inside  # other ranks, from which pieces may come, hold the rest of the axis
        covered &= inside
        kept &= (start <= low) & (high <= stop)
        meets &= np.maximum(low, start) < np.minimum(high, stop)
        empty |= start >= stop
    takes &= ~empty
    if np.any(takes & ~alone):
        return None
    made = np.where(covered, np.where(kept, IN_PLACE, SLICE), PAD)
    return np.where(empty, COPY, np.where(takes & meets, made, FILL))
