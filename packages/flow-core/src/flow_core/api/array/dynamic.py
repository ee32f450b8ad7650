"""Functions whose results have a number of valid rows that is known only at run time."""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.api.session.views import cast_to_current_logical_view
from flow_core.base.dtypes import DType, as_dtype, int32
from flow_core.base.errors import JobError
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.frontend.trace.repeat_acc import PeriodBlob, in_period, periods_of
from flow_core.frontend.trace.valid_rows import RESIZE, Rows

__all__ = [
    "argwhere", "dynamic_binary_concat", "dynamic_binary_split", "nonzero", "sync_dynamic_resize",
]  # fmt: skip


def argwhere(condition: Blob, dtype: DType | None = None, name: str | None = None) -> BlobDef:
    """Return the positions of all nonzero elements, one per row, in order.

    Args:
        condition: a blob of rank 1 or more, of any numeric type.
        dtype: element type of the positions, int32 (the default) or int64.

    Returns: A blob of shape (elements of ``condition``, rank of ``condition``) with one valid row
        for each position; `sync_dynamic_resize` describes valid rows.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((4,))) -> tp.ListNumpy:
    ...     return flow.argwhere(x)
    >>> job([0, 3, 0, 5])
    [array([[1],
           [3]], dtype=int32)]
    """
    wanted = int32 if dtype is None else as_dtype(dtype)
    places, number = emit("argwhere", condition, dtype=wanted.name, name=name)
    return sync_dynamic_resize(places, number)


def nonzero(a: Blob, name: str | None = None) -> BlobDef:
    """Return the transpose of `argwhere`: a row per axis and a column per position, as in numpy.

    Args:
        a: a blob.

    Returns: An int32 blob of shape (axes, positions); the number of positions is known at run time.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((4,))) -> tp.ListNumpy:
    ...     return flow.nonzero(x)
    >>> job([0, 3, 0, 5])
    [array([[1, 3]], dtype=int32)]
    """
    return emit_one("transpose", argwhere(a, name=name), perm=(1, 0))


def sync_dynamic_resize(inputs: Blob, size: Blob, name: str | None = None) -> BlobDef:
    """Return the first ``size`` rows of a blob, where ``size`` is known only at run time.

    `BlobDef.shape` remains the maximum shape.  The first ``size`` rows are the valid ones.
    Row-wise ops propagate the size, sums over rows add only the valid rows,
    `tensor_scatter_nd_update` writes only the valid rows, and fetched results contain only the
    valid rows.  Any other op on the result is an error;
    `flow.cast_to_static_shape` returns all rows, with zeros after the valid ones.

    Args:
        inputs: a blob of rank 1 or more.
        size: int32 or int64 of shape (1,), from 0 to the number of rows of ``inputs``.

    Returns: A blob of ``size`` rows.

    >>> @flow.global_function()
    ... def job(
    ...     x: tp.Numpy.Placeholder((4,)), n: tp.Numpy.Placeholder((1,), flow.int64)
    ... ) -> tp.ListNumpy:
    ...     return flow.sync_dynamic_resize(x, n)
    >>> job([1, 2, 3, 4], [2])
    [array([1., 2.], dtype=float32)]
    """
    number = periods_of((inputs, size))
    if number is not None:
        each = [(in_period(inputs, i), in_period(size, i)) for i in range(number)]
        return PeriodBlob([sync_dynamic_resize(x, n, name) for x, n in each])
    size = cast_to_current_logical_view(size)
    blob: BlobDef = emit(RESIZE, inputs, size, axis=0, name=name)
    return blob.with_rows(Rows(size, 0))


def dynamic_binary_split(
    x: Blob, base_shift: int = 2, out_num: int = 2, name: str | None = None
) -> list[BlobDef]:
    """Write a blob of varying size as bytes, into parts whose sizes are powers of two.

    Each part is full or empty, like a digit of a binary number, except the last one; devices thus
    receive about as many bytes as ``x`` has in this step.  `dynamic_binary_concat` restores ``x``.

    Args:
        x: a blob of rank 1 or more whose size may change from step to step: fed as a list
            (``tp.ListNumpy``), or with valid rows (`sync_dynamic_resize`).
        base_shift: logarithm of the size in bytes of the last two parts, to the base 2.
        out_num: number of parts, from 2; each one before the last two has twice the next one's
            size.

    Returns:
        ``out_num`` blobs of bytes (`flow.char`), from large to small, each with the valid rows
        that hold data: together the size of each axis as int64, then the elements.

    Raises:
        JobError: ``x`` has a fixed size.
        ShapeError: the parts are too small for the header and all rows of ``x``.

    >>> @flow.global_function()
    ... def job(x: tp.ListNumpy.Placeholder((4,), dtype=flow.int8)) -> tp.Bundle[tp.ListNumpy]:
    ...     return flow.experimental.dynamic_binary_split(x, base_shift=3, out_num=2)
    >>> for (part,) in job([[5, 6]]):
    ...     print(part)
    [2 0 0 0 0 0 0 0]
    [5 6]
    """
    x = checked_blob(x)
    if isinstance(x, PeriodBlob):
        each = [dynamic_binary_split(one, base_shift, out_num, name) for one in x.periods]
        return [PeriodBlob(parts) for parts in zip(*each, strict=True)]
    rows = _rows_of("dynamic_binary_split", x)
    attrs = {"base_shift": base_shift, "out_num": out_num, "axis": rows.axis if rows else 0}
    whole = (x,) if rows is None else (emit_one("cast_to_static_shape", x), rows.count)
    made = emit("dynamic_binary_split", *whole, name=name, **attrs)
    return [sync_dynamic_resize(made[i], made[out_num + i]) for i in range(out_num)]


def dynamic_binary_concat(
    input_blob_list: Sequence[Blob],
    source_blob: Blob,
    source_sbp: str = "S:0",
    name: str | None = None,
) -> BlobDef:
    """Restore a blob from the parts that `dynamic_binary_split` returned.

    Args:
        input_blob_list: the parts, in order.
        source_blob: the blob that was split; the result has its element type and largest shape.
        source_sbp: ``"S:axis"``, ``"B"`` or ``"P"``, OneFlow's statement of the layout; without
            effect, since the compiler knows the layout.

    Returns: A blob of the same size as ``source_blob``.

    Raises: DataError: in a step, the parts are not those of a blob of this shape.

    >>> @flow.global_function()
    ... def job(x: tp.ListNumpy.Placeholder((8,))) -> tp.ListNumpy:
    ...     parts = flow.experimental.dynamic_binary_split(x, base_shift=4, out_num=3)
    ...     return flow.experimental.dynamic_binary_concat(parts, x)
    >>> job([[1, 2, 3]])
    [array([1., 2., 3.], dtype=float32)]
    """
    source, parts = checked_blob(source_blob), [checked_blob(x) for x in input_blob_list]
    if source_sbp[:1] not in ("S", "B", "P"):
        raise JobError.at_caller(
            "use of dynamic_binary_concat",
            found=f"source_sbp={source_sbp!r}",
            allowed='"S:axis", "B" or "P"',
        )
    number = periods_of((source, *parts))
    if number is not None:
        each = [([in_period(x, i) for x in parts], in_period(source, i)) for i in range(number)]
        return PeriodBlob([dynamic_binary_concat(*one, source_sbp, name) for one in each])
    rows = _rows_of("dynamic_binary_concat", source)
    axis = rows.axis if rows else None
    counts = [
        emit_one("constant", shape=(1,), value=x.shape[0], dtype="int32")
        if x.rows is None
        else x.rows.count
        for x in parts
    ]
    whole = [emit_one("cast_to_static_shape", x) for x in parts]
    attrs = {"shape": source.shape, "dtype": source.dtype.name, "axis": axis}
    blob, size = emit("dynamic_binary_concat", *whole, *counts, name=name, **attrs)
    if rows is not None:
        resized: BlobDef = emit(RESIZE, blob, size, axis=rows.axis)
        return resized.with_rows(Rows(size, rows.axis))
    blob.is_dynamic = True
    made: BlobDef = blob
    return made


def _rows_of(function: str, blob: BlobDef) -> Rows | None:
    """Return the valid rows of a blob whose size may change; None if all are valid."""
    if not blob.is_dynamic:
        raise JobError.at_caller(
            f"use of {function}",
            found=f"{blob!r}, whose size is the same in each step",
            allowed="a blob fed as tp.ListNumpy, or with valid rows (flow.sync_dynamic_resize)",
            hint="use the blob itself on the other devices",
        )
    rows: Rows | None = blob.rows
    return rows
