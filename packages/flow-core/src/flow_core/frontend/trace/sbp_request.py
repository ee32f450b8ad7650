"""Decoding of requested distributions and SBP texts, with checks against a blob's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flow_core.base.errors import GraphError, JobError, SourceLine
from flow_core.base.shapes import Shape, normal_axis
from flow_core.sharding.sbp import B, NdSbp, Sbp, Split, format_nd_sbp, parse_sbp
from flow_core.sharding.topology import Placement

DISTRIBUTIONS = (
    "flow.distribute.split(axis), flow.distribute.broadcast(), flow.distribute.auto() or None"
)


class Distribution(Protocol):
    """A distribution of ``flow.distribute``."""

    @property
    def kind(self) -> str:
        """The value "split", "broadcast" or "auto"."""

    @property
    def axis(self) -> int | None:
        """The axis of a split, None otherwise."""


def decode_distribution(
    distribute: Distribution | None, shape: Shape, attempted: str, line: SourceLine | None
) -> Sbp | None:
    """Return the SBP that a distribution requests; None if it is ``auto`` or None.

    Raises `JobError` if the argument is not a distribution, or the shape does not have its axis.
    """
    kind = None if distribute is None else getattr(distribute, "kind", "")
    if kind not in (None, "auto", "broadcast", "split"):
        raise JobError(attempted, at=line, found=f"{distribute!r:.60}", allowed=DISTRIBUTIONS)
    if distribute is None or kind == "auto":
        return None
    if distribute.axis is None:
        return B
    try:
        return Split(normal_axis(distribute.axis, len(shape)))
    except ValueError as error:
        allowed = f"an axis of a blob of shape {tuple(shape)}"
        raise JobError(attempted, at=line, found=str(error), allowed=allowed) from None


def over_placement(sbp: Sbp | None, placement: Placement) -> tuple[NdSbp, ...]:
    """Return an n-D SBP: the SBP in the first hierarchy dimension, B in the others.

    The result is empty on a single device.
    """
    if sbp is None or placement.size == 1:
        return ()
    return ((sbp, *(B,) * (len(placement.hierarchy) - 1)),)


def decode_nd_sbp(
    attempted: str, texts: Sequence[str], placement: Placement, rank: int, line: SourceLine | None
) -> tuple[NdSbp, ...]:
    """Return the n-D SBP that texts request; empty on a single device or without texts.

    Raises `JobError` if the texts are invalid, or do not match the hierarchy or the blob.
    """
    if isinstance(texts, list | tuple) and not texts:
        return ()
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        allowed = 'a text per hierarchy dimension, such as ["S(0)", "B"]'
        raise JobError(attempted, at=line, found=f"{texts!r:.60}", allowed=allowed)
    try:
        sbp = tuple(_normalized(parse_sbp(text), rank) for text in texts)
    except (GraphError, ValueError) as error:
        found = error.found if isinstance(error, GraphError) else str(error)
        raise JobError(attempted, at=line, found=found, allowed="S(axis), B or P") from None
    if len(sbp) != len(placement.hierarchy):
        raise JobError(
            attempted,
            at=line,
            found=f"{format_nd_sbp(sbp)} for {placement}",
            allowed=f"an SBP for each of {len(placement.hierarchy)} hierarchy dimensions",
            hint="give one SBP per dimension, or a placement with another hierarchy: "
            'flow.scope.placement("gpu", "0:0-3", (2, 2)) has two dimensions',
        )
    return () if placement.size == 1 else (sbp,)


def _normalized(sbp: Sbp, rank: int) -> Sbp:
    return Split(normal_axis(sbp.axis, rank)) if isinstance(sbp, Split) else sbp
