"""Functions that read or write elements at indices, or compute indices: gather, scatter, sort,
one_hot.

Args:
    params: the blob that is read.
    data: a blob.
    segment_ids: the segment of each slice; an integer blob whose shape is that of consecutive axes
        of ``data``, from ``axis`` on.  Slices whose segment is out of range are ignored.
    input: a blob.
    axis: the axis, negative to count from the last one.
    direction: "ASCENDING" or "DESCENDING".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flow_core.api.array.shape import axis_of, check, inner, reshape, transpose
from flow_core.base.dtypes import DType, as_dtype
from flow_core.base.errors import UnsupportedError
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.ir.graph import AttrValue
from flow_core.ops.array.sort import DIRECTIONS

__all__ = [
    "argsort", "dim_gather", "gather", "gather_nd", "in_top_k", "one_hot", "scatter_nd", "sort",
    "tensor_scatter_nd_add", "tensor_scatter_nd_update", "unsorted_batch_segment_sum",
    "unsorted_segment_sum", "unsorted_segment_sum_like",
]  # fmt: skip


def gather(
    params: Blob,
    indices: Blob,
    validate_indices: Blob | None = None,
    axis: int | None = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> BlobDef:
    """Return slices of ``params`` along an axis, in the order given by ``indices``.

    Args:
        indices: integers; an index out of range reads zeros.
        validate_indices: ignored, as in OneFlow.
        axis: the axis of ``params``, by default ``batch_dims``.
        batch_dims: number of leading batch axes of both blobs; each batch entry of ``params`` has
            its own indices.  If ``indices`` has no other axes, its last axis is the axis of the
            indices, as in OneFlow.

    Returns: A blob of the element type of ``params`` and of shape ``params.shape[:axis] +
        indices.shape[batch_dims:] + params.shape[axis + 1:]``.

    >>> run(flow.gather, [[1, 2], [3, 4], [5, 6]], np.int32([2, 0]))
    array([[5., 6.],
           [1., 2.]], dtype=float32)
    """
    axis = axis_of("gather", batch_dims if axis is None else axis, len(params.shape))
    if batch_dims == 0:
        return emit_one("gather", params, indices, axis=axis, name=name)
    check(axis >= batch_dims, "gather", f"axis {axis}, batch_dims {batch_dims}", "a later axis")
    if axis > batch_dims:
        raise UnsupportedError.at_caller(
            "flow.gather",
            found=f"axis {axis} after batch_dims {batch_dims}",
            allowed="axis == batch_dims",
            hint="flow.transpose the table first",
        )
    shared = max(0, min(batch_dims, len(indices.shape) - 1))
    return _batch_gather(params, indices, shared, name)


def _batch_gather(params: Blob, indices: Blob, lead: int, name: str | None) -> BlobDef:
    shape = indices.shape
    if len(shape) == lead + 1:
        return emit_one("batch_gather", params, indices, name=name)
    flat = reshape(indices, (*shape[:lead], -1))
    found: BlobDef = emit("batch_gather", params, flat, name=name)
    return reshape(found, shape + params.shape[lead + 1 :])


def gather_nd(params: Blob, indices: Blob, name: str | None = None) -> BlobDef:
    """Return the slices of ``params`` at the positions that the last axis of ``indices`` holds.

    Args:
        indices: integers of shape (*batch, depth): the first ``depth`` coordinates of each slice.
            A position out of range reads zeros.

    Returns: A blob of shape ``indices.shape[:-1] + params.shape[depth:]`` and of the element type
        of ``params``.

    Raises:
        InferenceError: a position has no coordinates, or more coordinates than ``params`` has axes.

    >>> run(flow.gather_nd, [[3, 1, 2], [6, 5, 4]], np.int32([[0, 2], [1, 1]]))
    array([2., 5.], dtype=float32)
    """
    return emit_one("gather_nd", params, indices, name=name)


def scatter_nd(
    indices: Blob, updates: Blob, shape: Sequence[int], name: str | None = None
) -> BlobDef:
    """Add ``updates`` at positions of a blob of zeros, and return that blob.

    Args:
        indices: positions, as for `gather_nd`; those out of range write nothing.
        updates: the addends, in the shape of ``gather_nd(result, indices)``; all addends at a
            position are summed.
        shape: shape of the result.

    Returns: A blob of ``shape`` and of the element type of ``updates``.

    Raises:
        InferenceError: ``updates`` has another shape, or a position has no or too many coordinates.

    >>> run(lambda i, u: flow.scatter_nd(i, u, [4]), np.int32([[3], [1]]), [10, 20])
    array([ 0., 20.,  0., 10.], dtype=float32)
    """
    return emit_one("scatter_nd", indices, updates, shape=tuple(shape), name=name)


def tensor_scatter_nd_update(
    params: Blob, indices: Blob, updates: Blob, name: str | None = None
) -> BlobDef:
    """Return ``params`` with the slices at the given positions replaced by ``updates``.

    Args:
        indices: positions, as for `gather_nd`; those out of range write nothing.  If positions are
            equal, one of their updates takes effect.
        updates: new slices, in the shape of ``gather_nd(params, indices)``.

    Returns: A blob of the shape and element type of ``params``.

    Raises:
        InferenceError: ``updates`` has another shape or element type, or a position has no or too
            many coordinates.

    >>> run(flow.tensor_scatter_nd_update, [1, 2, 3], np.int32([[2], [0]]), [10, 20])
    array([20.,  2., 10.], dtype=float32)
    """
    return emit_one("tensor_scatter_nd_update", params, updates, indices, name=name)


def tensor_scatter_nd_add(
    params: Blob, indices: Blob, updates: Blob, name: str | None = None
) -> BlobDef:
    """Return ``params`` with ``updates`` added to the slices at the given positions.

    Args:
        indices: positions, as for `gather_nd`; those out of range write nothing.
        updates: the addends, in the shape of ``gather_nd(params, indices)``; all addends at a
            position are summed.

    Returns: A blob of the shape and element type of ``params``.

    Raises:
        InferenceError: ``updates`` has another shape or element type, or a position has no or too
            many coordinates.

    >>> run(flow.tensor_scatter_nd_add, [1, 2, 3], np.int32([[2], [0]]), [10, 20])
    array([21.,  2., 13.], dtype=float32)
    """
    return emit_one("tensor_scatter_nd_add", params, updates, indices, name=name)


def dim_gather(input: Blob, dim: int, index: Blob, name: str | None = None) -> BlobDef:
    """Return, for each element of ``index``, the element of ``input`` at that index on axis
    ``dim``.

    Args:
        dim: an axis.
        index: integers in a shape that differs from ``input``'s only on axis ``dim``.

    Returns: A blob of the shape of ``index`` and the type of ``input``.

    >>> run(
    ...     lambda x, i: flow.dim_gather(x, 1, i),
    ...     [[3, 1, 2], [6, 5, 4]],
    ...     np.int32([[2, 0], [1, 1]]),
    ... )
    array([[2., 3.],
           [5., 5.]], dtype=float32)
    """
    axis = axis_of("dim_gather", dim, len(input.shape))
    return emit_one("dim_gather", input, index, dim=axis, name=name)


def unsorted_segment_sum(
    data: Blob, segment_ids: Blob, num_segments: int, axis: int = 0, name: str | None = None
) -> BlobDef:
    """Sum the slices of ``data`` along an axis that belong to the same segment.

    Args:
        num_segments: number of segments: the size of the result's axis ``axis``, which replaces the
            axes of ``segment_ids``.
        axis: first of the summed axes.

    Returns: A blob whose axis ``axis`` has the size ``num_segments``.

    >>> run(flow.unsorted_segment_sum, [1, 2, 4], np.int32([2, 0, 2]), 3)
    array([2., 0., 5.], dtype=float32)
    """
    axis = axis_of("unsorted_segment_sum", axis, len(data.shape))
    return emit_one(
        "unsorted_segment_sum", data, segment_ids, axis=axis, num_segments=num_segments, name=name
    )


def unsorted_segment_sum_like(
    data: Blob, segment_ids: Blob, like: Blob, axis: int = 0, name: str | None = None
) -> BlobDef:
    """Call `unsorted_segment_sum` with the size of axis ``axis`` of ``like`` as ``num_segments``.

    Args:
        like: a blob of the result's shape; its elements are ignored.
        axis: first of the summed axes.

    Returns: A blob of the shape of ``like`` and of the element type of ``data``.

    Raises:
        InferenceError: the shape of ``segment_ids`` is not that of the axes of ``data`` from
            ``axis`` on, or ``like`` does not have the result's shape.

    >>> run(flow.unsorted_segment_sum_like, [1, 2, 4], np.int32([2, 0, 2]), [0, 0, 0])
    array([2., 0., 5.], dtype=float32)
    """
    axis = axis_of("unsorted_segment_sum_like", axis, len(data.shape))
    return emit_one("unsorted_segment_sum_like", data, segment_ids, like, axis=axis, name=name)


def unsorted_batch_segment_sum(
    data: Blob, segment_ids: Blob, num_segments: int, name: str | None = None
) -> BlobDef:
    """Sum the rows of ``data`` by segment, separately for each batch entry.

    Args:
        data: a blob of shape (*batch, n, *rest).
        segment_ids: integers of shape (*batch, n); rows whose segment is out of range are ignored.
        num_segments: number of segments of each batch entry.

    Returns: A blob of shape (*batch, num_segments, *rest) of the element type of ``data``.

    Raises: InferenceError: the shapes are not of this form, or ``num_segments`` is less than 1.

    >>> run(flow.unsorted_batch_segment_sum, [[1, 2, 4]], np.int32([[1, 0, 1]]), 2)
    array([[2., 5.]], dtype=float32)
    """
    return emit_one(
        "unsorted_batch_segment_sum", data, segment_ids, num_segments=num_segments, name=name
    )


def _to_last(function: str, axis: int, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the permutation that moves an axis to the end, and its inverse."""
    axis = axis_of(function, axis, rank)
    perm = (*(i for i in range(rank) if i != axis), axis)
    return perm, tuple(perm.index(i) for i in range(rank))


def _along(
    function: str, x: Blob, axis: int, name: str | None, at_last: Callable[..., BlobDef]
) -> BlobDef:
    """Apply an op that works on the last axis to another axis, between two transpositions."""
    x = checked_blob(x)
    perm, inverse = _to_last(function, axis, len(x.shape))
    if perm[-1] == len(perm) - 1:
        return at_last(x, name)
    moved = transpose(x, perm, False, True, inner(name, "_transpose"))
    return transpose(at_last(moved, name), inverse, False, True, inner(name, "_inverse_transpose"))


def _emitter(op_type: str, **attrs: AttrValue) -> Callable[..., BlobDef]:
    def at_last(x: Blob, name: str | None) -> BlobDef:
        return emit_one(op_type, x, **attrs, name=name)

    return at_last


def sort(
    input: Blob, axis: int = -1, direction: str = "ASCENDING", name: str | None = None
) -> BlobDef:
    """Return the elements of a blob, sorted along an axis.

    Args:
        input: a blob whose size on the axis is at least 1.

    Returns: A blob of the shape and element type of ``input``.

    Raises: InferenceError: the direction is unknown, or the axis is out of range or of size 0.

    >>> run(flow.sort, [[3, 1, 2], [6, 5, 4]], direction="DESCENDING")
    array([[3., 2., 1.],
           [6., 5., 4.]], dtype=float32)
    """
    check(direction in DIRECTIONS, "sort", f"{direction!r}", " or ".join(DIRECTIONS))
    return _along("sort", input, axis, name, _emitter("sort", direction=direction))


def argsort(
    input: Blob, axis: int = -1, direction: str = "ASCENDING", name: str | None = None
) -> BlobDef:
    """Return the indices that sort a blob along an axis; equal numbers keep their order.

    Args:
        input: a blob whose size on the axis is at least 1.

    Returns: int32 in the shape of ``input``.

    Raises: InferenceError: as for `sort`.

    >>> run(flow.argsort, [[3, 1, 2], [6, 5, 4]])
    array([[1, 2, 0],
           [2, 1, 0]], dtype=int32)
    """
    check(direction in DIRECTIONS, "argsort", f"{direction!r}", " or ".join(DIRECTIONS))
    return _along("argsort", input, axis, name, _emitter("arg_sort", direction=direction))


def argmax(input: Blob, axis: int = -1, name: str | None = None) -> BlobDef:
    """Return the index of the largest element along an axis, the lowest among equal ones.

    Args:
        input: a blob whose size on the axis is at least 1.

    Returns: int32 in the shape of ``input`` without the axis, or of shape (1,) for a blob with one
        axis.

    Raises: InferenceError: the axis is out of range or of size 0.

    >>> run(flow.math.argmax, [[3, 1, 2], [6, 5, 4]])
    array([0, 0], dtype=int32)
    """
    perm, _ = _to_last("math.argmax", axis, len(input.shape))
    if perm[-1] != len(perm) - 1:
        input = transpose(input, perm, False, True, inner(name, "_transpose"))
    return emit_one("argmax", input, name=name)


def top_k(
    input: Blob, axis: int = -1, k: int = 1, sorted: bool = True, name: str | None = None
) -> BlobDef:
    """Return the int32 indices of the ``k`` largest numbers along an axis, largest first.

    Args:
        axis: the axis.
        k: number of indices; if the axis has fewer elements, all indices are returned.
        sorted: whether the indices must be in order; they always are.

    Returns: An int32 blob whose axis ``axis`` has the size ``k``.

    >>> run(flow.math.top_k, [[3, 1, 2], [6, 5, 4]], k=2)
    array([[0, 2],
           [0, 1]], dtype=int32)
    """
    return _along("math.top_k", input, axis, name, _emitter("top_k", k=k, sorted=sorted))


def in_top_k(targets: Blob, predictions: Blob, k: int, name: str | None = None) -> BlobDef:
    """Return, for each row, whether fewer than ``k`` classes have a higher prediction than its
    target.

    Args:
        targets: the target class of each row, integers of shape (N,).
        predictions: shape (N, classes), floating.
        k: number of classes.

    Returns: int8 of shape (N,); 0 if the target is out of range, or any prediction of its row is
        not finite.

    >>> run(flow.in_top_k, np.int32([0, 2]), [[3, 1, 2], [6, 5, 4]], 2)
    array([1, 0], dtype=int8)
    """
    return emit_one("in_top_k", targets, predictions, k=k, name=name)


def one_hot(
    indices: Blob,
    depth: int,
    on_value: int | float = 1,
    off_value: int | float = 0,
    axis: int = -1,
    dtype: DType | None = None,
    name: str | None = None,
) -> BlobDef:
    """Return, for each index, a vector of ``off_value`` with ``on_value`` at that index.

    Args:
        indices: integers in [0, depth); any other value raises a `DataError` at run time.
        depth: length of the vectors.
        on_value, off_value: the two numbers.
        axis: position of the new axis, last by default.
        dtype: element type of the result, by default that of ``indices``.

    Returns: A blob with an additional axis of size ``depth``.

    >>> run(flow.one_hot, np.int32([2, 0]), 3)
    array([[0, 0, 1],
           [1, 0, 0]], dtype=int32)
    """
    rank = len(indices.shape) + 1
    axis = axis_of("one_hot", axis, rank)
    wanted = indices.dtype if dtype is None else as_dtype(dtype)
    hot: BlobDef = emit(
        "one_hot",
        indices,
        depth=int(depth),
        dtype=wanted.name,
        floating_on_value=float(on_value),
        integer_on_value=int(on_value),
        floating_off_value=float(off_value),
        integer_off_value=int(off_value),
        name=name,
    )
    if axis == rank - 1:
        return hot
    _, inverse = _to_last("one_hot", axis, rank)
    return transpose(hot, inverse)
