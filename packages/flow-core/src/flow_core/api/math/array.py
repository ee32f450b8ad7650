"""Functions of ``flow.math`` that choose, order or count elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from flow_core.api.arguments import checked_axis, checker
from flow_core.api.array.index import (
    argmax,
    in_top_k,
    top_k,
    unsorted_batch_segment_sum,
    unsorted_segment_sum,
    unsorted_segment_sum_like,
)
from flow_core.api.array.shape import broadcast_to_compatible_with
from flow_core.api.array.source import fused_scale_tril, tril
from flow_core.base.dtypes import DType, as_dtype, int32
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit, emit_one

__all__ = [
    "argmax", "broadcast_to_compatible_with", "fused_scale_tril", "in_top_k", "l2_normalize",
    "reduced_shape_elem_cnt", "top_k", "tril", "unsorted_batch_segment_sum",
    "unsorted_segment_sum", "unsorted_segment_sum_like",
]  # fmt: skip


_check = checker("flow.math.")


def l2_normalize(
    input: Blob, axis: int | None = None, epsilon: float = 1e-12, name: str | None = None
) -> BlobDef:
    """Return ``input`` divided by the larger of its Euclidean norm along an axis and
    sqrt(``epsilon``).

    Args:
        input: a floating-point blob.
        axis: the axis of the norm.
        epsilon: a lower bound on the squared norm.

    Returns: A blob of the shape and type of ``input``.

    Raises: InferenceError: the axis is missing or out of range.

    >>> run(flow.math.l2_normalize, [[3, 4], [0, 2]], axis=1)
    array([[0.6, 0.8],
           [0. , 1. ]], dtype=float32)
    """
    where = checked_axis(_check, "l2_normalize", input, axis)
    y: BlobDef = emit("l2_normalize", input, axis=where, epsilon=float(epsilon), name=name)[0]
    return y


def reduced_shape_elem_cnt(
    input_blob: Blob,
    axis: Sequence[int] | None = None,
    dtype: DType | None = None,
    name: str | None = None,
) -> BlobDef:
    """Return how many elements each result of a reduction (axes None: all) combines; shape (1,).

    Args:
        input_blob: a blob.
        axis: an axis, a list of axes, or None for all axes.
        dtype: element type of the result.

    Returns: A blob of shape (1,).

    >>> run(lambda x: flow.math.reduced_shape_elem_cnt(x, [1]), [[1, 2, 3], [4, 5, 6]])
    array([3], dtype=int32)
    """
    shape = input_blob.shape
    axes = range(len(shape)) if axis is None else axis
    count = prod(shape[checked_axis(_check, "reduced_shape_elem_cnt", input_blob, a)] for a in axes)
    target = int32 if dtype is None else as_dtype(dtype)
    value = float(count) if target.is_floating else count
    return emit_one("constant", value=value, dtype=target.name, shape=(1,), name=name)
