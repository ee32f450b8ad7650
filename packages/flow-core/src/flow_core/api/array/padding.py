"""Functions of OneFlow 0.4 that pad images, extract diagonals and repeat blobs; and `Size`.

The functions are sequences of existing ops, so that every backend has kernels for them.

Args:
    x: images.
    padding: one number for all sides, or four: left, right, top and bottom.

Returns: The padded images, of the element type of ``x``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from numbers import Integral
from typing import Any, Self

from flow_core.api.array.select import concat, pad, slice_v2
from flow_core.api.array.shape import check, inner, reshape
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit_one

__all__ = ["Size", "constant_pad2d", "diag", "expand", "replication_pad2d", "zero_pad2d"]


class Size(tuple[int, ...]):
    """A shape: a tuple of integers.

    >>> Size([2, 3]).numel(), Size((2, 3, 4))[1:]
    (6, flow.Size([3, 4]))
    """

    __slots__ = ()

    def __new__(cls, sizes: Iterable[int] = ()) -> Self:
        """Return a shape of the given sizes."""
        return super().__new__(cls, sizes)

    def numel(self) -> int:
        """Return the number of elements of a blob of this shape."""
        return prod(self)

    def index(self, value: Any, start: Any = 0, end: Any = None) -> int:
        """Return the first axis from ``start`` to ``end`` (exclusive) of a size; raise a
        `ValueError` if there is none.
        """
        return super().index(value, start, len(self) if end is None else end)

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        return Size(part) if isinstance(key, slice) else part

    def __repr__(self) -> str:
        return f"flow.Size({list(self)})"


def _sides(function: str, x: Blob, padding: Any) -> tuple[int, int, int, int]:
    """Return the numbers of columns to add at the left and right, and of rows at top and bottom."""
    given = [padding] * 4 if isinstance(padding, Integral) else list(padding)
    fits = len(given) == len(x.shape) == 4
    fits = fits and all(isinstance(n, Integral) and int(n) >= 0 for n in given)
    allowed = "a number of at least 0, or four for left, right, top and bottom of (N, C, H, W)"
    check(fits, function, f"padding={padding!r} for shape {x.shape}", allowed)
    left, right, top, bottom = map(int, given)
    return left, right, top, bottom


def constant_pad2d(
    x: Blob, padding: int | Sequence[int], constant_value: int | float = 0, name: str | None = None
) -> BlobDef:
    """Pad images (N, C, H, W) with a number.

    Args:
        constant_value: the number; truncated for integer types.

    >>> run(flow.constant_pad2d, np.ones((1, 1, 1, 2)), (1, 0, 0, 1), 5)[0, 0]
    array([[5., 1., 1.],
           [5., 5., 5.]], dtype=float32)
    """
    left, right, top, bottom = _sides("constant_pad2d", x, padding)
    return pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)], constant_value, name)


def zero_pad2d(x: Blob, padding: int | Sequence[int], name: str | None = None) -> BlobDef:
    """Pad images (N, C, H, W) with zeros; see `constant_pad2d`.

    >>> run(flow.zero_pad2d, np.ones((1, 1, 1, 2)), (1, 0, 0, 1))[0, 0]
    array([[0., 1., 1.],
           [0., 0., 0.]], dtype=float32)
    """
    return constant_pad2d(x, padding, 0, name)


def replication_pad2d(x: Blob, padding: int | Sequence[int], name: str | None = None) -> BlobDef:
    """Pad images (N, C, H, W) with copies of the nearest pixel.

    Args:
        x: images with at least one pixel.
        name: name of the last op.

    >>> run(flow.replication_pad2d, [[[[1, 2]]]], (1, 0, 0, 1))[0, 0]
    array([[1., 1., 2.],
           [1., 1., 2.]], dtype=float32)
    """
    left, right, top, bottom = _sides("replication_pad2d", x, padding)
    check(min(x.shape[2:]) > 0, "replication_pad2d", f"images {x.shape}", "at least one pixel")
    return _repeat_ends(_repeat_ends(x, 3, left, right, None), 2, top, bottom, name)


def _repeat_ends(x: Blob, axis: int, before: int, after: int, name: str | None) -> BlobDef:
    """Repeat the first and the last element along one axis."""

    def repeated(at: int, count: int) -> list[BlobDef]:
        if not count:
            return []
        end = slice_v2(x, [(None, None, None)] * axis + [(at, at + 1, 1)])
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        return [emit_one("broadcast_to", end, shape=shape)]

    parts = [*repeated(0, before), x, *repeated(x.shape[axis] - 1, after)]
    return concat(parts, axis, name=name)


def expand(x: Blob, expand_size: Sequence[int], name: str | None = None) -> BlobDef:
    """Repeat a blob along axes of size 1 and along new leading axes.

    Args:
        expand_size: the new shape; -1 keeps the size of an axis of ``x``.

    Returns: A blob of the new shape, and of the element type of ``x``.

    Raises:
        InferenceError: ``expand_size`` is shorter than the shape, changes an axis whose size is
            not 1, or has -1 for a new axis.

    >>> run(flow.expand, [[1], [2]], (-1, 3))
    array([[1., 1., 1.],
           [2., 2., 2.]], dtype=float32)
    """
    asked = tuple(expand_size)
    own = (-1,) * (len(asked) - len(x.shape)) + x.shape
    sizes = tuple(size if n == -1 else n for n, size in zip(asked, own, strict=False))
    fits = len(asked) == len(own) and all(
        n >= 0 and size in (-1, 1, n) for n, size in zip(sizes, own, strict=True)
    )
    allowed = "a size for each axis: its own or -1, or any for axes of size 1 and new leading axes"
    check(fits, "expand", f"expand_size={asked} for shape {x.shape}", allowed)
    return emit_one("broadcast_to", x, shape=sizes, name=name)


def diag(input: Blob, diagonal: int = 0, name: str | None = None) -> BlobDef:
    """Return a matrix with a vector on a diagonal, or a diagonal of a matrix.

    Args:
        input: a vector of n elements, for a matrix of n + abs(diagonal) rows and columns of zeros
            otherwise; or a matrix, for a vector.
        diagonal: 0 for the main diagonal, positive above it, negative below it.
        name: name of the last op.

    Returns: A matrix or a vector of the element type of the input.

    Raises: InferenceError: the input has another number of axes, or the diagonal is outside of it.

    >>> run(flow.diag, [1, 2])
    array([[1., 0.],
           [0., 2.]], dtype=float32)
    """
    check(len(input.shape) in (1, 2), "diag", f"shape {input.shape}", "a vector or a matrix")
    row, column = max(-diagonal, 0), max(diagonal, 0)
    if len(input.shape) == 1:
        return _matrix_with_diagonal(input, row, column, name)
    rows, columns = input.shape
    length = min(rows - row, columns - column)
    allowed = f"{1 - rows} to {columns - 1}"
    check(length > 0, "diag", f"diagonal={diagonal} of shape {input.shape}", allowed)
    start, step = row * columns + column, columns + 1
    flat = reshape(input, (rows * columns,), inner(name, "_flat"))
    return slice_v2(flat, [(start, start + (length - 1) * step + 1, step)], name)


def _matrix_with_diagonal(x: Blob, row: int, column: int, name: str | None) -> BlobDef:
    """Return a matrix of zeros except for the elements (row + i, column + i)."""
    size = x.shape[0] + row + column
    spread = pad(reshape(x, (-1, 1)), [(0, 0), (0, size)])
    start, total = row * size + column, x.shape[0] * (size + 1)
    flat = pad(reshape(spread, (total,)), [(start, max(size * size - start - total, 0))])
    square = slice_v2(flat, [(0, size * size, 1)])
    return reshape(square, (size, size), name)
