"""Rasterize polygons by the rule of COCO's own tools.

The rule is that of ``rleFrPoly`` in pycocotools, in NumPy: outlines are drawn on a grid of 5 x 5
points per pixel; where an outline passes the center line of a column of pixels, the pixels below
change between inside and outside. Only these passes are computed, so that the work does not depend
on the lengths of edges beyond the image.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flow_data.instances import Array

_SCALE = 5
"""Points of the grid per pixel."""

_DECIMALS = 3
"""Decimals to which coordinates are rounded: annotations have two, which float32 changes."""

FARTHEST = 1e8
"""The maximum distance of a point from the image's corner, in pixels."""

_AT_ONCE = 1 << 20
"""About how many passes are computed at once, which bounds the memory."""


def fill(mask: Array, points: Array) -> None:
    """Set the pixels inside of a polygon to 1.

    Args:
        mask: integers (height, width).
        points: the corners x, y (count, 2), at most `FARTHEST` from the origin.
    """
    height, width = mask.shape
    scaled = np.round(points.astype(np.float64), _DECIMALS) * _SCALE + 0.5
    corners = np.trunc(scaled).astype(np.int64)
    edges = np.concatenate([corners, np.roll(corners, -1, 0)], 1)
    columns, rows = (np.concatenate(parts) for parts in zip(*_passes(edges, width), strict=True))
    if not len(columns):
        return
    rows = np.ceil(np.clip((rows + 0.5) / _SCALE - 0.5, 0, height)).astype(np.int64)
    first, top = columns.min(), rows.min()
    changes = np.zeros((columns.max() - first + 1, rows.max() - top + 1), np.uint8)
    np.bitwise_xor.at(changes, (columns - first, rows - top), 1)
    inside = np.bitwise_xor.accumulate(changes, 1).T[: height - top]
    mask[top : top + len(inside), first : first + len(changes)] |= inside.astype(mask.dtype)


def _passes(edges: Array, width: int) -> Iterator[tuple[Array, Array]]:
    """Yield the columns in which edges pass center lines, and the points (rows of the grid)."""
    x0, x1 = edges[:, [0, 2]].min(1), edges[:, [0, 2]].max(1)
    first = np.maximum(-(-(x0 - 2) // _SCALE), 0)
    counts = np.maximum(np.minimum((x1 - 3) // _SCALE, width - 1) - first + 1, 0)
    pieces = -(-int(counts.sum()) // _AT_ONCE) or 1
    for part in np.array_split(np.arange(len(edges)), min(pieces, len(edges))):
        count = counts[part]
        edge = np.repeat(part, count)
        column = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count) + first[edge]
        yield column, _rows(edges[edge], _SCALE * column + 2)


def _rows(edges: Array, before: Array) -> Array:
    """Return the upper of the two points between which each edge passes from x to x + 1."""
    x, y, to_x, to_y = edges.T
    flat = np.abs(to_x - x) >= np.abs(to_y - y)
    swap = np.where(flat, x > to_x, y > to_y)
    x, to_x = np.where(swap, to_x, x), np.where(swap, x, to_x)
    y, to_y = np.where(swap, to_y, y), np.where(swap, y, to_y)
    rise, run = np.where(flat, to_y - y, to_x - x), np.where(flat, to_x - x, to_y - y)
    slope = rise / np.maximum(run, 1)

    def point(start: Array, step: Array) -> Array:
        return np.trunc(start + slope * step + 0.5)

    beside = np.minimum(point(y, before - x), point(y, before + 1 - x))
    with np.errstate(divide="ignore", invalid="ignore"):
        guess = np.where(flat, 0, np.ceil((before + 0.5 - x) / np.where(flat, 1, slope)))

    def passed(step: Array) -> Array:
        return (point(x, step) > before) == (slope > 0)

    step = guess - passed(guess - 1)  # the first step behind the line, in spite of rounding
    step = step + ~passed(step)
    return np.where(flat, beside, y + step - 1)
