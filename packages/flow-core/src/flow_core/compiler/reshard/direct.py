"""The transitions between layouts that one reshard step can do.

Whether a transition is legal depends on the roles of the hierarchy dimensions that have partial
results (`flow_core.comm.roles`).  A transition is one step if all of the following
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

from collections.abc import Sequence
from math import prod

from flow_core.base.shapes import Shape
from flow_core.comm.pieces import Pieces
from flow_core.comm.roles import PartialRoles, partial_roles
from flow_core.compiler.reshard.steps import ReshardStep
from flow_core.sharding.layouts import Strides, TensorLayout
from flow_core.sharding.sbp import Broadcast, NdSbp, Partial


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
    pieces = Pieces(shape, source, target)
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
