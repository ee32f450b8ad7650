"""Parts of blobs by numpy's index notation: ``x[:, 0:3]``, ``x[..., -1]``, ``x[rows]``.

Integers, slices, None and ``...`` become at most one op of each of ``slice``, ``squeeze`` and
``expand_dims``; an array of integers becomes ``gather``.  As in numpy, slices are cut off at the
ends of an axis.  Bounds that are left out, and negative ones, count from the end of the axis
whatever its size is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flow_core.base.errors import JobError, NoValueError
from flow_core.frontend.trace.operators import Operators
from flow_core.ops.array.select import LAST
from flow_core.plugins.emission import emit

if TYPE_CHECKING:
    from flow_core.frontend.trace.operators import Blob

Row = tuple[int, int, int]
"""The start, stop and step of the op ``slice``, where `LAST` stands for the end of an axis."""

WHOLE: Row = (0, LAST, 1)


def part_of(blob: Blob, key: Any) -> Any:
    """Return ``blob[key]``.

    Raises:
        JobError: the key has too many parts, or is out of range, or selects nothing.
        NoValueError: the key holds truth values of a blob, so that the shape would depend on data.
    """
    rows, dropped, added = list[Row](), list[int](), list[int]()
    arrays, place = list[tuple[int, Any]](), 0  # place: the axis of the result
    for part in _per_axis(blob, key if isinstance(key, tuple) else (key,)):
        axis = len(rows)
        if part is None:
            added.append(place)
        elif isinstance(part, slice):
            rows.append(_row(blob, axis, part))
        elif isinstance(part, int):
            rows.append(_one(blob, axis, part))
            dropped.append(axis)
            continue
        else:
            rows.append(WHOLE)
            part = _positions(blob, axis, part)
            arrays.append((axis, part))
            place += len(part.shape) - 1
        place += 1
    if arrays and len(arrays) + len(dropped) > 1:
        raise _refusal(blob, key, "one array of integers, beside slices", "index in two steps")
    found: Any = blob
    if any(row != WHOLE for row in rows):
        start, stop, step = zip(*rows, strict=True)
        found = emit("slice", found, start=start, stop=stop, step=step)
    for axis, indices in arrays:
        found = emit("gather", found, _checked(blob, axis, indices), axis=axis)
    if dropped:
        found = emit("squeeze", found, axes=tuple(dropped))
    for axis in added:
        found = emit("expand_dims", found, axis=axis)
    return emit("identity", blob) if found is blob else found


def _per_axis(blob: Blob, key: tuple[Any, ...]) -> list[Any]:
    """Return the key with a part per axis of the blob, and None per new axis."""
    parts = [_part(blob, part) for part in key]
    rank, ellipses = len(blob.shape), [i for i, part in enumerate(parts) if part is ...]
    used = sum(part is not None for part in parts) - len(ellipses)
    if used > rank:
        raise _refusal(blob, key, f"at most {rank} numbers, slices and arrays")
    if len(ellipses) > 1:
        raise _refusal(blob, key, "one ...", "write the other axes as :")
    at = ellipses[0] if ellipses else len(parts)
    return [*parts[:at], *[slice(None)] * (rank - used), *parts[at + 1 :]]


def _part(blob: Blob, part: Any) -> Any:
    """Return a part of a key as None, ``...``, a slice, an int, an array or a blob of integers."""
    if part is None or part is ...:
        return part
    if isinstance(part, slice):
        bounds = (part.start, part.stop, part.step)
        return slice(*(None if bound is None else _number(blob, bound) for bound in bounds))
    if isinstance(part, Operators):
        return _blob_part(blob, part)
    if isinstance(part, list | np.ndarray) and np.ndim(part):
        array = np.asarray(part)
        if array.dtype.kind in "iu" or (array.dtype == bool and array.ndim == 1):
            return array
        raise _refusal(blob, part, "integers, or one truth value per element of an axis")
    return _number(blob, part)


def _positions(blob: Blob, axis: int, part: Any) -> Any:
    """Return an array of truth values as the positions of True; other parts as they are."""
    if not isinstance(part, np.ndarray) or part.dtype != bool:
        return part
    size = _size(blob, axis)
    if len(part) != size:
        allowed = f"{size} truth values, one per element of axis {axis}"
        raise _refusal(blob, part, allowed, found=f"{len(part)} truth values")
    return np.flatnonzero(part)


def _blob_part(blob: Blob, part: Any) -> Any:
    if part.dtype.name in ("int8", "bool"):
        raise NoValueError.at_caller(
            f"indexing {blob!r} with truth values",
            found="a placeholder, which has no data while a job is defined",
            allowed="a result whose shape is known",
            hint="flow.where(condition, blob, 0) keeps the shape; flow.argwhere gives positions",
        )
    return part


def _number(blob: Blob, number: Any) -> int:
    """Return an integer of a key."""
    if isinstance(number, bool | np.bool_) or not hasattr(type(number), "__index__"):
        found = f"{type(number).__name__} {number!r:.60}"
        raise _refusal(blob, number, "integers, slices, None, ..., arrays of integers", found=found)
    return int(number.__index__())


def _row(blob: Blob, axis: int, part: slice) -> Row:
    """Return the attributes of a slice, cut off at the ends of the axis."""
    step = 1 if part.step is None else part.step
    first, last = (0, LAST) if step > 0 else (LAST, -LAST)
    if (part.start, part.stop, step) == (None, None, 1):
        return WHOLE
    size = _size(blob, axis)
    if step == 0 or not range(*part.indices(size)):
        raise _refusal(blob, part, f"a slice with elements of axis {axis} of size {size}")
    start, stop = part.start, part.stop
    start = first if start is None or not -size <= start < size else start
    stop = last if stop is None or not -size <= stop < size else stop
    return start, stop, step


def _one(blob: Blob, axis: int, index: int) -> Row:
    size = _size(blob, axis)
    if not -size <= index < size:
        allowed = f"-{size} <= index < {size}, the size of axis {axis}"
        raise _refusal(blob, index, allowed)
    return index, LAST if index == -1 else index + 1, 1


def _size(blob: Blob, axis: int) -> int:
    size: Any = blob.shape[axis]
    if not isinstance(size, int):
        allowed = "axes whose size is equal on all devices; other axes whole"
        raise _refusal(blob, axis, allowed, found=f"axis {axis} of size {size}")
    return size


def _checked(blob: Blob, axis: int, indices: Any) -> Any:
    """Return indices as a blob, with those known now counted from the start of the axis."""
    if not isinstance(indices, np.ndarray):
        return indices
    size = _size(blob, axis)
    wrong = indices[(indices < -size) | (indices >= size)]
    if wrong.size or not indices.size:
        found = f"index {wrong[0]}" if wrong.size else "no index"
        allowed = f"-{size} <= index < {size}, the size of axis {axis}"
        raise _refusal(blob, indices, allowed, found=found)
    data = tuple((indices % size).reshape(-1).tolist())
    return emit("literal", shape=indices.shape, dtype="int64", data=data)


def _refusal(
    blob: Blob, key: Any, allowed: str, hint: str | None = None, found: str | None = None
) -> JobError:
    return JobError.at_caller(
        f"indexing {blob!r}", found=found or f"{key!r:.80}", allowed=allowed, hint=hint
    )
