"""Functions that divide a blob along an axis, shift it, or add it up along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any

from flow_core.api.array.select import concat, slice_v2
from flow_core.api.array.shape import axis_of, check, flatten, inner, reshape, squeeze
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit, emit_one

__all__ = ["cumsum", "roll", "split", "unbind"]


def split(
    x: Blob,
    indices_or_sections: int | Sequence[int] | None = None,
    axis: int = 0,
    sizes: int | Sequence[int] | None = None,
    name: str | None = None,
) -> list[BlobDef]:
    """Divide a blob along an axis, as ``numpy.split`` does, or into parts of given sizes.

    Args:
        indices_or_sections: the number of equal parts, or the indices at which parts after the
            first one start.
        axis: the axis, negative to count from the last one.
        sizes: instead of ``indices_or_sections``: the size of each part (the last one may be
            smaller), or a list of all sizes, as in ``torch.split``.

    Returns: A list of blobs of the element type of ``x``.

    Raises:
        InferenceError: the number of parts does not divide the size of the axis, a part is empty,
            or the sizes do not add up to the size of the axis.

    >>> run(flow.split, [1, 2, 3, 4, 5], indices_or_sections=[2])
    [array([1., 2.], dtype=float32), array([3., 4., 5.], dtype=float32)]
    """
    x = checked_blob(x, "split")
    axis = axis_of("split", axis, len(x.shape))
    one = (indices_or_sections is None) != (sizes is None)
    found = f"indices_or_sections={indices_or_sections!r}, sizes={sizes!r}"
    check(one, "split", found, "one of indices_or_sections and sizes")
    total: Any = x.shape[axis]
    parts = _by_index(total, indices_or_sections) if sizes is None else _by_size(total, sizes)
    allowed = f"parts of at least 1, {total} together, the size of axis {axis}"
    check(parts and min(parts) > 0 and sum(parts) == total, "split", f"parts of {parts}", allowed)
    if len(parts) == 1:
        return [emit_one("identity", x, name=name)]
    return list(emit("split", x, axis=axis, sizes=parts, name=name))


def _by_index(total: int, given: Any) -> tuple[Any, ...]:
    """Return the sizes of equal parts, or of parts that start at given indices."""
    if isinstance(given, Integral):
        given = int(given)
        fits = given > 0 and total % given == 0
        allowed = f"a number that divides {total}, the size of the axis"
        check(fits, "split", f"{given} parts", allowed, "sizes=... makes a smaller last part")
        return (*[total // given] * given,)
    check(_are_integers(given), "split", f"{given!r:.60}", "a number, or a list of indices")
    ends = [0, *(i + total if i < 0 else i for i in given), total]
    return tuple(stop - start for start, stop in pairwise(ends))


def _by_size(total: int, given: Any) -> tuple[Any, ...]:
    if isinstance(given, Integral):
        given = int(given)
        check(given > 0, "split", f"sizes={given}", "a size of at least 1")
        whole, rest = total // given, total % given
        return (*[given] * whole, *([rest] if rest else []))
    check(_are_integers(given), "split", f"sizes={given!r:.60}", "a size, or a list of sizes")
    return tuple(given)


def _are_integers(given: object) -> bool:
    return isinstance(given, list | tuple) and all(hasattr(n, "__index__") for n in given)


def unbind(x: Blob, axis: int = 0, name: str | None = None) -> list[BlobDef]:
    """Return the slices of a blob along an axis, each without that axis.

    Args:
        axis: the axis, negative to count from the last one.

    Returns: A list of as many blobs as the axis has elements; of shape (1,) if ``x`` has one axis.

    Raises: InferenceError: the axis is out of range or of size 0.

    >>> run(flow.unbind, [[1, 2], [3, 4]], axis=1)
    [array([1., 3.], dtype=float32), array([2., 4.], dtype=float32)]
    """
    x = checked_blob(x, "unbind")
    axis = axis_of("unbind", axis, len(x.shape))
    size: Any = x.shape[axis]
    check(size > 0, "unbind", f"axis {axis} of size {size}", "at least one element")
    return [squeeze(part, [axis]) for part in split(x, size, axis, name=name)]


def roll(
    x: Blob,
    shift: int | Sequence[int],
    axis: int | Sequence[int] | None = None,
    name: str | None = None,
) -> BlobDef:
    """Shift the elements of a blob along axes; those beyond the end come in at the start.

    Args:
        shift: by how many elements, negative towards the start; a list for several axes.
        axis: the axis or axes; None shifts the elements in row-major order.

    Returns: A blob of the shape and element type of ``x``.

    Raises: InferenceError: an axis is out of range, or there are other numbers of shifts and axes.

    >>> run(flow.roll, [[1, 2, 3], [4, 5, 6]], 1, axis=1)
    array([[3., 1., 2.],
           [6., 4., 5.]], dtype=float32)
    """
    x = checked_blob(x, "roll")
    if axis is None:
        flat = _rolled(flatten(x), *_shifts(shift, [0]))
        return reshape(flat, x.shape, name)
    given: Any = [axis] if hasattr(axis, "__index__") else axis
    axes = [axis_of("roll", a, len(x.shape)) for a in given]
    return emit_one("identity", _rolled(x, *_shifts(shift, axes)), name=name)


def _shifts(shift: Any, axes: list[int]) -> tuple[list[int], list[int]]:
    """Return a shift per axis; one shift, or one axis, serves for all."""
    shifts = [shift] if hasattr(shift, "__index__") else list(shift)
    ok = all(hasattr(n, "__index__") for n in shifts) and 1 in {
        len(shifts), len(axes), len(shifts) == len(axes)
    }  # fmt: skip
    check(ok, "roll", f"shift {shift!r:.60} and axes {axes}", "an integer per axis")
    most = max(len(shifts), len(axes))
    return shifts * (most // len(shifts)), axes * (most // len(axes))


def _rolled(x: BlobDef, shifts: list[int], axes: list[int]) -> BlobDef:
    for axis in sorted(set(axes)):
        total: Any = x.shape[axis]
        moved = sum(n for n, a in zip(shifts, axes, strict=True) if a == axis)
        moved = moved % total if total > 0 else 0
        if moved:
            before = [(None, None, None)] * axis
            parts = [(-moved, None, None)], [(None, -moved, None)]
            x = concat([slice_v2(x, [*before, *part]) for part in parts], axis)
    return x


def cumsum(
    x: Blob,
    axis: int | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> BlobDef:
    """Return the sums of the elements of a blob up to each element along an axis.

    Args:
        x: a blob of numbers.
        axis: the axis, negative to count from the last one; None for all elements in row-major
            order.
        exclusive: whether an element is left out of its own sum; the first sum is then 0.
        reverse: whether to add from the end of the axis.

    Returns:
        A blob of the shape (for no ``axis``: of one axis) and element type of ``x``.  Sums of
        16-bit numbers are rounded once, from float32.

    Raises: InferenceError: the axis is out of range, or ``x`` has truth values.

    >>> run(flow.cumsum, [[1, 2, 3], [4, 5, 6]], axis=1)
    array([[ 1.,  3.,  6.],
           [ 4.,  9., 15.]], dtype=float32)
    """
    x = checked_blob(x, "cumsum")
    if axis is None:
        x, axis = flatten(x, name=inner(name, "_flatten")), 0
    where = axis_of("cumsum", axis, len(x.shape))
    attrs = {"exclusive": bool(exclusive), "reverse": bool(reverse)}
    return emit_one("cumsum", x, axis=where, **attrs, name=name)
