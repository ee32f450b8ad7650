"""Functions that read or write at indices, or find them: gather, scatter, sort, one_hot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flow_core.api.array.shape import axis_of, check, inner, reshape, transpose
from flow_core.base.dtypes import DType, as_dtype
from flow_core.base.errors import UnsupportedError, user_line
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.ir.graph import AttrValue
from flow_core.ops.array.sort import DIRECTIONS

__all__ = [
    "argsort",
    "dim_gather",
    "gather",
    "gather_nd",
    "in_top_k",
    "one_hot",
    "scatter_nd",
    "sort",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_update",
    "unsorted_batch_segment_sum",
    "unsorted_segment_sum",
    "unsorted_segment_sum_like",
]


def gather(
    params: BlobDef,
    indices: BlobDef,
    validate_indices: BlobDef | None = None,
    axis: int | None = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> BlobDef:
    """Rows of ``params`` along an axis, in the order of ``indices``.

    Args:
        params: a table.
        indices: integers; an index out of range reads zeros.
        validate_indices: ignored, as in OneFlow.
        axis: the axis of ``params``, by default ``batch_dims``.
        batch_dims: number of leading axes that both share, each entry with its own indices.  If
            ``indices`` has no other axes, its last one counts the indices, as in OneFlow.
        name: name of the op.

    Returns:
        A blob of shape ``params.shape[:axis] + indices.shape[batch_dims:] +
        params.shape[axis + 1:]`` of params' element type.
    """
    axis = axis_of("gather", batch_dims if axis is None else axis, len(params.shape))
    if batch_dims == 0:
        return emit_one("gather", params, indices, axis=axis, name=name)
    check(axis >= batch_dims, "gather", f"axis {axis}, batch_dims {batch_dims}", "a later axis")
    if axis > batch_dims:
        raise UnsupportedError(
            "flow.gather",
            at=user_line(),
            found=f"axis {axis} after batch_dims {batch_dims}",
            allowed="axis == batch_dims",
            hint="flow.transpose the table first",
        )
    shared = max(0, min(batch_dims, len(indices.shape) - 1))
    return _batch_gather(params, indices, shared, name)


def _batch_gather(params: BlobDef, indices: BlobDef, lead: int, name: str | None) -> BlobDef:
    shape = indices.shape
    if len(shape) == lead + 1:
        return emit_one("batch_gather", params, indices, name=name)
    flat = reshape(indices, (*shape[:lead], -1))
    found: BlobDef = emit("batch_gather", params, flat, name=name)
    return reshape(found, shape + params.shape[lead + 1 :])


def gather_nd(params: BlobDef, indices: BlobDef, name: str | None = None) -> BlobDef:
    """The slices of ``params`` at positions, each a row of the last axis of ``indices``.

    Args:
        params: a table.
        indices: integers of shape (*batch, depth): the first ``depth`` coordinates of each slice.
            A position out of range reads zeros.
        name: name of the op.

    Returns:
        A blob of shape ``indices.shape[:-1] + params.shape[depth:]`` of params' element type.

    Raises:
        InferenceError: no coordinates, or more than ``params`` has axes.

    Example:
        Positions (i, j) in a table (4, 5, 6) give slices of shape (6,).
    """
    return emit_one("gather_nd", params, indices, name=name)


def scatter_nd(
    indices: BlobDef, updates: BlobDef, shape: Sequence[int], name: str | None = None
) -> BlobDef:
    """Zeros to which ``updates`` are added at positions.

    Args:
        indices: positions, as for `gather_nd`; those out of range write nothing.
        updates: the addends, in the shape of ``gather_nd(result, indices)``; addends of one
            position are summed.
        shape: shape of the result.
        name: name of the op.

    Returns:
        A blob of ``shape`` and of the element type of ``updates``.

    Raises:
        InferenceError: updates of another shape, or no or too many coordinates.
    """
    return emit_one("scatter_nd", indices, updates, shape=tuple(shape), name=name)


def tensor_scatter_nd_update(
    params: BlobDef, indices: BlobDef, updates: BlobDef, name: str | None = None
) -> BlobDef:
    """``params`` with ``updates`` in place of the slices at positions.

    Args:
        params: a table.
        indices: positions, as for `gather_nd`; those out of range write nothing.  One of several
            equal positions takes effect.
        updates: new slices, in the shape of ``gather_nd(params, indices)``.
        name: name of the op.

    Returns:
        A blob like ``params``.

    Raises:
        InferenceError: updates of another shape or element type, or no or too many coordinates.
    """
    return emit_one("tensor_scatter_nd_update", params, updates, indices, name=name)


def tensor_scatter_nd_add(
    params: BlobDef, indices: BlobDef, updates: BlobDef, name: str | None = None
) -> BlobDef:
    """``params`` with ``updates`` added to the slices at positions.

    Args:
        params: a table.
        indices: positions, as for `gather_nd`; those out of range write nothing.
        updates: the addends, in the shape of ``gather_nd(params, indices)``; addends of one
            position are summed.
        name: name of the op.

    Returns:
        A blob like ``params``.

    Raises:
        InferenceError: updates of another shape or element type, or no or too many coordinates.
    """
    return emit_one("tensor_scatter_nd_add", params, updates, indices, name=name)


def dim_gather(input: BlobDef, dim: int, index: BlobDef, name: str | None = None) -> BlobDef:
    """For each element of ``index``, the element of ``input`` at that index along axis ``dim``.

    Args:
        input: a blob.
        dim: an axis.
        index: integers in a shape that differs from ``input``'s only on axis ``dim``.
        name: name of the op.
    """
    axis = axis_of("dim_gather", dim, len(input.shape))
    return emit_one("dim_gather", input, index, dim=axis, name=name)


def unsorted_segment_sum(
    data: BlobDef, segment_ids: BlobDef, num_segments: int, axis: int = 0, name: str | None = None
) -> BlobDef:
    """Sum the rows of ``data`` along an axis by segment.

    Args:
        data: a blob.
        segment_ids: the segment of each row, in the shape of data's axes from ``axis`` on; rows
            of segments out of range are ignored.
        num_segments: size of the result's axis ``axis``, which replaces those axes.
        axis: first of the summed axes.
        name: name of the op.
    """
    axis = axis_of("unsorted_segment_sum", axis, len(data.shape))
    return emit_one(
        "unsorted_segment_sum", data, segment_ids, axis=axis, num_segments=num_segments, name=name
    )


def unsorted_segment_sum_like(
    data: BlobDef, segment_ids: BlobDef, like: BlobDef, axis: int = 0, name: str | None = None
) -> BlobDef:
    """`unsorted_segment_sum` with as many segments as ``like`` has on axis ``axis``.

    Args:
        data, segment_ids, axis, name: see `unsorted_segment_sum`.
        like: a blob of the result's shape; its elements are ignored.

    Returns:
        A blob of like's shape and of the element type of ``data``.

    Raises:
        InferenceError: ids whose shape is not that of data's axes from ``axis`` on, or ``like`` of
            another shape.
    """
    axis = axis_of("unsorted_segment_sum_like", axis, len(data.shape))
    return emit_one("unsorted_segment_sum_like", data, segment_ids, like, axis=axis, name=name)


def unsorted_batch_segment_sum(
    data: BlobDef, segment_ids: BlobDef, num_segments: int, name: str | None = None
) -> BlobDef:
    """`unsorted_segment_sum` on the last axis of ``segment_ids``, for each batch entry.

    Args:
        data: a blob of shape (*batch, n, *rest).
        segment_ids: integers of shape (*batch, n); rows of segments out of range are ignored.
        num_segments: number of sums per entry.
        name: name of the op.

    Returns:
        A blob of shape (*batch, num_segments, *rest) of the element type of ``data``.

    Raises:
        InferenceError: other shapes, or no segments.
    """
    return emit_one(
        "unsorted_batch_segment_sum", data, segment_ids, num_segments=num_segments, name=name
    )


def _to_last(function: str, axis: int, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the permutation that moves an axis last, and its inverse."""
    axis = axis_of(function, axis, rank)
    perm = (*(i for i in range(rank) if i != axis), axis)
    return perm, tuple(perm.index(i) for i in range(rank))


def _along(
    function: str, x: BlobDef, axis: int, name: str | None, at_last: Callable[..., BlobDef]
) -> BlobDef:
    """Apply an op of the last axis to another one, between two transpositions."""
    perm, inverse = _to_last(function, axis, len(x.shape))
    if perm[-1] == len(perm) - 1:
        return at_last(x, name)
    moved = transpose(x, perm, False, True, inner(name, "_transpose"))
    return transpose(at_last(moved, name), inverse, False, True, inner(name, "_inverse_transpose"))


def _emitter(op_type: str, **attrs: AttrValue) -> Callable[..., BlobDef]:
    def at_last(x: BlobDef, name: str | None) -> BlobDef:
        return emit_one(op_type, x, **attrs, name=name)

    return at_last


def sort(
    input: BlobDef, axis: int = -1, direction: str = "ASCENDING", name: str | None = None
) -> BlobDef:
    """The elements sorted along an axis.

    Args:
        input: a blob with elements along the axis.
        axis: the axis, negative to count from the last one.
        direction: "ASCENDING" or "DESCENDING".
        name: name of the op.

    Returns:
        A blob like ``input``.

    Raises:
        InferenceError: another direction, an axis out of range, or an axis of size 0.
    """
    check(direction in DIRECTIONS, "sort", f"{direction!r}", " or ".join(DIRECTIONS))
    return _along("sort", input, axis, name, _emitter("sort", direction=direction))


def argsort(
    input: BlobDef, axis: int = -1, direction: str = "ASCENDING", name: str | None = None
) -> BlobDef:
    """The indices that sort along an axis; equal numbers keep their order.

    Args:
        input, axis, direction, name: see `sort`.

    Returns:
        int32 in the shape of ``input``.

    Raises:
        InferenceError: as `sort`.
    """
    check(direction in DIRECTIONS, "argsort", f"{direction!r}", " or ".join(DIRECTIONS))
    return _along("argsort", input, axis, name, _emitter("arg_sort", direction=direction))


def argmax(input: BlobDef, axis: int = -1, name: str | None = None) -> BlobDef:
    """The index of the largest element along an axis, the lowest among equal ones.

    Args:
        input: a blob with elements along the axis.
        axis: the axis, negative to count from the last one.
        name: name of the op.

    Returns:
        int32 in the shape of ``input`` without the axis; of a blob with one axis, shape (1,).

    Raises:
        InferenceError: an axis out of range, or of size 0.
    """
    perm, _ = _to_last("math.argmax", axis, len(input.shape))
    if perm[-1] != len(perm) - 1:
        input = transpose(input, perm, False, True, inner(name, "_transpose"))
    return emit_one("argmax", input, name=name)


def top_k(
    input: BlobDef, axis: int = -1, k: int = 1, sorted: bool = True, name: str | None = None
) -> BlobDef:
    """The int32 indices of the ``k`` largest numbers along an axis, largest first.

    Args:
        input: a blob.
        axis: the axis.
        k: number of indices; all if the axis has fewer.
        sorted: whether the order matters; the indices are always in order.
        name: name of the op.
    """
    return _along("math.top_k", input, axis, name, _emitter("top_k", k=k, sorted=sorted))


def in_top_k(targets: BlobDef, predictions: BlobDef, k: int, name: str | None = None) -> BlobDef:
    """Whether fewer than ``k`` classes have a higher prediction than the target class.

    Args:
        targets: class per row, integers of shape (N,).
        predictions: shape (N, classes), floating.
        k: number of classes.
        name: name of the op.

    Returns:
        int8 of shape (N,); 0 for a target out of range or a prediction that is not finite.
    """
    return emit_one("in_top_k", targets, predictions, k=k, name=name)


def one_hot(
    indices: BlobDef,
    depth: int,
    on_value: int | float = 1,
    off_value: int | float = 0,
    axis: int = -1,
    dtype: DType | None = None,
    name: str | None = None,
) -> BlobDef:
    """Vectors of ``off_value``, with ``on_value`` at the index.

    Args:
        indices: integers in [0, depth); others raise a `DataError` at run time.
        depth: length of the vectors.
        on_value, off_value: the two numbers.
        axis: position of the new axis, last by default.
        dtype: element type of the result, by default that of ``indices``.
        name: name of the op.
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
