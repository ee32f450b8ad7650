"""Layouts on the same devices with different hierarchies, such as 4 and 2x2."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from flow_core.base.shapes import Shape
from flow_core.sharding.layouts import TensorLayout, same_parts
from flow_core.sharding.topology import Placement


def with_common_hierarchy(
    shape: Shape, source: TensorLayout, target: TensorLayout
) -> tuple[TensorLayout, TensorLayout]:
    """Express two layouts on the same devices over a common hierarchy, if one exists.

    >>> from flow_core.sharding.sbp import B, P
    >>> flat = TensorLayout(Placement.parse("gpu", "0:0-3"), (P,))
    >>> grid = TensorLayout(Placement.parse("gpu", "0:0-3", (2, 2)), (P, B))
    >>> [str(layout) for layout in with_common_hierarchy((8,), flat, grid)]
    ['gpu[0:0-3 as 2x2] (P, P)', 'gpu[0:0-3 as 2x2] (P, B)']
    """
    a, b = source.placement, target.placement
    if a == b or (a.device_type, a.devices) != (b.device_type, b.devices):
        return source, target
    if a.size == 1:  # a single device holds the whole tensor in any layout
        return target, target
    hierarchy = _common(a.hierarchy, b.hierarchy)
    if not hierarchy:
        return source, target
    fine = _refined(shape, source, hierarchy), _refined(shape, target, hierarchy)
    return (fine[0], fine[1]) if fine[0] and fine[1] else (source, target)


def _common(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the coarsest hierarchy that refines both hierarchies, or () if none exists."""
    steps = sorted({*accumulate(a, mul), *accumulate(b, mul)} - {1})
    ratios = [divmod(n, m) for m, n in zip([1, *steps], steps, strict=False)]
    return () if any(rest for _, rest in ratios) else tuple([q for q, _ in ratios])


def _refined(shape: Shape, layout: TensorLayout, hierarchy: tuple[int, ...]) -> TensorLayout | None:
    """Express a layout over a finer hierarchy; return None if its splits do not nest that way."""
    old = layout.placement
    sbp, parts, left = [], iter(zip(old.hierarchy, layout.sbp, strict=True)), 1
    current = layout.sbp[0]
    for size in hierarchy:
        while left == 1:
            left, current = next(parts, (size, current))
        sbp.append(current)
        left //= size
    fine = TensorLayout(Placement(old.device_type, old.devices, hierarchy), tuple(sbp))
    return fine if same_parts(shape, fine, layout) else None
