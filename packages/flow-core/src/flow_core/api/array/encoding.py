"""Functions that find distinct values, or number tokens."""

from __future__ import annotations

from flow_core.api.array.initializers import zeros_initializer
from flow_core.base.dtypes import DType, as_dtype, int32
from flow_core.frontend.config.scope import name_scope
from flow_core.frontend.session.variables import get_variable
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit, emit_one

__all__ = [
    "categorical_ordinal_encode", "categorical_ordinal_encoder", "indexed_slices_reduce_sum",
    "unique_with_counts",
]  # fmt: skip


def unique_with_counts(
    x: Blob, out_idx: DType = int32, name: str | None = None
) -> tuple[BlobDef, BlobDef, BlobDef, BlobDef]:
    """Return distinct values of a blob of rank 1, in the order of their first appearance.

    Args:
        x: a blob of shape (n,).
        out_idx: element type of the last three results, int32 or int64.

    Returns: Four blobs: the distinct values (n,), of which the first ``num_unique`` are valid and
        the rest are 0; for each element of ``x``, the index of its value among them (n,); the count
        of each value (n,); and ``num_unique`` (1,).

    >>> results = run(flow.experimental.unique_with_counts, np.array([5, 7, 5]))
    >>> [result.tolist() for result in results]
    [[5, 7, 0], [0, 1, 0], [2, 1, 0], [2]]
    """
    y, idx, count, number = emit("unique_with_counts", x, out_idx=as_dtype(out_idx).name, name=name)
    return y, idx, count, number


def indexed_slices_reduce_sum(
    indices: Blob, values: Blob, name: str | None = None
) -> tuple[BlobDef, BlobDef, BlobDef]:
    """Sum the rows that have the same index.

    Args:
        indices: int32 or int64, shape (n,).
        values: shape (n, ...).

    Returns: Three blobs: the distinct indices (n,) and the sum of the rows of each index (n, ...),
        of both of which the first ``num_unique`` rows are valid and the rest are 0; and
        ``num_unique``, int64 of shape (1,).

    >>> run(
    ...     flow.experimental.indexed_slices_reduce_sum,
    ...     np.int32([1, 4, 1]),
    ...     [[1, 1], [2, 2], [3, 3]],
    ... )
    (array([1, 4, 0], dtype=int32), array([[4., 4.],
           [2., 2.],
           [0., 0.]], dtype=float32), array([2]))
    """
    y_indices, y_values, number = emit("indexed_slices_reduce_sum", indices, values, name=name)
    return y_indices, y_values, number


def categorical_ordinal_encode(
    table: Blob,
    size: Blob,
    input_tensor: Blob,
    hash_precomputed: bool = True,
    name: str | None = None,
) -> BlobDef:
    """Number tokens from 1 in the order of first appearance; token 0 is always 0.

    Args:
        table: a variable of shape (2 * capacity,) that stores tokens and their numbers, initially
            zeros.
        size: a variable of shape (1,) that counts the stored tokens, initially zero.
        input_tensor: tokens, int32 or int64 like both variables; any shape.
        hash_precomputed: must be True: the tokens themselves serve as hashes.

    Raises:
        InferenceError: a type or shape does not fit.
        DataError: at run time, there are more distinct tokens than the table's capacity.
    """
    return emit_one(
        "CategoricalOrdinalEncode",
        table,
        size,
        input_tensor,
        hash_precomputed=hash_precomputed,
        name=name,
    )


def categorical_ordinal_encoder(
    input_tensor: Blob,
    capacity: int,
    hash_precomputed: bool = True,
    name: str = "CategoricalOrdinalEncoder",
) -> BlobDef:
    """Call `categorical_ordinal_encode` with new variables, ``<name>-Table`` and ``<name>-Size``.

    Args:
        input_tensor, hash_precomputed: see `categorical_ordinal_encode`.
        capacity: maximum number of distinct tokens.
        name: name of the op, and first part of the variables' names.

    Returns: The numbers of the tokens, in the shape and element type of ``input_tensor``.

    Raises:
        InferenceError: the tokens are not int32 or int64.
        VariableError: the job already has an encoder of this name.
        DataError: at run time, there are more distinct tokens than ``capacity``.
    """
    with name_scope(name):
        table, size = (
            _memory(kind, n, input_tensor.dtype)
            for kind, n in (("Table", 2 * capacity), ("Size", 1))
        )
        return categorical_ordinal_encode(table, size, input_tensor, hash_precomputed, "Encode")


def _memory(name: str, size: int, dtype: DType) -> BlobDef:
    zeros = zeros_initializer(dtype)
    return get_variable(name, (size,), dtype=dtype, initializer=zeros, trainable=False, reuse=False)
