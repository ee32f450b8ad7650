"""Functions whose results have a number of valid rows that is known only at run time."""

from __future__ import annotations

from flow_core.api.session.views import cast_to_current_logical_view
from flow_core.base.dtypes import DType, as_dtype, int32
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.frontend.trace.repeat_acc import PeriodBlob, in_period, periods_of
from flow_core.frontend.trace.valid_rows import RESIZE, Rows

__all__ = ["argwhere", "nonzero", "sync_dynamic_resize"]


def argwhere(condition: Blob, dtype: DType | None = None, name: str | None = None) -> BlobDef:
    """Return the positions of all nonzero elements, one per row, in order.

    Args:
        condition: a blob of rank 1 or more, of any numeric type.
        dtype: element type of the positions, int32 (the default) or int64.
        name: name of the op.

    Returns:
        A blob of shape (elements of ``condition``, rank of ``condition``) with one valid row for
        each position; `sync_dynamic_resize` describes valid rows.

    Example:
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
        name: name of the op.

    Returns:
        An int32 blob of shape (axes, positions); the number of positions is known at run
        time.

    Example:
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
    Row-wise ops propagate the size, sums over rows add only the valid rows, and fetched results
    contain only the valid rows.  Any other op on the result is an error;
    `flow.cast_to_static_shape` returns all rows, with zeros after the valid ones.

    Args:
        inputs: a blob of rank 1 or more.
        size: int32 or int64 of shape (1,), from 0 to the number of rows of ``inputs``.
        name: name of the op.

    Returns:
        A blob of ``size`` rows.

    Example:
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
