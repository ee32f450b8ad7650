"""Functions that change the shape of a blob without changing its elements.

Args:
    x, input: a blob.
"""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.api.arguments import checker
from flow_core.base.errors import InferenceError, UnsupportedError
from flow_core.base.shapes import broadcast_shapes, normal_axis
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit, emit_one

__all__ = [
    "amp_white_identity", "broadcast_like", "broadcast_to_compatible_with",
    "cast_to_static_shape", "dynamic_reshape", "expand_dims", "flatten", "identity",
    "identity_n", "reshape", "reshape_like", "squeeze", "transpose",
]  # fmt: skip


check = checker("flow.")


def axis_of(function: str, axis: int, rank: int) -> int:
    """Return an axis as a non-negative number; fail at the user's line if it is out of range."""
    allowed = f"-{rank} <= axis < {rank}"
    fits = hasattr(axis, "__index__") and -rank <= axis < rank
    check(fits, function, f"axis {axis!r} for {rank} axes", allowed)
    return normal_axis(axis, rank)


def inner(name: str | None, suffix: str) -> str | None:
    """Return the name of an op within a function, or None if the function has no name."""
    return None if name is None else f"{name}{suffix}"


def reshape(x: Blob, shape: Sequence[int], name: str | None = None) -> BlobDef:
    """Return a blob with the same elements in the same order, in another shape.

    Args:
        shape: the new shape; one size may be -1, and is then inferred.

    Returns: A blob of the new shape.

    Raises: InferenceError: the number of elements differs, or more than one size is -1.

    >>> run(flow.reshape, [1, 2, 3, 4], (2, -1))
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    listed = hasattr(shape, "__len__") and not isinstance(shape, str)
    check(listed, "reshape", f"shape {shape!r:.60}", "a list or tuple of sizes", "[size]")
    return emit_one("reshape", x, shape=tuple(shape), name=name)


def dynamic_reshape(x: Blob, shape: Sequence[int], name: str | None = None) -> BlobDef:
    """Do the same as `reshape`, since all shapes are known at compile time.

    Args:
        shape: the new shape; one size may be -1.

    Returns: A blob of the new shape.

    >>> run(flow.dynamic_reshape, [1, 2, 3, 4], (2, -1))
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    return reshape(x, shape, name)


def reshape_like(x: Blob, like: Blob, name: str | None = None) -> BlobDef:
    """Return ``x`` in the shape of another blob.

    Args:
        like: a blob with the same number of elements, whose values are ignored.

    Returns: A blob of the shape of ``like`` and of the element type of ``x``.

    Raises: InferenceError: the numbers of elements differ.

    >>> run(flow.reshape_like, [1, 2, 3, 4], [[0, 0], [0, 0]])
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    return emit_one("reshape_like", x, like, name=name)


def flatten(input: Blob, start_dim: int = 0, end_dim: int = -1, name: str | None = None) -> BlobDef:
    """Merge several adjacent axes into one.

    Args:
        start_dim, end_dim: first and last axis to merge, negative to count from the last one.

    Returns: A blob with fewer axes.

    Raises: InferenceError: an axis is out of range, or ``start_dim`` comes after ``end_dim``.

    >>> run(flow.flatten, [[1, 2], [3, 4]])
    array([1., 2., 3., 4.], dtype=float32)
    """
    return emit_one("flatten", input, start_dim=start_dim, end_dim=end_dim, name=name)


def squeeze(input: Blob, axis: Sequence[int] | None = None, name: str | None = None) -> BlobDef:
    """Remove the given axes of size 1, or all of them by default; at least one axis remains.

    Args:
        axis: an axis, or a list of axes; None for all axes of size 1.

    Returns: A blob without these axes.

    Raises: InferenceError: a given axis is out of range, or its size is not 1.

    >>> run(flow.squeeze, [[1, 2]])
    array([1., 2.], dtype=float32)
    """
    if axis is None:
        axis = [i for i, size in enumerate(input.shape) if size == 1]
    return emit_one("squeeze", input, axes=tuple(axis), name=name)


def expand_dims(input: Blob, axis: int, name: str | None = None) -> BlobDef:
    """Insert an axis of size 1.

    Args:
        axis: position of the new axis in the result; -1 is the last position.

    Returns: A blob with an additional axis.

    Raises: InferenceError: the axis is out of range.

    >>> run(flow.expand_dims, [1, 2], 0)
    array([[1., 2.]], dtype=float32)
    """
    return emit_one("expand_dims", input, axis=axis, name=name)


def identity(x: Blob, name: str | None = None) -> BlobDef:
    """Return a blob with the same elements.

    Returns: A blob of the shape and type of ``x``.

    >>> run(flow.identity, [1, 2])
    array([1., 2.], dtype=float32)
    """
    return emit_one("identity", x, name=name)


def identity_n(inputs: Sequence[Blob], name: str | None = None) -> list[BlobDef]:
    """Pass several blobs through one identity op: all results become available together.

    Args:
        inputs: a list of blobs.

    Returns: A list of blobs.

    >>> run(lambda x, y: tuple(flow.identity_n([x, y])), [1, 2], [3])
    (array([1., 2.], dtype=float32), array([3.], dtype=float32))
    """
    return list(emit("tuple_identity", *inputs, name=name))


def amp_white_identity(x: Blob, name: str | None = None) -> BlobDef:
    """Return the `identity` of ``x``; under mixed precision, this op runs in half precision.

    Returns: A blob of the shape and type of ``x``.

    >>> run(flow.amp_white_identity, [1, 2])
    array([1., 2.], dtype=float32)
    """
    return emit_one("amp_white_identity", x, name=name)


def cast_to_static_shape(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``x`` as a blob of fixed shape, or ``x`` itself if its shape is already fixed.

    Returns: A blob of fixed shape.

    >>> run(flow.cast_to_static_shape, [1, 2])
    array([1., 2.], dtype=float32)
    """
    x = checked_blob(x)
    if not x.is_dynamic:
        return x
    return emit_one("cast_to_static_shape", x, name=name)


def transpose(
    a: Blob,
    perm: Sequence[int] | None = None,
    conjugate: bool = False,
    batch_axis_non_change: bool = False,
    name: str | None = None,
) -> BlobDef:
    """Permute axes: axis i of the result is axis ``perm[i]`` of ``a``.

    Args:
        a: a blob.
        perm: a permutation of the axes; the default reverses their order.
        conjugate: must be False; there are no complex types.
        batch_axis_non_change: whether the batch axis of the result keeps its position.

    Returns: A blob with permuted axes.

    >>> run(flow.transpose, [[3, 1, 2], [6, 5, 4]], (1, 0))
    array([[3., 6.],
           [1., 5.],
           [2., 4.]], dtype=float32)
    """
    if conjugate:
        raise UnsupportedError.at_caller("flow.transpose", found="conjugate=True")
    rank = len(a.shape)
    order = range(rank)[::-1] if perm is None else perm
    axes = tuple(axis_of("transpose", axis, rank) for axis in order)
    return emit_one(
        "transpose", a, perm=axes, batch_axis_non_change=batch_axis_non_change, name=name
    )


def broadcast_like(
    x: Blob, like: Blob, broadcast_axes: Sequence[int] | None = None, name: str | None = None
) -> BlobDef:
    """Repeat ``x`` to the shape of ``like``.

    Args:
        x: a blob whose shape broadcasts to that of ``like``, or is the shape of ``like`` without
            ``broadcast_axes``.
        like: a blob of the result's shape.
        broadcast_axes: axes of ``like`` along which ``x`` is repeated; if None, numpy's rules
            apply.

    Returns: A blob of the shape of ``like`` and the type of ``x``.

    >>> run(flow.broadcast_like, [1, 2], [[0, 0], [0, 0]])
    array([[1., 2.],
           [1., 2.]], dtype=float32)
    """
    axes = () if broadcast_axes is None else tuple(broadcast_axes)
    return emit_one("broadcast_like", x, like, broadcast_axes=axes, name=name)


def broadcast_to_compatible_with(
    x: Blob, compatible: Sequence[Blob], name: str | None = None
) -> BlobDef:
    """Repeat ``x`` to the common broadcast shape of ``x`` and all ``compatible`` blobs.

    For example, the common shape of (4, 1, 1), (1, 2, 1) and (1, 1, 3) is (4, 2, 3).

    Args:
        compatible: a list of blobs.

    Returns: A blob of the common shape and the type of ``x``.

    >>> run(lambda x, y: flow.broadcast_to_compatible_with(x, [y]), [1, 2], [[0, 0], [0, 0]])
    array([[1., 2.],
           [1., 2.]], dtype=float32)
    """
    shapes = [x.shape, *(blob.shape for blob in compatible)]
    try:
        shape = broadcast_shapes(*shapes)
    except ValueError as error:
        raise InferenceError.at_caller(
            "flow.broadcast_to_compatible_with",
            found=str(error),
            allowed="shapes that broadcast as in numpy",
        ) from None
    return emit_one("broadcast_to", x, shape=shape, name=name)
