"""Layouts of tensors over devices, and rules of ops, with the notation of SBP.

`Split` is also known as ``Shard``, `Broadcast` as ``Replicate``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from flow_rules.errors import RulesError

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Region = tuple[tuple[int, int], ...]
"""A box in a tensor: (start, stop) per axis."""
Ranges = Callable[[int, int], tuple[tuple[int, int], ...]]
"""A function of a size and a number of parts, which returns (start, stop) of each part."""


@dataclass(frozen=True, slots=True)
class Split:
    """Each device has a part of the tensor along ``axis``."""

    axis: int

    def __str__(self) -> str:
        return f"S({self.axis})"


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Each device has the whole tensor."""

    def __str__(self) -> str:
        return "B"


@dataclass(frozen=True, slots=True)
class Partial:
    """Each device has a term of full shape; ``op`` combines the terms: sum, max, min or avg."""

    op: str = "sum"

    def __str__(self) -> str:
        return "P" if self.op == "sum" else f"P({self.op})"


Layout = Split | Broadcast | Partial

B = Broadcast()
P = Partial()
EXTREMES = (Partial("max"), Partial("min"))
REPEATABLE = (*EXTREMES, Partial("avg"))
"""The partial layouts of which B is a special case: equal terms combine to themselves."""


def S(axis: int) -> Split:
    """Return ``Split(axis)``."""
    return Split(axis)


@dataclass(frozen=True, slots=True)
class Rule:
    """If the inputs have these layouts, the op on each device's parts makes parts of the outputs.

    >>> str(Rule((S(0), B), (S(0),)))
    '(S(0), B) -> S(0)'
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.inputs))}) -> {', '.join(map(str, self.outputs))}"


Rules = tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """The shape and the element type of a tensor.

    >>> str(TensorType((2, 3), np.dtype("float32")))
    'float32[2,3]'
    """

    shape: Shape
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


_LAYOUT = re.compile(r"S\(([0-9]{1,3})\)|(B)|P(?:\((sum|max|min|avg)\))?")


def parse_layout(text: str) -> Layout:
    """Parse the text form of a layout.

    Raises:
        RulesError: the text is none.

    >>> parse_layout("S(1)"), parse_layout("P(max)")
    (Split(axis=1), Partial(op='max'))
    """
    match = _LAYOUT.fullmatch(text)
    if match is None:
        raise RulesError(f"found {text[:40]!r}, expected a layout: S(axis), B, P, P(max) or P(min)")
    if match[1] is not None:
        return Split(int(match[1]))
    return B if match[2] else Partial(match[3] or "sum")


def balanced(size: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges of parts whose sizes differ by at most 1, larger ones first.

    >>> balanced(7, 3)
    ((0, 3), (3, 5), (5, 7))
    """
    base, extra = divmod(size, parts)
    starts = [index * base + min(index, extra) for index in range(parts + 1)]
    return tuple(pairwise(starts))


def chunks(size: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges of parts that all have the size of the first, except the last ones.

    PyTorch splits so; the last parts may be empty.

    >>> chunks(7, 3), chunks(4, 3)
    (((0, 3), (3, 6), (6, 7)), ((0, 2), (2, 4), (4, 4)))
    """
    step = -(-size // parts)
    starts = [min(size, index * step) for index in range(parts + 1)]
    return tuple(pairwise(starts))


def region_of(shape: Shape, layout: Layout, parts: int, rank: int, ranges: Ranges) -> Region:
    """Return the part of a tensor that a device has; the whole for B and P.

    >>> region_of((7, 2), S(0), 3, 1, balanced)
    ((3, 5), (0, 2))
    """
    region = [(0, size) for size in shape]
    if isinstance(layout, Split):
        region[layout.axis] = ranges(shape[layout.axis], parts)[rank]
    return tuple(region)


def shape_of(region: Region) -> Shape:
    """Return the shape of a region."""
    return tuple(stop - start for start, stop in region)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one device's parts in the tensors of an op.

    Attributes:
        rule: the layouts of the inputs and outputs.
        parts, rank: number of devices, and the number of this device.
        inputs, outputs: types of the whole tensors.
        input_regions, output_regions: the parts of this device.
    """

    rule: Rule
    parts: int
    rank: int
    inputs: Sequence[TensorType]
    outputs: Sequence[TensorType]
    input_regions: Sequence[Region]
    output_regions: Sequence[Region]
