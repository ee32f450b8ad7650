"""Feeds of which a process holds a part: some rows, or a function that returns a range of rows.

A plan slices the fed array to copy in the regions that the devices of the process need.  The
objects here return such slices as an array does, and refuse rows that the process does not have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from flow_core.annotations import PlaceholderSpec
from flow_core.base.arrays import Array, NumpyType
from flow_core.base.errors import FeedError
from flow_core.base.shapes import Shape

Convert = Callable[[object], Array]
"""Converts a user's value to an array of the placeholder's element type, or raises `FeedError`."""


@dataclass(frozen=True, slots=True)
class LocalRows:
    """Rows of a batch that a process feeds; see `flow.distribute.rows`."""

    array: object
    at: int | tuple[range, ...]  # indices in the whole batch, or the first of consecutive ones


@dataclass(frozen=True, slots=True)
class RowsFunction:
    """A function that returns rows of a batch; see `flow.distribute.rows_from`."""

    function: Callable[[int, int], object]  # of the first index and the index after the last


class PartialFeed(ABC):
    """A feed that stands for a whole array, of which every process feeds a part.

    Attributes:
        shape: shape of the whole array.
        dtype: element type of the array.
        nbytes: always 0, because the parts of the processes differ and must not be compared.
        what: description of the feed in errors.
    """

    nbytes = 0

    def __init__(self, shape: Shape, dtype: NumpyType, what: str) -> None:
        self.shape, self.dtype, self.what = shape, dtype, what

    def tobytes(self) -> bytes:
        """Return no bytes: processes do not compare the contents of partial feeds."""
        return b""

    def __getitem__(self, window: Any) -> Array:
        box = window if isinstance(window, tuple) else (slice(0, self.shape[0]),)
        found: Array = self._rows(box[0].start, box[0].stop)[(slice(None), *box[1:])]
        return found

    @abstractmethod
    def _rows(self, first: int, stop: int) -> Array:
        """Return a range of rows.  Raises `FeedError`."""

    def staging(self, windows: Sequence[Any]) -> PartialFeed:
        """Return a feed of the same shape with memory for the rows of some windows."""
        whole = (slice(0, self.shape[0]),)
        rows = [(window if isinstance(window, tuple) else whole)[0] for window in windows]
        ranges = merged(range(row.start, row.stop) for row in rows)
        memory = np.empty((sum(map(len, ranges)), *self.shape[1:]), self.dtype)
        return _Rows(self.shape, self.what, memory, ranges)

    def _fail(self, found: str, allowed: str, hint: str | None = None) -> NoReturn:
        raise FeedError.at_caller(self.what, found=found, allowed=allowed, hint=hint)


def merged(ranges: Iterable[range]) -> tuple[range, ...]:
    """Merge ranges that touch or overlap.

    >>> merged([range(4, 8), range(0, 2), range(2, 5), range(9, 9)])
    (range(0, 8),)
    """
    found: list[range] = []
    for part in sorted((part for part in ranges if part), key=lambda part: part.start):
        if found and part.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, part.stop))
        else:
            found.append(part)
    return tuple(found)


class _Rows(PartialFeed):
    """A feed with rows in memory: the rows of several ranges, one range after the other."""

    def __init__(self, shape: Shape, what: str, array: Array, ranges: tuple[range, ...]) -> None:
        super().__init__(shape, array.dtype, what)
        fits = array.shape == (sum(map(len, ranges)), *shape[1:])
        if not fits or any(part.start < 0 or part.stop > shape[0] for part in ranges):
            self._fail(
                f"shape {array.shape} for rows {_text(ranges)}", f"rows of the shape {shape}"
            )
        self._array = array
        self._ranges: list[tuple[range, int]] = []  # by index, each with its place in the array
        start = 0
        for part in ranges:
            if self._ranges and part.start == self._ranges[-1][0].stop:
                before, at = self._ranges.pop()
                self._ranges.append((range(before.start, part.stop), at))
            else:
                self._ranges.append((part, start))
            start += len(part)
        self._ranges.sort(key=lambda place: place[0].start)

    def _rows(self, first: int, stop: int) -> Array:
        found, at = [], first
        for part, start in self._ranges:
            if part.start <= at and (at < part.stop or at == stop <= part.stop):
                end = min(stop, part.stop)
                found.append(self._array[at - part.start + start : end - part.start + start])
                at = end
                if at == stop:
                    return found[0] if len(found) == 1 else np.concatenate(found)
        self._fail(
            f"rows {_text([part for part, _ in self._ranges])} fed by this process, of which a "
            f"device needs {_text([range(first, stop)])}",
            "all rows that the devices of this process need",
            "call flow.distribute.local_rows to get these rows if the batch is split over the "
            "devices; feed the whole array if a device needs all of it",
        )


def _text(ranges: Sequence[range]) -> str:
    return ", ".join(f"{part.start} to {part.stop - 1}" for part in ranges if part) or "none"


class _Asked(PartialFeed):
    """A feed that calls a function for the rows."""

    def __init__(
        self, spec: PlaceholderSpec, what: str, function: Callable[[int, int], object], to: Convert
    ) -> None:
        super().__init__(spec.shape, spec.dtype.numpy, what)
        self._function, self._convert = function, to

    def _rows(self, first: int, stop: int) -> Array:
        found = self._convert(self._function(first, stop))
        wanted = (stop - first, *self.shape[1:])
        if found.shape != wanted:
            rows = _text([range(first, stop)])
            self._fail(f"shape {found.shape} for rows {rows}", f"shape {wanted}")
        return found


def partial_feed(
    value: LocalRows | RowsFunction, spec: PlaceholderSpec, what: str, convert: Convert
) -> PartialFeed:
    """Return the feed of a placeholder from a user's value.

    Args:
        what: description of the feed in errors.

    Raises:
        FeedError: the rows do not fit the placeholder.
    """
    if not spec.shape:
        raise FeedError.at_caller(what, found="rows", allowed=f"{spec}, which has no axes")
    if isinstance(value, RowsFunction):
        return _Asked(spec, what, value.function, convert)
    array, at = convert(value.array), value.at
    ranges = (range(at, at + len(np.atleast_1d(array))),) if isinstance(at, int) else at
    return _Rows(spec.shape, what, array, ranges)
