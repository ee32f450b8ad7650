"""Conversion between a logical array and the parts of it on devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.observe.isolated_run import same_bits
from flow_core.observe.rounding import widened
from flow_core.sharding.sbp import Partial

REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True, slots=True)
class Whole:
    """A logical value assembled from its parts."""

    array: Any  # the logical value
    # For each element, the magnitude of the terms that were added up to it; larger than the
    # element's own magnitude if partial sums cancel.
    size: Any
    # The value in float64, without the rounding to its type, which is missing if the op is fused
    # with its reader; other values than floating-point numbers are unchanged.
    exact: Any
    # Ranks of the first two devices whose replicas differ, if any.
    disagreeing: tuple[int, int] | None = None
    unit: float = 0.0  # largest unit of rounding on the way to the value that `exact` leaves out

    @classmethod
    def of(cls, array: Any) -> Whole:
        """Return a value that is no sum of parts."""
        return cls(array, np.abs(array), widened(array))


def assemble(layout: TensorLayout, shape: tuple[int, ...], parts: Sequence[Array]) -> Whole:
    """Assemble the logical array from the parts on the devices.

    >>> from flow_core.sharding.sbp import P
    >>> from flow_core.sharding.topology import Placement
    >>> two = TensorLayout(Placement.parse("cpu", "0:0-1"), (P,))
    >>> whole = assemble(two, (2,), [np.array([1.0, 2.0]), np.array([4.0, -2.0])])
    >>> whole.array.tolist(), whole.size.tolist()
    ([5.0, 0.0], [5.0, 4.0])
    """
    dtype = parts[0].dtype
    groups: dict[tuple[int, ...], Any] = {}
    holders: dict[Any, int] = {}
    disagreeing = None
    for rank, part in enumerate(parts):
        where, region = layout.partial_at(rank), layout.region(shape, rank)
        group = groups.setdefault(where, np.zeros(shape, dtype))
        group[tuple(slice(a, b) for a, b in region)] = part
        first = holders.setdefault((where, region), rank)
        if disagreeing is None and not same_bits(parts[first], part):
            disagreeing = (first, rank)
    kinds = [sbp.op for sbp in layout.sbp if isinstance(sbp, Partial)]
    array, size = _reduced(list(groups.values()), kinds[0] if kinds else "sum")
    return Whole(array.astype(dtype), size, widened(array), disagreeing)


def _reduced(groups: list[Array], kind: str) -> tuple[Array, Array]:
    if len(groups) == 1 or groups[0].dtype.kind == "b":
        total = groups[0]
        for group in groups[1:]:
            total = total | group
        return total, np.abs(total.astype(np.float64))
    exact = groups[0].dtype.kind in "iu"
    wide = [g if exact else g.astype(np.float64) for g in groups]
    with np.errstate(all="ignore"):
        total, size = wide[0], np.abs(wide[0].astype(np.float64))
        for group in wide[1:]:
            total = REDUCE[kind](total, group)
            size = size + np.abs(group.astype(np.float64))
    return total, size


def take_apart(layout: TensorLayout, array: Array, rng: np.random.Generator) -> list[Array]:
    """Split a logical array into valid parts for the devices; partial sums are random.

    >>> from flow_core.sharding.sbp import P, S
    >>> from flow_core.sharding.topology import Placement
    >>> two, rng = Placement.parse("cpu", "0:0-1"), np.random.default_rng(0)
    >>> [part.tolist() for part in take_apart(TensorLayout(two, (S(0),)), np.arange(3), rng)]
    [[0, 1], [2]]
    >>> bool(np.allclose(sum(take_apart(TensorLayout(two, (P,)), np.arange(3), rng)), [0, 1, 2]))
    True
    """
    ranks = range(layout.placement.size)
    kinds = [sbp.op for sbp in layout.sbp if isinstance(sbp, Partial)]
    where = dict.fromkeys(map(layout.partial_at, ranks))
    terms = dict(zip(where, _terms(array, len(where), (kinds or ["sum"])[0], rng), strict=True))
    return [
        terms[layout.partial_at(r)][
            tuple(slice(a, b) for a, b in layout.region(array.shape, r))
        ].copy()
        for r in ranks
    ]


def _terms(array: Any, count: int, kind: str, rng: np.random.Generator) -> list[Any]:
    """Return terms that combine to an array: a first term with the remainder, then random terms."""
    if count == 1:
        return [array]
    if array.dtype.kind == "b":
        return [array, *[np.zeros_like(array)] * (count - 1)]
    whole = array.dtype.kind in "iu"
    noise = [
        rng.integers(0, 4, array.shape) if whole else rng.random(array.shape)
        for _ in range(count - 1)
    ]
    if kind == "sum":
        rest = array - sum(noise)
        return [x.astype(array.dtype) for x in (rest, *noise)]
    sign = 1 if kind == "min" else -1
    return [array, *((array + sign * x).astype(array.dtype) for x in noise)]
