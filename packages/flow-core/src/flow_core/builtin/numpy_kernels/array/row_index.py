"""Read and add rows of a table at indices that are known at run time only.

All ops of `flow_core.ops.array.index` and `flow_core.ops.array.scatter` reduce to a table of rows
and one row number per index.  The row numbers are computed into the workspace.  Out-of-range
numbers are rare, so the common path only checks whether there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.shapes import Shape, contiguous_strides
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes
from flow_core.device import Launch

WIDE_ROW = 128
"""Minimum row width for which one call per row is faster than one per chunk (measured)."""
CHUNK = 16384
MAX_VIEWS = 65536
"""Maximum number of table rows for which views are created at bind time."""

Part = tuple[Shape, Any]


@dataclass(frozen=True, slots=True)
class Addressing:
    """Mapping from indices to rows of a table."""

    rows: int
    width: int
    shape: Shape  # shape of the row numbers
    view: Shape  # shape of the index tensor; the last axis has the components of an index
    limits: tuple[int, ...]  # the size, in rows, of the table axis that a component indexes
    strides: tuple[int, ...] = (1,)  # the stride of that axis
    offsets: tuple[Any, ...] = ()  # arrays that are added to the row numbers, with broadcasting
    # The index, per component, that the table's first row has in the logical tensor.
    first: tuple[int, ...] = (0,)

    @property
    def count(self) -> int:
        """Number of row numbers."""
        return prod(self.shape)


def _steps(count: int, step: int, *shape: int) -> tuple[Array, ...]:
    """Return ``count`` multiples of ``step`` as an array of a shape; no array if all are 0."""
    return (np.arange(count, dtype=np.int64).reshape(shape) * step,) if count > 1 else ()


def along_axis(table: Shape, axis: int, count: int, first: int = 0) -> Addressing:
    """Address the same ``count`` indices along an axis for each position on the axes before it."""
    before, size, after = prod(table[:axis]), table[axis], prod(table[axis + 1 :])
    offsets = _steps(before, size, before, 1)
    shape = (before, count)
    return Addressing(
        before * size, after, shape, (1, count, 1), (size,), offsets=offsets, first=(first,)
    )


def per_batch(table: Shape, index: Shape, first: int = 0) -> Addressing:
    """Address the indices on the last axis of ``index``, which differ per leading position."""
    axis = len(index) - 1
    before, size, after = prod(table[:axis]), table[axis], prod(table[axis + 1 :])
    shape = (before, index[-1])
    offsets = _steps(before, size, before, 1)
    return Addressing(
        before * size, after, shape, (*shape, 1), (size,), offsets=offsets, first=(first,)
    )


def per_element(table: Shape, axis: int, index: Shape, first: int = 0) -> Addressing:
    """Address one table element per element of ``index``, which is its position along an axis."""
    before, size, after = prod(table[:axis]), table[axis], prod(table[axis + 1 :])
    shape = (before, index[axis], after)
    offsets = (*_steps(before, size * after, before, 1, 1), *_steps(after, 1, 1, 1, after))
    rows = before * size * after
    return Addressing(rows, 1, shape, (*shape, 1), (size,), (after,), offsets, (first,))


def at_positions(table: Shape, index: Shape, first: Shape = ()) -> Addressing:
    """Address positions on the leading table axes; the last axis of ``index`` has coordinates."""
    *batch, depth = index
    count, limits = prod(batch), table[:depth]
    return Addressing(
        prod(limits), prod(table[depth:]), (count,), (count, depth), limits,
        contiguous_strides(limits), first=first[:depth] or (0,) * depth,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowNumbers:
    """Row numbers in the workspace."""

    rows: Any  # int64 row number of each index; unspecified for out-of-range indices
    bad: Any  # mask of out-of-range indices
    any_bad: Any  # array with one bool, whether any index is out of range
    launches: tuple[Launch, ...]  # launches that compute ``rows``, ``bad`` and ``any_bad``


def _parts(addressing: Addressing) -> tuple[Part, ...]:
    count = addressing.count
    once: tuple[Part, ...] = (((count,), np.int64), ((count,), np.bool_))
    twice = once if len(addressing.limits) > 1 else ()
    return (((1,), np.bool_), *once, *twice)


def numbers_bytes(addressing: Addressing) -> int:
    """Return the workspace size in bytes that `row_numbers` needs."""
    return carved_bytes(*_parts(addressing))


def row_numbers(addressing: Addressing, index: Array, workspace: Array) -> RowNumbers:
    """Return the row numbers of an index tensor, and the launches that compute them."""
    flag, rows, bad, *spare = carve(workspace, *_parts(addressing))
    shaped = rows.reshape(addressing.shape)
    launches: list[Launch] = [
        *_component(addressing, 0, index, shaped, bad),
        *_further_components(addressing, index, shaped, bad, spare),
        *(call(np.add, shaped, offset, out=shaped) for offset in addressing.offsets),
        partial(np.logical_or.reduce, bad, out=flag.reshape(())),
    ]
    return RowNumbers(rows, bad, flag, tuple(launches))


def _component(
    addressing: Addressing, k: int, index: Array, rows: Array, bad: Array
) -> Iterator[Launch]:
    """Write one index component times its stride to ``rows``, and out-of-range marks to ``bad``.

    Indices are compared as unsigned integers, so that negative ones exceed the limit as well.
    """
    limit = np.array(addressing.limits[k], np.uint64)
    unsigned = rows.reshape(-1).view(np.uint64)
    yield partial(np.copyto, rows, index.reshape(addressing.view)[..., k])
    if addressing.first[k]:
        yield call(np.subtract, rows, np.array(addressing.first[k], np.int64), out=rows)
    yield call(np.greater_equal, unsigned, limit, out=bad)
    if addressing.strides[k] != 1:
        stride = np.array(addressing.strides[k], np.int64)
        yield call(np.multiply, rows, stride, out=rows)


def _further_components(
    addressing: Addressing, index: Array, rows: Array, bad: Array, spare: Sequence[Array]
) -> Iterator[Launch]:
    for k in range(1, len(addressing.limits)):
        more, bad_too = spare[0].reshape(addressing.shape), spare[1]
        yield from _component(addressing, k, index, more, bad_too)
        yield call(np.add, rows, more, out=rows)
        yield call(np.logical_or, bad, bad_too, out=bad)


def either(flag: Array, rare: Launch, usual: Sequence[Launch]) -> None:
    """Run ``rare`` if the flag is set, otherwise all of ``usual``."""
    if flag[0]:
        rare()
        return
    for launch in usual:
        launch()


def _nothing() -> None:
    """Do nothing; the launch for the case that no index is out of range."""


def _clear_rows(out: Array, numbers: RowNumbers) -> None:
    out[numbers.bad] = 0


def take_rows(
    table: Array, addressing: Addressing, numbers: RowNumbers, out: Array
) -> tuple[Launch, ...]:
    """Return launches that read the numbered rows; out-of-range numbers read zeros."""
    target = out.reshape(addressing.count, addressing.width)
    if addressing.rows == 0 or target.size == 0:
        return (partial(target.fill, 0),)
    source = table.reshape(addressing.rows, addressing.width)
    clear = partial(_clear_rows, target, numbers)
    return (
        *numbers.launches,
        partial(np.take, source, numbers.rows, 0, target, "clip"),
        partial(either, numbers.any_bad, clear, (_nothing,)),
    )


def _write_valid(
    write: Callable[..., object], target: Array, source: Array, numbers: RowNumbers
) -> None:
    valid = ~numbers.bad
    write(target, numbers.rows[valid], source[valid])


def _set(target: Array, rows: Array, source: Array) -> None:
    target[rows] = source


def put_rows(
    source: Array, addressing: Addressing, numbers: RowNumbers, table: Array
) -> tuple[Launch, ...]:
    """Return launches that overwrite the numbered rows; out-of-range numbers are skipped."""
    target = table.reshape(addressing.rows, addressing.width)
    rows = source.reshape(addressing.count, addressing.width)
    rare = partial(_write_valid, _set, target, rows, numbers)
    usual = partial(_set, target, numbers.rows, rows)
    return (*numbers.launches, partial(either, numbers.any_bad, rare, (usual,)))


def _chunk_parts(addressing: Addressing) -> tuple[Part, ...]:
    width = addressing.width
    if width <= 1 or width >= WIDE_ROW:
        return ()
    rows = min(addressing.count, max(1, CHUNK // width))
    return (((rows,), np.int64), ((rows, width), np.int64))


def adding_bytes(addressing: Addressing) -> int:
    """Return the workspace size in bytes that `row_numbers` and `add_rows` need together."""
    return numbers_bytes(addressing) + carved_bytes(*_chunk_parts(addressing))


def add_rows(
    source: Array, addressing: Addressing, numbers: RowNumbers, table: Array, workspace: Array
) -> tuple[Launch, ...]:
    """Return launches that add ``source`` to the numbered rows; skip out-of-range numbers."""
    target = table.reshape(addressing.rows, addressing.width)
    rows = source.reshape(addressing.count, addressing.width)
    if target.size == 0 or rows.size == 0:
        return ()
    rare = partial(_write_valid, np.add.at, target, rows, numbers)
    usual = _adding(rows, numbers.rows, target, addressing, workspace)
    return (*numbers.launches, partial(either, numbers.any_bad, rare, usual))


def _adding(
    source: Any, rows: Any, target: Any, addressing: Addressing, workspace: Any
) -> tuple[Launch, ...]:
    if addressing.width == 1:
        return (partial(np.add.at, target.reshape(-1), rows, source.reshape(-1)),)
    if addressing.width >= WIDE_ROW:
        return (partial(_add_each, memoryview(rows), _views(source), _views(target)),)
    scratch = carve(workspace[numbers_bytes(addressing) :], *_chunk_parts(addressing))
    return tuple(_adding_by_chunks(source, rows, target, *scratch))


def _views(table: Array) -> Any:
    return list(table) if len(table) <= MAX_VIEWS else table


def _add_each(rows: Any, source: Any, target: Any) -> None:
    add = np.add
    for row, values in zip(rows, source, strict=True):
        into = target[row]
        add(into, values, into)


def _adding_by_chunks(
    source: Array, rows: Array, target: Array, first: Array, places: Array
) -> Iterator[Launch]:
    """Yield, for each chunk of rows, launches that compute flat positions and add there."""
    width, flat = source.shape[1], target.reshape(-1)
    lanes, stride = np.arange(width), np.array(width, np.int64)
    for start in range(0, len(source), len(places)):
        part = source[start : start + len(places)]
        starts, at = first[: len(part)], places[: len(part)]
        yield call(np.multiply, rows[start : start + len(part)], stride, out=starts)
        yield call(np.add, starts[:, None], lanes, out=at)
        yield partial(np.add.at, flat, at.reshape(-1), part.reshape(-1))
