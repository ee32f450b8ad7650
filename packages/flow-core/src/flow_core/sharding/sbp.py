"""The SBP algebra: the distribution of a logical tensor over the devices of a placement.

With ``S(i)``, each device holds one of the balanced parts of axis i; with ``B``, each device holds
the whole tensor; with ``P``, each device holds a partial result, and the tensor is the sum (or
maximum or minimum) of these.  Rules of ops are written for one dimension of the placement's
hierarchy; an `NdSbp` has one entry per dimension, outermost first.  This module depends on neither
graphs nor devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flow_core.base.errors import GraphError
from flow_core.base.shapes import Shape, balanced_range


@dataclass(frozen=True, slots=True)
class Split:
    """The tensor is split on ``axis`` into balanced parts.

    >>> str(Split(1))
    'S(1)'
    """

    axis: int

    def __str__(self) -> str:
        return f"S({self.axis})"


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every device holds the whole tensor.

    >>> str(Broadcast())
    'B'
    """

    def __str__(self) -> str:
        return "B"


@dataclass(frozen=True, slots=True)
class Partial:
    """Every device holds a tensor of full shape; ``op`` combines these to the logical tensor.

    >>> str(Partial()), str(Partial("max"))
    ('P', 'P(max)')
    """

    op: str = "sum"

    def __str__(self) -> str:
        return "P" if self.op == "sum" else f"P({self.op})"


Sbp = Split | Broadcast | Partial
NdSbp = tuple[Sbp, ...]
Region = tuple[tuple[int, int], ...]
"""A box in a logical tensor: (start, stop) per axis."""

B = Broadcast()
P = Partial()
EXTREMES = (Partial("max"), Partial("min"))
"""The partial SBPs of which B is a special case."""


def S(axis: int) -> Split:
    """Return ``Split(axis)``."""
    return Split(axis)


@dataclass(frozen=True, slots=True)
class Signature:
    """One SBP signature of an op in one hierarchy dimension: an entry per input and output.

    >>> str(Signature((S(0), B), (S(0),)))
    '(S(0), B) -> S(0)'
    """

    inputs: tuple[Sbp, ...]
    outputs: tuple[Sbp, ...]

    def __str__(self) -> str:
        outs = ", ".join(map(str, self.outputs))
        return f"({', '.join(map(str, self.inputs))}) -> {outs}"


Signatures = tuple[Signature, ...]


def gradient_dual(sbp: Sbp) -> Sbp:
    """Return the SBP of the gradient of a tensor with this SBP: B and P swap.

    >>> str(gradient_dual(B)), str(gradient_dual(P)), str(gradient_dual(S(2)))
    ('P', 'B', 'S(2)')
    """
    if isinstance(sbp, Broadcast):
        return P
    return B if isinstance(sbp, Partial) else sbp


_ATOM = re.compile(r"^(?:S\((-?\d+)\)|(B)|P(?:\((sum|max|min)\))?)$")


def parse_sbp(text: str) -> Sbp:
    """Parse the text form of an SBP.

    >>> parse_sbp("S(1)"), parse_sbp("P(max)")
    (Split(axis=1), Partial(op='max'))
    """
    match = _ATOM.match(text.strip())
    if match is None:
        raise GraphError(
            "reading an SBP", found=repr(text), allowed="S(<axis>), B, P, P(max) or P(min)"
        )
    if match[1] is not None:
        return Split(int(match[1]))
    return B if match[2] else Partial(match[3] or "sum")


def parse_nd_sbp(text: str) -> NdSbp:
    """Parse the text form of an n-D SBP: one SBP, or several in parentheses.

    >>> format_nd_sbp(parse_nd_sbp("(S(0), B)"))
    '(S(0), B)'
    """
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        return tuple(parse_sbp(part) for part in re.split(r",\s*", text[1:-1]))
    return (parse_sbp(text),)


def format_nd_sbp(nd: NdSbp) -> str:
    """Format an n-D SBP; one dimension has no parentheses.

    >>> format_nd_sbp((S(0),))
    'S(0)'
    """
    return str(nd[0]) if len(nd) == 1 else f"({', '.join(map(str, nd))})"


def signature(inputs: Iterable[Sbp], outputs: Iterable[Sbp]) -> Signature:
    """Make a `Signature` from iterables."""
    return Signature(tuple(inputs), tuple(outputs))


def coordinates(rank: int, hierarchy: Sequence[int]) -> tuple[int, ...]:
    """Return the position of a device in its hierarchy, outermost dimension first.

    >>> coordinates(5, (2, 3))
    (1, 2)
    """
    out: list[int] = []
    for size in reversed(hierarchy):
        rank, index = divmod(rank, size)
        out.append(index)
    return tuple(reversed(out))


def local_region(shape: Shape, nd: NdSbp, hierarchy: Sequence[int], rank: int) -> Region:
    """Return the part of the logical tensor that a device holds: (start, stop) per axis.

    If several hierarchy dimensions split the same axis, the splits are nested, outermost first.
    For P and B, the device holds the whole extent of each axis.

    >>> local_region((7, 4), (S(0), S(0)), (2, 2), 1)
    ((2, 4), (0, 4))
    """
    region = [(0, n) for n in shape]
    for sbp, parts, index in zip(nd, hierarchy, coordinates(rank, hierarchy), strict=True):
        if isinstance(sbp, Split):
            low, high = region[sbp.axis]
            start, stop = balanced_range(high - low, parts, index)
            region[sbp.axis] = (low + start, low + stop)
    return tuple(region)


def region_shape(region: Region) -> Shape:
    """Return the shape of a region.

    >>> region_shape(((2, 4), (0, 4)))
    (2, 4)
    """
    return tuple([high - low for low, high in region])


def intersect(a: Region, b: Region) -> Region | None:
    """Return the intersection of two regions, None when it is empty.

    >>> intersect(((0, 4),), ((2, 9),)), intersect(((0, 2),), ((2, 3),))
    (((2, 4),), None)
    """
    out = []
    for (low_a, high_a), (low_b, high_b) in zip(a, b, strict=True):
        low, high = max(low_a, low_b), min(high_a, high_b)
        if low >= high:
            return None
        out.append((low, high))
    return tuple(out)
