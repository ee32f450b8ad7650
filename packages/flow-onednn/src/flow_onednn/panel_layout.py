"""The layout of packed weights in `native/panels.c`.

Weights are stored in panels of `PANEL` columns; the last panel has the remaining columns, rounded
up to a multiple of `UNIT`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flow_core.base.arrays import Array

PANEL, UNIT = 128, 16


def packed_columns(columns: int) -> int:
    """Return the number of columns with those that fill the last panel.

    >>> packed_columns(10), packed_columns(64), packed_columns(100)
    (16, 64, 112)
    """
    return -(-columns // UNIT) * UNIT


def _panels(packed: Array, columns: int) -> Iterator[tuple[slice, Array]]:
    """Yield the columns of each panel, and the panel without those that fill it."""
    deep = packed.size // packed_columns(columns)
    for first in range(0, columns, PANEL):
        last = min(first + PANEL, columns)
        panel = packed[first * deep : packed_columns(last) * deep].reshape(deep, -1)
        yield slice(first, last), panel[:, : last - first]


def pack(weights: Array, packed: Array) -> None:
    """Pack a matrix into an array of one axis."""
    packed[...] = 0
    for span, panel in _panels(packed, weights.shape[1]):
        panel[...] = weights[:, span]


def unpack(packed: Array, columns: int) -> Array:
    """Return the matrix.

    >>> weights, packed = np.arange(6.0).reshape(3, 2), np.empty(48)
    >>> pack(weights, packed)
    >>> np.array_equal(unpack(packed, 2), weights)
    True
    """
    return np.concatenate([panel for _, panel in _panels(packed, columns)], 1)
