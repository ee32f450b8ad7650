"""Convolutions, computed tile by tile as matrix products of weights and columns.

There are four lowerings, all based on the geometry in `flow_core.builtin.numpy_kernels.nn.windows`:

* *image*: im2col, (channel, *kernel) x positions, per image.
* *rows*: columns without the first kernel axis, ordered (row, channel, *kernel[1:]) x (image,
  *out[1:]).  The kernel rows are then overlapping views, so that the copy has 1 / kernel[0] of the
  size of all columns, and every output row is one matrix product over all images of the tile.
* The data gradient of a strided convolution adds columns back to x (col2im), one kernel position
  after the other; with strides of 1, it is a convolution of dy with the flipped weights.
* Filter gradients multiply dy with either kind of columns and sum over tiles.

float16 and bfloat16 are computed on float32 copies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes, kernel
from flow_core.builtin.numpy_kernels.nn.windows import (
    BUDGET,
    Geometry,
    Ints,
    Tile,
    apply,
    column_matrix,
    column_shape,
    column_view,
    data_view,
    geometry,
    inside,
    matrix_view,
    padded,
    padded_shape,
    weight_view,
    windows,
)
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

NARROW = 48
"""Minimum number of columns for the lowering "rows"; BLAS is inefficient for narrower products."""


class Scratch:
    """Named parts of a workspace; each tile reshapes the parts that it uses."""

    def __init__(self, workspace: Array, sizes: dict[str, int], dtype: DTypeLike) -> None:
        views = carve(workspace, *(((size,), dtype) for size in sizes.values())) if sizes else ()
        self._flat = dict(zip(sizes, views, strict=True))

    def __contains__(self, name: str) -> bool:
        return name in self._flat

    def take(self, name: str, shape: Ints) -> Array:
        """Return an array of ``shape`` that consists of the first elements of a part."""
        return self._flat[name][: prod(shape)].reshape(shape)


class Lowering(Protocol):
    """An algorithm that computes one op; its sizes are in elements of the computation type."""

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the workspace parts."""

    def launches(self, scratch: Scratch, a: Array, b: Array, out: Array) -> Iterator[Launch]:
        """Yield the launches for two input arrays and an output array."""


@dataclass(frozen=True, slots=True)
class Tiled(ABC):
    """Base class of the lowerings."""

    geo: Geometry
    itemsize: int  # size of the computation type in bytes
    staged: bool  # whether tensors are stored in a type other than the computation type
    # Whether this convolution is the transpose of the one to which the weights belong.
    flip: bool = False

    def fixed(self) -> dict[str, int]:
        """Return the sizes of the workspace parts that do not depend on the tile."""
        return {}

    @abstractmethod
    def tile_sizes(self, tile: Tile) -> dict[str, int]:
        """Return the sizes of the workspace parts that one tile needs."""

    def tiles(self) -> list[Tile]:
        image = Tile(0, 1, 0, self.geo.out[0])
        return self.geo.tiles(sum(self.tile_sizes(image).values()) * self.itemsize)

    def sizes(self) -> dict[str, int]:
        """Return the size of each workspace part, which is its maximum over all tiles."""
        sizes = self.fixed()
        for tile in self.tiles():
            for name, size in self.tile_sizes(tile).items():
                sizes[name] = max(size, sizes.get(name, 0))
        return sizes

    def pad_size(self, tile: Tile) -> dict[str, int]:
        """Return the size of the padded copy of x; an empty dict if a tile needs no padding."""
        whole = inside(self.geo.span(tile), self.geo.size)
        return {} if whole else {"pad": prod(padded_shape(self.geo, tile))}

    def source(self, x: Array, tile: Tile, scratch: Scratch) -> tuple[list[Launch], Array]:
        """Return the launches that pad a tile's part of x, and the padded x in canonical axes."""
        view = data_view(x, self.geo.first, self.geo.groups, self.geo.size)
        shape = padded_shape(self.geo, tile)
        buffer = scratch.take("pad", shape) if self.pad_size(tile) else None
        return padded(view, self.geo, tile, buffer)

    def weights(self, array: Any) -> Any:
        """Return weights in canonical axes, swapped and reversed for a transposed convolution."""
        if not self.flip:
            return weight_view(array, self.geo)
        reverse = (slice(None, None, -1),) * len(self.geo.kernel)
        return weight_view(array, self.geo.transposed()).swapaxes(1, 2)[(..., *reverse)]


def _copy(target: Array, source: Array) -> Launch:
    return partial(np.copyto, target, source, casting="unsafe")


def _matrix(tiled: Tiled, array: Array, tile: Tile) -> Array:
    return matrix_view(array, tiled.geo.first, tiled.geo.groups, tile, tiled.geo.row)


def _staged_matrix(like: Array, name: str, scratch: Scratch) -> Array:
    """Return a buffer with the shape and axis order of ``like``, a `matrix_view` of an array."""
    n, groups, channels, positions = like.shape
    if like.strides[-1] <= like.strides[-2]:
        return scratch.take(name, like.shape)
    return scratch.take(name, (n, groups, positions, channels)).swapaxes(-1, -2)


# ------------------------------------------------------------------------------ columns


@dataclass(frozen=True, slots=True)
class _ImageColumns(Tiled):
    """Base class of the lowerings that have a matrix of columns per image."""

    @property
    def direct(self) -> bool:
        """Whether x itself is the matrix of columns, so that no copy is needed."""
        return self.geo.pointwise and not self.staged

    def column_sizes(self, tile: Tile) -> dict[str, int]:
        """Return the sizes of the padded copy and the columns."""
        cols = {} if self.direct else {"cols": prod(column_shape(self.geo, tile))}
        return self.pad_size(tile) | cols

    def columns(self, x: Array, tile: Tile, scratch: Scratch) -> tuple[list[Launch], Array]:
        """Return the columns of a tile as matrices (batch, group, depth, position)."""
        geo, out = self.geo, self.geo.tile_out(tile)
        if self.direct:
            return [], _matrix(self, x, tile)
        steps, source = self.source(x, tile, scratch)
        buffer = scratch.take("cols", column_shape(geo, tile))
        steps.append(_copy(column_view(buffer, geo), windows(source, geo, out)))
        return steps, column_matrix(buffer, geo.first, geo.groups, geo.depth, prod(out))


@dataclass(frozen=True, slots=True)
class ImageForward(_ImageColumns):
    """Forward convolution, y = weights x columns for each image."""

    def fixed(self) -> dict[str, int]:
        geo = self.geo
        copied = self.flip or self.staged
        return {"weight": geo.groups * geo.filters * geo.depth} if copied else {}

    def tile_sizes(self, tile: Tile) -> dict[str, int]:
        geo = self.geo
        out = {"out": geo.groups * geo.filters * geo.columns(tile)} if self.staged else {}
        return self.column_sizes(tile) | out

    def launches(self, scratch: Scratch, a: Array, b: Array, out: Array) -> Iterator[Launch]:
        geo, weight = self.geo, self.weights(b)
        if not geo.first:
            weight = np.moveaxis(weight, 2, -1)
        if "weight" in scratch:
            buffer = scratch.take("weight", weight.shape)
            yield _copy(buffer, weight)
            weight = buffer
        weight = weight.reshape(geo.groups, geo.filters, geo.depth)
        for tile in self.tiles():
            steps, columns = self.columns(a, tile, scratch)
            yield from steps
            target = _matrix(self, out, tile)
            result = _staged_matrix(target, "out", scratch) if self.staged else target
            yield partial(np.matmul, weight, columns, result)
            if self.staged:
                yield _copy(target, result)


@dataclass(frozen=True, slots=True)
class ImageFilterGrad(_ImageColumns):
    """Filter gradient, dw = the sum over images of dy x transposed columns."""

    def fixed(self) -> dict[str, int]:
        size = self.geo.groups * self.geo.filters * self.geo.depth
        return ({"acc": size} if self.staged else {}) | {"sum": size}

    def _joined(self) -> bool:
        """Return whether one matrix product covers all images of a tile."""
        return not self.geo.first and self.geo.groups == 1

    def tile_sizes(self, tile: Tile) -> dict[str, int]:
        geo, n = self.geo, tile.n1 - tile.n0
        sizes = self.column_sizes(tile)
        if self.staged:
            sizes["dy"] = geo.groups * geo.filters * geo.columns(tile)
        if n > 1 and not self._joined():
            sizes["parts"] = n * geo.groups * geo.filters * geo.depth
        return sizes

    def tiles(self) -> list[Tile]:
        image = sum(self.tile_sizes(Tile(0, 1, 0, self.geo.out[0])).values()) * self.itemsize
        parts = 0 if self._joined() else self.fixed()["sum"] * self.itemsize
        return self.geo.tiles(max(image, min(image + parts, BUDGET)))

    def launches(self, scratch: Scratch, a: Array, b: Array, out: Array) -> Iterator[Launch]:
        shape = (self.geo.groups, self.geo.filters, self.geo.depth)
        total = scratch.take("acc", shape) if self.staged else out.reshape(shape)
        part = scratch.take("sum", shape)
        for i, tile in enumerate(self.tiles()):
            yield from self._tile(scratch, a, b, tile, part if i else total)
            if i:
                yield partial(np.add, total, part, total)
        if self.staged:
            yield _copy(out.reshape(shape), total)

    def _tile(
        self, scratch: Scratch, dy: Array, x: Array, tile: Tile, target: Array
    ) -> Iterator[Launch]:
        steps, columns = self.columns(x, tile, scratch)
        yield from steps
        left = _matrix(self, dy, tile)
        if self.staged:
            stored, left = left, _staged_matrix(left, "dy", scratch)
            yield _copy(left, stored)
        if left.shape[0] == 1:
            yield partial(np.matmul, left, columns.swapaxes(-1, -2), target[None])
            return
        parts = scratch.take("parts", (left.shape[0], *target.shape))
        yield partial(np.matmul, left, columns.swapaxes(-1, -2), parts)
        yield partial(np.add.reduce, parts, 0, None, target)


@dataclass(frozen=True, slots=True)
class StridedDataGrad(Tiled):
    """Data gradient, dx = columns of (transposed weights x dy), added per kernel position."""

    def fixed(self) -> dict[str, int]:
        geo = self.geo
        return {"weight": geo.groups * geo.filters * geo.depth} if self.staged else {}

    def tile_sizes(self, tile: Tile) -> dict[str, int]:
        geo = self.geo
        sizes = {"cols": geo.groups * geo.depth * geo.columns(tile)}
        sizes |= dict.fromkeys(("one", "two"), self._tap_size(tile))
        if self.staged:
            sizes["dy"] = geo.groups * geo.filters * geo.columns(tile)
            sizes["acc"] = (tile.n1 - tile.n0) * geo.groups * geo.channels * prod(geo.size)
        return sizes

    def launches(self, scratch: Scratch, a: Array, b: Array, out: Array) -> Iterator[Launch]:
        geo = self.geo
        weight = b.reshape(geo.groups, geo.filters, geo.depth)
        if self.staged:
            stored, weight = weight, scratch.take("weight", weight.shape)
            yield _copy(weight, stored)
        for tile in self.tiles():
            target = self._target(scratch, out, tile)
            if tile.h0 == 0:
                yield partial(target.fill, 0)
            yield from self._tile(scratch, a, weight.swapaxes(-1, -2), tile, target)
            if self.staged and tile.h1 == geo.out[0]:
                yield _copy(out[tile.n0 : tile.n1], target)

    def _tap_size(self, tile: Tile) -> int:
        """Return the size of the columns that belong to one kernel position."""
        return self.geo.groups * self.geo.channels * self.geo.columns(tile)

    def _target(self, scratch: Scratch, dx: Array, tile: Tile) -> Array:
        images = dx[tile.n0 : tile.n1]
        return scratch.take("acc", images.shape) if self.staged else images

    def _tile(
        self, scratch: Scratch, dy: Any, weight: Any, tile: Tile, target: Any
    ) -> Iterator[Launch]:
        geo = self.geo
        right = _matrix(self, dy, tile)
        if self.staged:
            stored, right = right, _staged_matrix(right, "dy", scratch)
            yield _copy(right, stored)
        buffer = scratch.take("cols", column_shape(geo, tile))
        out = geo.tile_out(tile)
        matrix = column_matrix(buffer, geo.first, geo.groups, geo.depth, prod(out))
        yield partial(np.matmul, weight, right, matrix)
        columns = column_view(buffer, geo)
        size = self._tap_size(tile)
        temporaries = [scratch.take(name, (size,)) for name in ("one", "two")]
        view = data_view(target, geo.first, geo.groups, geo.size)
        for tap in product(*map(range, geo.kernel)):
            into, from_ = _meeting(geo, tile, tap)
            part = columns[(slice(None),) * 3 + tap][(..., *from_)]
            if part.size:
                goal = view[(..., *into)]
                yield from apply(np.add, (goal, part), goal, temporaries)


def _meeting(geo: Geometry, tile: Tile, tap: Ints) -> tuple[list[slice], list[slice]]:
    """Return the slices of x and of the tile's output in which a kernel position overlaps x."""
    into, from_ = [], []
    starts = (tile.h0, *(0 for _ in geo.out[1:]))
    columns = zip(
        tap, starts, geo.tile_out(tile), geo.size, geo.strides, geo.dilation, geo.before,
        strict=True,
    )  # fmt: skip
    for t, start, count, size, stride, dilation, before in columns:
        shift = t * dilation - before
        low = max(start, -(shift // stride))
        high = max(low, min(start + count, (size - 1 - shift) // stride + 1))
        first = low * stride + shift
        into.append(slice(first, first + max(0, (high - low - 1) * stride + 1), stride))
        from_.append(slice(low - start, high - start))
    return into, from_


# ------------------------------------------------------------------------------ rows


@dataclass(frozen=True, slots=True)
class RowForward(Tiled):
    """Forward convolution, y = weights x overlapping rows of columns for each output row."""

    def fixed(self) -> dict[str, int]:
        return {"weight": self.geo.filters * self.geo.depth}

    def _rows_shape(self, tile: Tile) -> Ints:
        """Return the sizes (row, channel, *kernel[1:], image, *out[1:]) for a tile."""
        geo = self.geo
        height = geo.span(tile)[0][1]
        return (height, geo.channels, *geo.kernel[1:], tile.n1 - tile.n0, *geo.out[1:])

    def tile_sizes(self, tile: Tile) -> dict[str, int]:
        out = self.geo.filters * self.geo.columns(tile)
        return self.pad_size(tile) | {"rows": prod(self._rows_shape(tile)), "out": out}

    def launches(self, scratch: Scratch, a: Array, b: Array, out: Array) -> Iterator[Launch]:
        geo = self.geo
        weight = np.moveaxis(self.weights(b)[0], 1, 2)
        buffer = scratch.take("weight", weight.shape)
        yield _copy(buffer, weight)
        for tile in self.tiles():
            yield from self._tile(scratch, a, buffer.reshape(geo.filters, geo.depth), out, tile)

    def _tile(
        self, scratch: Scratch, x: Array, weight: Array, y: Array, tile: Tile
    ) -> Iterator[Launch]:
        geo, n, height = self.geo, tile.n1 - tile.n0, tile.h1 - tile.h0
        steps, source = self.source(x, tile, scratch)
        yield from steps
        rows = scratch.take("rows", self._rows_shape(tile))
        rest = len(geo.out) - 1
        order = (2, 1, *range(3, 3 + rest), 0, *range(3 + rest, 3 + 2 * rest))
        yield _copy(rows, _row_windows(source, geo).transpose(order))
        slab, item = rows.strides[0], rows.itemsize
        width = n * geo.row
        shape, strides = (height, geo.depth, width), (slab * geo.strides[0], width * item, item)
        result = scratch.take("out", (height, geo.filters, width))
        yield partial(np.matmul, weight, as_strided(rows, shape, strides), result)
        target = data_view(y, True, 1, geo.out)[tile.n0 : tile.n1, 0, :, tile.h0 : tile.h1]
        parts = result.reshape(height, geo.filters, n, *geo.out[1:])
        yield _copy(target, parts.transpose(2, 1, 0, *range(3, parts.ndim)))


def _row_windows(source: Array, geo: Geometry) -> Array:
    """View padded data as windows over all but the first spatial axis, for a single group.

    The axes are (image, channel, row, *kernel[1:], *out[1:]).
    """
    space = source.strides[4:]
    inner = tuple(s * d for s, d in zip(space, geo.dilation[1:], strict=True))
    outer = tuple(s * d for s, d in zip(space, geo.strides[1:], strict=True))
    shape = (source.shape[0], *source.shape[2:4], *geo.kernel[1:], *geo.out[1:])
    strides = (source.strides[0], *source.strides[2:4], *inner, *outer)
    return as_strided(source, shape, strides)


@dataclass(frozen=True, slots=True)
class RowFilterGrad(Tiled):
    """Filter gradient, dw = dy x transposed rows of columns: a product per kernel row and tile."""

    def fixed(self) -> dict[str, int]:
        size = self.geo.filters * self.geo.depth
        return {"acc": size, "sum": size}

    def _rows_shape(self, tile: Tile) -> Ints:
        """Return the sizes (channel, *kernel[1:], row, image, *out[1:]) for a tile."""
        geo = self.geo
        height = geo.span(tile)[0][1]
        return (geo.channels, *geo.kernel[1:], height, tile.n1 - tile.n0, *geo.out[1:])

    def tile_sizes(self, tile: Tile) -> dict[str, int]:
        dy = self.geo.filters * self.geo.columns(tile)
        return self.pad_size(tile) | {"rows": prod(self._rows_shape(tile)), "dy": dy}

    def launches(self, scratch: Scratch, a: Array, b: Array, out: Array) -> Iterator[Launch]:
        geo = self.geo
        shape = (geo.kernel[0], geo.filters, geo.channels * prod(geo.kernel[1:]))
        total, part = scratch.take("acc", shape), scratch.take("sum", shape)
        for i, tile in enumerate(self.tiles()):
            yield from self._tile(scratch, a, b, tile, part if i else total)
            if i:
                yield partial(np.add, total, part, total)
        parts = total.reshape(geo.kernel[0], geo.filters, geo.channels, *geo.kernel[1:])
        yield _copy(weight_view(out, geo)[0], np.moveaxis(parts, 0, 2))

    def _tile(
        self, scratch: Scratch, dy: Array, x: Array, tile: Tile, target: Array
    ) -> Iterator[Launch]:
        geo = self.geo
        steps, source = self.source(x, tile, scratch)
        yield from steps
        rows = scratch.take("rows", self._rows_shape(tile))
        rest = len(geo.out) - 1
        order = (1, *range(3, 3 + rest), 2, 0, *range(3 + rest, 3 + 2 * rest))
        yield _copy(rows, _row_windows(source, geo).transpose(order))
        stored = data_view(dy, True, 1, geo.out)[tile.n0 : tile.n1, 0, :, tile.h0 : tile.h1]
        stored = stored.transpose(1, 2, 0, *range(3, stored.ndim))
        left = scratch.take("dy", stored.shape)
        yield _copy(left, stored)
        length, item = geo.columns(tile), rows.itemsize
        line = (tile.n1 - tile.n0) * geo.row * item
        height = geo.span(tile)[0][1]
        shape = (geo.kernel[0], length, target.shape[2])
        strides = (geo.dilation[0] * line, item, height * line)
        right = as_strided(rows, shape, strides)
        yield partial(np.matmul, left.reshape(geo.filters, length), right, target)


# ------------------------------------------------------------------------------ selection


def _rows_fit(geo: Geometry, tiles: list[Tile]) -> bool:
    """Return whether "rows" copies less than "image" does, and its products are wide enough."""
    if not geo.first or geo.groups > 1 or geo.pointwise:
        return False
    copied = geo.channels * prod(geo.kernel[1:]) * geo.size[0] + geo.filters * geo.out[0]
    wide = (tiles[0].n1 - tiles[0].n0) * geo.row >= NARROW
    return wide and copied < geo.depth * geo.out[0]


def _forward(geo: Geometry, itemsize: int, staged: bool, flip: bool = False) -> Lowering:
    rows = RowForward(geo, itemsize, staged, flip)
    if geo.dilation[0] == 1 and _rows_fit(geo, rows.tiles()):
        return rows
    return ImageForward(geo, itemsize, staged, flip)


def _computing(query: KernelQuery) -> tuple[int, bool]:
    """Return the size of the computation type, and whether it differs from the stored type."""
    dtype = query.outputs[0].dtype
    return dtype.accumulate.itemsize, dtype.accumulate is not dtype


def _lower_conv(query: KernelQuery) -> tuple[Geometry, Lowering]:
    x, weight = query.inputs
    geo = geometry(query, x, weight, query.outputs[0])
    return geo, _forward(geo, *_computing(query))


def _lower_data_grad(query: KernelQuery) -> tuple[Geometry, Lowering]:
    """Lower a data gradient, or a transposed convolution, whose input takes the place of dy."""
    geo = geometry(query, query.outputs[0], query.inputs[1], query.inputs[0])
    if set(geo.strides) == {1}:
        return geo, _forward(geo.transposed(), *_computing(query), flip=True)
    return geo, StridedDataGrad(geo, *_computing(query))


def _lower_filter_grad(query: KernelQuery) -> tuple[Geometry, Lowering]:
    dy, x = query.inputs
    geo = geometry(query, x, query.outputs[0], dy)
    rows = RowFilterGrad(geo, *_computing(query))
    if geo.strides[0] == 1 and _rows_fit(geo, rows.tiles()):
        return geo, rows
    return geo, ImageFilterGrad(geo, *_computing(query))


Lower = Callable[[KernelQuery], tuple[Geometry, Lowering]]


def _workspace(lower: Lower) -> Callable[[KernelQuery], int]:
    def workspace(query: KernelQuery) -> int:
        geo, lowering = lower(query)
        item = query.outputs[0].dtype.accumulate.numpy
        return 0 if geo.empty else carved_bytes(*(((n,), item) for n in lowering.sizes().values()))

    return workspace


def _bind(lower: Lower) -> Callable[[BindContext], list[Launch]]:
    def bind(ctx: BindContext) -> list[Launch]:
        geo, lowering = lower(ctx.query)
        out = ctx.outputs[0]
        if geo.empty:
            return [partial(out.fill, 0)]
        item = ctx.query.outputs[0].dtype.accumulate.numpy
        scratch = Scratch(ctx.workspace, lowering.sizes(), item)
        return list(lowering.launches(scratch, ctx.inputs[0], ctx.inputs[1], out))

    return bind


def _spec(op: str, lower: Lower) -> KernelSpec:
    return kernel(op, _bind(lower), workspace=_workspace(lower))


KERNELS: tuple[KernelSpec, ...] = (
    *(_spec(f"conv{dims}d", _lower_conv) for dims in (1, 2, 3)),
    *(_spec(f"deconv{dims}d", _lower_data_grad) for dims in (1, 2, 3)),
    _spec("conv_data_grad", _lower_data_grad),
    _spec("conv_filter_grad", _lower_filter_grad),
)
