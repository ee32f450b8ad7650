"""Functions that read or write at indices, or find them: gather, scatter, sort, one_hot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flow_core.api.array.shape import axis_of, check, inner, reshape, transpose
from flow_core.base.dtypes import DType, as_dtype
from flow_core.base.errors import UnsupportedError, user_line
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.emit import emit
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
        indices: integers; one out of range gives zeros.
        validate_indices: ignored, as in OneFlow.
        axis: the axis of ``params``, by default ``batch_dims``.
        batch_dims: how many leading axes both share; each entry of these has own indices.  When
            ``indices`` have no axes but these, the last one counts the indices, as in OneFlow.
        name: name of the op.

    Returns:
        A blob of shape ``params.shape[:axis] + indices.shape[batch_dims:] +
        params.shape[axis + 1:]`` of params' element type.
    """
    axis = axis_of("gather", batch_dims if axis is None else axis, len(params.shape))
    if batch_dims == 0:
        blob: BlobDef = emit("gather", params, indices, axis=axis, name=name)
        return blob
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
        blob: BlobDef = emit("batch_gather", params, indices, name=name)
        return blob
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
    blob: BlobDef = emit("gather_nd", params, indices, name=name)
    return blob


def scatter_nd(
    indices: BlobDef, updates: BlobDef, shape: Sequence[int], name: str | None = None
) -> BlobDef:
    """Zeros to which ``updates`` are added at positions.

    Args:
        indices: positions, as `gather_nd` takes them; those out of range write nothing.
        updates: what is added, of the shape that ``gather_nd(result, indices)`` has; what goes to
            one position is summed.
        shape: shape of the result.
        name: name of the op.

    Returns:
        A blob of ``shape`` and of the element type of ``updates``.

    Raises:
        InferenceError: updates of another shape, or no or too many coordinates.
    """
    blob: BlobDef = emit("scatter_nd", indices, updates, shape=tuple(shape), name=name)
    return blob


def tensor_scatter_nd_update(
    params: BlobDef, indices: BlobDef, updates: BlobDef, name: str | None = None
) -> BlobDef:
    """``params`` with ``updates`` in place of the slices at positions.

    Args:
        params: a table.
        indices: positions, as `gather_nd` takes them; those out of range write nothing.  Where
            positions are equal, one of them counts.
        updates: new slices, of the shape that ``gather_nd(params, indices)`` has.
        name: name of the op.

    Returns:
        A blob like ``params``.

    Raises:
        InferenceError: updates of another shape or element type, or no or too many coordinates.
    """
    blob: BlobDef = emit("tensor_scatter_nd_update", params, updates, indices, name=name)
    return blob


def tensor_scatter_nd_add(
    params: BlobDef, indices: BlobDef, updates: BlobDef, name: str | None = None
) -> BlobDef:
    """``params`` with ``updates`` added to the slices at positions.

    Args:
        params: a table.
        indices: positions, as `gather_nd` takes them; those out of range write nothing.
        updates: what is added, of the shape that ``gather_nd(params, indices)`` has; what goes to
            one position is summed.
        name: name of the op.

    Returns:
        A blob like ``params``.

    Raises:
        InferenceError: updates of another shape or element type, or no or too many coordinates.
    """
    blob: BlobDef = emit("tensor_scatter_nd_add", params, updates, indices, name=name)
    return blob


def dim_gather(input: BlobDef, dim: int, index: BlobDef, name: str | None = None) -> BlobDef:
    """Per element of ``index``, the element of ``input`` which it names along axis ``dim``.

    Args:
        input: a blob.
        dim: an axis.
        index: integers in a shape that differs from ``input``'s on axis ``dim`` at most.
        name: name of the op.
    """
    axis = axis_of("dim_gather", dim, len(input.shape))
    blob: BlobDef = emit("dim_gather", input, index, dim=axis, name=name)
    return blob


def unsorted_segment_sum(
    data: BlobDef, segment_ids: BlobDef, num_segments: int, axis: int = 0, name: str | None = None
) -> BlobDef:
    """Sums the rows of ``data`` along an axis by segment.

    Args:
        data: a blob.
        segment_ids: the segment of each row, in the shape of data's axes from ``axis`` on; rows
            of segments out of range are left out.
        num_segments: size of the result's axis ``axis``, which replaces those.
        axis: first of the summed axes.
        name: name of the op.
    """
    axis = axis_of("unsorted_segment_sum", axis, len(data.shape))
    blob: BlobDef = emit(
        "unsorted_segment_sum", data, segment_ids, axis=axis, num_segments=num_segments, name=name
    )
    return blob


def unsorted_segment_sum_like(
    data: BlobDef, segment_ids: BlobDef, like: BlobDef, axis: int = 0, name: str | None = None
) -> BlobDef:
    """`unsorted_segment_sum` with as many segments as ``like`` has on axis ``axis``.

    Args:
        data, segment_ids, axis, name: see `unsorted_segment_sum`.
        like: a blob of the result's shape; its elements do not count.

    Returns:
        A blob of like's shape and of the element type of ``data``.

    Raises:
        InferenceError: ids that are not of the shape of data's axes from ``axis`` on, or ``like``
            of another shape.
    """
    axis = axis_of("unsorted_segment_sum_like", axis, len(data.shape))
    blob: BlobDef = emit("unsorted_segment_sum_like", data, segment_ids, like, axis=axis, name=name)
    return blob


def unsorted_batch_segment_sum(
    data: BlobDef, segment_ids: BlobDef, num_segments: int, name: str | None = None
) -> BlobDef:
    """`unsorted_segment_sum` on the last axis of ``segment_ids``, for each leading entry alone.

    Args:
        data: a blob of shape (*batch, n, *rest).
        segment_ids: integers of shape (*batch, n); rows of segments out of range are left out.
        num_segments: how many sums there are per entry.
        name: name of the op.

    Returns:
        A blob of shape (*batch, num_segments, *rest) of the element type of ``data``.

    Raises:
        InferenceError: other shapes, or no segments.
    """
    blob: BlobDef = emit(
        "unsorted_batch_segment_sum", data, segment_ids, num_segments=num_segments, name=name
    )
    return blob


def _to_last(function: str, axis: int, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The permutation that puts an axis last and its inverse."""
    axis = axis_of(function, axis, rank)
    perm = (*(i for i in range(rank) if i != axis), axis)
    return perm, tuple(perm.index(i) for i in range(rank))


def _along(
    function: str, x: BlobDef, axis: int, name: str | None, at_last: Callable[..., BlobDef]
) -> BlobDef:
    """An op of the last axis on another one, between two transpositions."""
    perm, inverse = _to_last(function, axis, len(x.shape))
    if perm[-1] == len(perm) - 1:
        return at_last(x, name)
    moved = transpose(x, perm, False, True, inner(name, "_transpose"))
    return transpose(at_last(moved, name), inverse, False, True, inner(name, "_inverse_transpose"))


def _emitter(op_type: str, **attrs: AttrValue) -> Callable[..., BlobDef]:
    def at_last(x: BlobDef, name: str | None) -> BlobDef:
        blob: BlobDef = emit(op_type, x, **attrs, name=name)
        return blob

    return at_last


def sort(
    input: BlobDef, axis: int = -1, direction: str = "ASCENDING", name: str | None = None
) -> BlobDef:
    """The numbers sorted along an axis.

    Args:
        input: a blob with elements along the axis.
        axis: the axis, negative to count from the last one.
        direction: "ASCENDING" or "DESCENDING".
        name: name of the op.

    Returns:
        A blob like ``input``.

    Raises:
        InferenceError: another direction, an axis out of range, or nothing along it.
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
    """The index of the largest number along an axis, the lowest among equal ones.

    Args:
        input: a blob with elements along the axis.
        axis: the axis, negative to count from the last one.
        name: name of the op.

    Returns:
        int32 in the shape of ``input`` without the axis; of a blob with one axis, shape (1,).

    Raises:
        InferenceError: an axis out of range, or nothing along it.
    """
    perm, _ = _to_last("math.argmax", axis, len(input.shape))
    if perm[-1] != len(perm) - 1:
        input = transpose(input, perm, False, True, inner(name, "_transpose"))
    blob: BlobDef = emit("argmax", input, name=name)
    return blob


def top_k(
    input: BlobDef, axis: int = -1, k: int = 1, sorted: bool = True, name: str | None = None
) -> BlobDef:
    """The int32 indices of the ``k`` largest numbers along an axis, largest first.

    Args:
        input: a blob.
        axis: the axis.
        k: how many; all where the axis has fewer.
        sorted: whether the order matters; the indices come in order anyway.
        name: name of the op.
    """
    return _along("math.top_k", input, axis, name, _emitter("top_k", k=k, sorted=sorted))


def in_top_k(targets: BlobDef, predictions: BlobDef, k: int, name: str | None = None) -> BlobDef:
    """Whether fewer than ``k`` classes are predicted above the target class.

    Args:
        targets: class per row, integers of shape (N,).
        predictions: shape (N, classes), floating.
        k: how many classes count.
        name: name of the op.

    Returns:
        int8 of shape (N,); 0 where the target is no class or a prediction is not finite.
    """
    blob: BlobDef = emit("in_top_k", targets, predictions, k=k, name=name)
    return blob


def one_hot(
    indices: BlobDef,
    depth: int,
    on_value: int | float = 1,
    off_value: int | float = 0,
    axis: int = -1,
    dtype: DType | None = None,
    name: str | None = None,
) -> BlobDef:
    """Vectors of ``off_value`` with ``on_value`` at the index.

    Args:
        indices: integers between 0 and ``depth``; others are a `DataError` at run time.
        depth: length of the vectors.
        on_value, off_value: the two numbers.
        axis: where the new axis is put, last by default.
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
