"""Functions of ``flow.math`` that choose, order or count elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from flow_core.api.math_unary import one
from flow_core.dtypes import DType, as_dtype, int32
from flow_core.errors import InferenceError, user_line
from flow_core.frontend.blob import BlobDef
from flow_core.frontend.emit import emit
from flow_core.shapes import broadcast_shapes, normal_axis

__all__ = [
    "argmax",
    "broadcast_to_compatible_with",
    "fused_scale_tril",
    "in_top_k",
    "l2_normalize",
    "reduced_shape_elem_cnt",
    "top_k",
    "tril",
    "unsorted_batch_segment_sum",
    "unsorted_segment_sum",
    "unsorted_segment_sum_like",
]


def _inner(name: str | None, step: str) -> str | None:
    return None if name is None else f"{name}_{step}"


def _axis(x: BlobDef, axis: Any, function: str) -> int:
    rank = len(x.shape)
    try:
        return normal_axis(axis, rank)
    except (TypeError, ValueError) as error:
        raise InferenceError(
            f"flow.math.{function}",
            at=user_line(),
            found=f"axis={axis!r} for shape {x.shape}",
            allowed=f"an axis from -{rank} to {rank - 1}",
        ) from error


def _axis_last(x: BlobDef, axis: int, name: str | None) -> tuple[BlobDef, tuple[int, ...]]:
    """``x`` with an axis moved to the end, and the permutation that did it."""
    rank = len(x.shape)
    perm = (*(i for i in range(rank) if i != axis), axis)
    if axis == rank - 1:
        return x, perm
    return one("transpose", x, perm=perm, name=_inner(name, "transpose")), perm


def argmax(input: BlobDef, axis: int = -1, name: str | None = None) -> BlobDef:
    """The index of the greatest element along an axis, which vanishes; int32.

    Raises:
        InferenceError: the axis is out of range.
    """
    moved, _ = _axis_last(input, _axis(input, axis, "argmax"), name)
    return one("argmax", moved, name=name)


def top_k(
    input: BlobDef,
    axis: int = -1,
    k: int = 1,
    sorted: bool = True,
    name: str | None = None,
) -> BlobDef:
    """The indices of the ``k`` greatest elements along an axis, greatest first; int32.

    Raises:
        InferenceError: the axis is out of range, or ``k`` is not within its size.
    """
    axis = _axis(input, axis, "top_k")
    moved, perm = _axis_last(input, axis, name)
    if moved is input:
        return one("top_k", input, k=int(k), sorted=bool(sorted), name=name)
    found = one("top_k", moved, k=int(k), sorted=bool(sorted), name=_inner(name, "top_k"))
    back = tuple(perm.index(i) for i in range(len(perm)))
    return one("transpose", found, perm=back, name=name)


def in_top_k(
    targets: BlobDef, predictions: BlobDef, k: int | None, name: str | None = None
) -> BlobDef:
    """1 where the target class is among the ``k`` greatest predictions of its row; int8."""
    return one("in_top_k", targets, predictions, k=k, name=name)


def l2_normalize(
    input: BlobDef,
    axis: int | None = None,
    epsilon: float = 1e-12,
    name: str | None = None,
) -> BlobDef:
    """``input`` divided by its Euclidean norm along an axis, or by the root of ``epsilon``.

    Raises:
        InferenceError: no axis, or one out of range.
    """
    where = _axis(input, axis, "l2_normalize")
    y: BlobDef = emit("l2_normalize", input, axis=where, epsilon=float(epsilon), name=name)[0]
    return y


def reduced_shape_elem_cnt(
    input_blob: BlobDef,
    axis: Sequence[int] | None = None,
    dtype: DType | None = None,
    name: str | None = None,
) -> BlobDef:
    """How many elements a reduction over some axes (None: all) reads per result; shape (1,)."""
    shape = input_blob.shape
    axes = range(len(shape)) if axis is None else axis
    count = prod(shape[_axis(input_blob, a, "reduced_shape_elem_cnt")] for a in axes)
    target = int32 if dtype is None else as_dtype(dtype)
    value = float(count) if target.is_floating else count
    return one("constant", value=value, dtype=target.name, shape=(1,), name=name)


def broadcast_to_compatible_with(
    x: BlobDef, compatible: Sequence[BlobDef], name: str | None = None
) -> BlobDef:
    """``x`` repeated to the shape that it and the other blobs broadcast to.

    Raises:
        InferenceError: the shapes do not broadcast.
    """
    try:
        shape = broadcast_shapes(x.shape, *(other.shape for other in compatible))
    except ValueError as error:
        raise InferenceError(
            "flow.broadcast_to_compatible_with",
            at=user_line(),
            found=str(error),
            allowed="shapes that broadcast as numpy's do",
        ) from error
    return one("broadcast_to", x, shape=shape, name=name)


def _number(kind: str, value: float) -> dict[str, Any]:
    """A number in the attributes that ops have for one of either kind."""
    floating = isinstance(value, float)
    return {
        f"is_floating_{kind}_value": floating,
        f"floating_{kind}_value": float(value) if floating else 0.0,
        f"integer_{kind}_value": 0 if floating else int(value),
    }


def tril(x: BlobDef, diagonal: int = 0, fill_value: float = 0, name: str | None = None) -> BlobDef:
    """The lower triangles of the last two axes, with ``fill_value`` above a diagonal."""
    return one("tril", x, diagonal=int(diagonal), name=name, **_number("fill", fill_value))


def fused_scale_tril(
    x: BlobDef,
    diagonal: int = 0,
    fill_value: float = 0,
    scale: float = 1,
    name: str | None = None,
) -> BlobDef:
    """`tril` of ``x`` times ``scale``, in one op; ``fill_value`` is not scaled."""
    numbers = {**_number("fill", fill_value), **_number("scale", scale)}
    return one("fused_scale_tril", x, diagonal=int(diagonal), name=name, **numbers)


def unsorted_segment_sum(
    data: BlobDef, segment_ids: BlobDef, num_segments: int, axis: int = 0, name: str | None = None
) -> BlobDef:
    """Slices of ``data`` along an axis, summed by the segment that ``segment_ids`` gives them.

    Args:
        data: any shape.
        segment_ids: integers; their shape is that of ``data`` from ``axis`` on, or a part of it.
        num_segments: size of the result along ``axis``.
        axis: where the segments are.
        name: name of the op.
    """
    attrs = {"axis": int(axis), "num_segments": int(num_segments)}
    return one("unsorted_segment_sum", data, segment_ids, name=name, **attrs)


def unsorted_segment_sum_like(
    data: BlobDef, segment_ids: BlobDef, like: BlobDef, axis: int = 0, name: str | None = None
) -> BlobDef:
    """`unsorted_segment_sum` with a result of the shape of ``like``."""
    return one("unsorted_segment_sum_like", data, segment_ids, like, axis=int(axis), name=name)


def unsorted_batch_segment_sum(
    data: BlobDef, segment_ids: BlobDef, num_segments: int, name: str | None = None
) -> BlobDef:
    """`unsorted_segment_sum` in each row of a batch, with segment numbers of its own."""
    return one(
        "unsorted_batch_segment_sum", data, segment_ids, num_segments=int(num_segments), name=name
    )
