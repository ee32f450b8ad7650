"""The geometry of convolutions, and their division into tiles that fit the caches.

Everything is computed from shapes, so that parts of split tensors work like whole tensors.  Arrays
are viewed in canonical axes, whatever their layout: data as (batch, group, channel, *space),
weights as (group, filter, channel, *kernel), and flattened data as (batch, group, channel,
position).  1-D space gets a second axis of size 1, so that tensors of every rank have rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from flow_core.base.arrays import Array
from flow_core.base.shapes import balanced_range
from flow_core.builtin.calls import call
from flow_core.device import Launch
from flow_core.ir.graph import TensorType
from flow_core.plugins.specs import KernelQuery

Ints = tuple[int, ...]

BUDGET = 6 << 20
"""Maximum size of a tile's columns in bytes, so that OpenBLAS reads them from the outer caches."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile: images ``n0:n1`` and output rows ``h0:h1`` along the first spatial axis."""

    n0: int
    n1: int
    h0: int
    h1: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution of x (batch, groups x channels, *size) to y (batch, groups x filters, *out)."""

    first: bool  # whether the channel axis comes before the spatial axes
    n: int
    groups: int
    channels: int  # per group
    filters: int  # per group
    size: Ints  # per spatial axis, like all sizes
    out: Ints
    kernel: Ints
    strides: Ints
    dilation: Ints
    before: Ints  # padding before the first element of each axis; a negative value crops elements

    @property
    def positions(self) -> int:
        """Number of output positions per image."""
        return prod(self.out)

    @property
    def row(self) -> int:
        """Number of output positions per row."""
        return prod(self.out[1:])

    @property
    def depth(self) -> int:
        """Number of terms summed for one output element."""
        return self.channels * prod(self.kernel)

    @property
    def empty(self) -> bool:
        return 0 in (self.n, self.groups, self.channels, self.filters, *self.size, *self.out)

    @property
    def pointwise(self) -> bool:
        """Whether x itself is the matrix of columns."""
        return (
            set(self.kernel) == {1}
            and set(self.strides) == {1}
            and set(self.before) == {0}
            and self.size == self.out
        )

    def transposed(self) -> Geometry:
        """Return the convolution that maps dy to dx with flipped weights; all strides must be 1."""
        effective = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        return replace(
            self,
            channels=self.filters,
            filters=self.channels,
            size=self.out,
            out=self.size,
            before=tuple(e - 1 - b for e, b in zip(effective, self.before, strict=True)),
        )

    def span(self, tile: Tile) -> list[tuple[int, int]]:
        """Return, for each axis, start and length of the part of padded x that a tile reads."""
        columns = zip(
            self._rows(tile), self.kernel, self.strides, self.dilation, self.before, strict=True
        )
        return [(a * s - p, (o - 1) * s + (k - 1) * d + 1) for (a, o), k, s, d, p in columns]

    def _rows(self, tile: Tile) -> list[tuple[int, int]]:
        """Return, for each axis, a tile's first output position and its number of positions."""
        return [(tile.h0, tile.h1 - tile.h0), *((0, n) for n in self.out[1:])]

    def tile_out(self, tile: Tile) -> Ints:
        return tuple(count for _, count in self._rows(tile))

    def columns(self, tile: Tile) -> int:
        """Return the number of output positions of a tile, summed over its images."""
        return (tile.n1 - tile.n0) * (tile.h1 - tile.h0) * self.row

    def tiles(self, image_bytes: int) -> list[Tile]:
        """Split the output into equal tiles of whole images, or of rows if an image is too large.

        Args:
            image_bytes: size in bytes of the workspace that one image needs.
        """
        if image_bytes <= BUDGET:
            count = -(-self.n * image_bytes // BUDGET) or 1
            ranges = [balanced_range(self.n, count, i) for i in range(count)]
            return [Tile(a, b, 0, self.out[0]) for a, b in ranges]
        count = min(self.out[0], -(-image_bytes // BUDGET))
        rows = [balanced_range(self.out[0], count, i) for i in range(count)]
        return [Tile(n, n + 1, a, b) for n in range(self.n) for a, b in rows]


def geometry(query: KernelQuery, x: TensorType, weight: TensorType, y: TensorType) -> Geometry:
    """Return the geometry of a convolution of ``x`` with ``weight`` to ``y``."""
    first = query.attrs["data_format"] == "channels_first"

    def parts(type_: TensorType) -> tuple[int, Ints]:
        shape = type_.shape
        return (shape[1], shape[2:]) if first else (shape[-1], shape[1:-1])

    (depth, size), (channels, kernel), (filters, out) = parts(x), parts(weight), parts(y)
    groups = depth // channels if channels else 1
    flat = len(size) == 1
    more = ((1,), (0,)) if flat else ((), ())
    return Geometry(
        first, x.shape[0], groups, channels, filters // groups if groups else 0,
        size + more[0], out + more[0], kernel + more[0],
        query.attrs["strides"] + more[0], query.attrs["dilation_rate"] + more[0],
        query.attrs["padding_before"] + more[1],
    )  # fmt: skip


def data_view(array: Array, first: bool, groups: int, space: Ints) -> Any:
    """View a data array in canonical axes (batch, group, channel, *space)."""
    n = array.shape[0]
    channels = array.shape[1 if first else -1] // groups
    if first:
        return array.reshape(n, groups, channels, *space)
    return np.moveaxis(array.reshape(n, *space, groups, channels), (-2, -1), (1, 2))


def weight_view(array: Array, geo: Geometry) -> Any:
    """View weights in canonical axes (group, filter, channel, *kernel)."""
    if geo.first:
        return array.reshape(geo.groups, geo.filters, geo.channels, *geo.kernel)
    return np.moveaxis(array.reshape(geo.groups, geo.filters, *geo.kernel, geo.channels), -1, 2)


def matrix_view(array: Array, first: bool, groups: int, tile: Tile, row: int) -> Array:
    """View the positions of a tile as matrices (batch, group, channel, position).

    Channels-last tensors with one group give one matrix for all images: (1, 1, channel, position).
    """
    n, positions = array.shape[0], prod(array.shape[2:] if first else array.shape[1:-1])
    channels = array.shape[1 if first else -1] // groups
    images, part = slice(tile.n0, tile.n1), slice(tile.h0 * row, tile.h1 * row)
    if first:
        return array.reshape(n, groups, channels, positions)[images, :, :, part]
    if groups == 1:
        start, stop = tile.n0 * positions + tile.h0 * row, (tile.n1 - 1) * positions + tile.h1 * row
        return array.reshape(n * positions, channels)[start:stop].T[None, None]
    return array.reshape(n, positions, groups, channels).transpose(0, 2, 3, 1)[images, :, :, part]


def column_matrix(buffer: Array, first: bool, groups: int, depth: int, positions: int) -> Array:
    """View a buffer of columns as matrices (batch, group, depth, position), like `matrix_view`."""
    if first:
        return buffer.reshape(-1, groups, depth, positions)
    if groups == 1:
        return buffer.reshape(1, 1, -1, depth).swapaxes(-1, -2)
    return buffer.reshape(-1, groups, positions, depth).swapaxes(-1, -2)


def column_shape(geo: Geometry, tile: Tile) -> Ints:
    """Return the shape of a tile's column buffer."""
    n, out = tile.n1 - tile.n0, geo.tile_out(tile)
    if geo.first:
        return (n, geo.groups, geo.channels, *geo.kernel, *out)
    return (n, geo.groups, *out, *geo.kernel, geo.channels)


def column_view(buffer: Array, geo: Geometry) -> Any:
    """View a column buffer in the axes of `windows`."""
    if geo.first:
        return buffer
    dims = len(geo.out)
    order = (0, 1, buffer.ndim - 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))
    return buffer.transpose(order)


def windows(source: Array, geo: Geometry, out: Ints) -> Array:
    """View the windows of padded data as (batch, group, channel, *kernel, *out)."""
    space = source.strides[3:]
    inner = tuple(s * d for s, d in zip(space, geo.dilation, strict=True))
    outer = tuple(s * d for s, d in zip(space, geo.strides, strict=True))
    shape = (*source.shape[:3], *geo.kernel, *out)
    return as_strided(source, shape, source.strides[:3] + inner + outer)


def inside(span: Sequence[tuple[int, int]], size: Ints) -> bool:
    """Return whether a span is within the tensor, so that it needs no padding."""
    return all(a >= 0 and a + length <= n for (a, length), n in zip(span, size, strict=True))


def padded_shape(geo: Geometry, tile: Tile) -> Ints:
    """Return the shape of a tile's padded copy of x."""
    n, space = tile.n1 - tile.n0, tuple(length for _, length in geo.span(tile))
    depth = geo.groups * geo.channels
    return (n, depth, *space) if geo.first else (n, *space, depth)


def padded(x: Any, geo: Geometry, tile: Tile, buffer: Any) -> tuple[list[Launch], Any]:
    """Return the launches that pad a tile's part of x, and the padded part in canonical axes.

    Args:
        x: the whole data array in canonical axes.
        buffer: an array of `padded_shape` for the copy; None to use x itself.
    """
    span = geo.span(tile)
    images = x[tile.n0 : tile.n1]
    if buffer is None:
        return [], images[(..., *(slice(a, a + length) for a, length in span))]
    view = data_view(buffer, geo.first, geo.groups, tuple(length for _, length in span))
    columns = zip(span, geo.size, strict=True)
    taken = [slice(max(a, 0), max(a, 0, min(a + length, n))) for (a, length), n in columns]
    given = [slice(t.start - a, t.stop - a) for t, (a, _) in zip(taken, span, strict=True)]
    copy = partial(np.copyto, view[(..., *given)], images[(..., *taken)], casting="unsafe")
    return [partial(buffer.fill, 0), copy], view


def flat(array: Array) -> bool:
    """Return whether NumPy iterates over an array with one stride, so that ufuncs need no buffers.

    >>> x = np.zeros((4, 6))
    >>> flat(x[:, ::2]), flat(x[:, :2])
    (True, False)
    """
    axes = [(n, s) for n, s in zip(array.shape, array.strides, strict=True) if n != 1]
    return all(outer == n * inner for (_, outer), (n, inner) in pairwise(axes))


def apply(
    function: Callable[..., object],
    inputs: Sequence[Array],  # arrays of one shape
    out: Array,  # array of the same shape; it can be one of the inputs
    # Contiguous vectors, each with as many bytes as the largest array: one for each input that is
    # not `flat`, and one more if ``out`` is not `flat` and none of these inputs has its element
    # type.
    temporaries: Sequence[Array],
) -> Iterator[Launch]:
    """Yield launches of a ufunc; copy views for which NumPy would need buffers to temporaries."""
    free, taken = iter(temporaries), []
    arguments = []
    for array in inputs:
        if not flat(array):
            copy = _like(next(free), array)
            yield partial(np.copyto, copy, array)
            taken.append(copy)
            array = copy
        arguments.append(array)
    if flat(out):
        yield call(function, *arguments, out=out)
        return
    same = [copy for copy in taken if copy.dtype == out.dtype]
    result = same[0] if same else _like(next(free), out)
    yield call(function, *arguments, out=result)
    yield partial(np.copyto, out, result)


def _like(vector: Array, array: Array) -> Array:
    """Return an array with the shape and type of ``array`` at the start of a vector's memory."""
    return vector.view(array.dtype)[: array.size].reshape(array.shape)
