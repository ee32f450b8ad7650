"""Functions that later releases of OneFlow added for transformers: several operations in one call;
and ranges of ops to profile.

Each function emits a sequence of other ops; passes fuse these ops where that is faster.

Args:
    labels: class numbers in [0, classes); int32, int64 or int8 of shape (...) or (..., 1).
    logits: a floating-point blob of shape (..., classes).
    value: a blob with a channel axis.
    bias: a blob of shape (channels,) and of the element type of ``value``.
    data_format: "NC..." (channels on axis 1, also the default) or "N...C" (on the last).
    diagonal: the highest diagonal that is kept: 0 for the main diagonal.
    fill_value: the number above this diagonal.
    scale: the factor of ``x``.
    rate: fraction of elements to drop, in [0, 1).
    noise_shape: not supported, as in OneFlow.
    seed: seed of this op, or None for the default.
    mark_prefix: the name of the range.
    name: name of the last op.

Returns: A blob of the shape and type of the first argument.
"""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.api.array.select import slice_v2
from flow_core.api.array.shape import identity, reshape, transpose
from flow_core.api.array.source import fused_scale_tril
from flow_core.api.math.linalg import matmul
from flow_core.api.math.unary import gelu
from flow_core.api.nn.basic import bias_add, dropout, softmax
from flow_core.api.nn.common import check
from flow_core.api.nn.losses import sparse_softmax_cross_entropy_with_logits
from flow_core.frontend.trace.blob import Blob, BlobDef

__all__ = [
    "distributed_sparse_softmax_cross_entropy_with_logits", "fused_bias_add_dropout",
    "fused_bias_add_gelu", "fused_scale_tril_softmax_dropout",
    "fused_self_attention_query_mul_key_and_value", "nvtx_end", "nvtx_start",
]  # fmt: skip

ALL = (None, None, None)
"""A slice of a whole axis."""


def distributed_sparse_softmax_cross_entropy_with_logits(
    labels: Blob, logits: Blob, name: str | None = None
) -> BlobDef:
    """Call `sparse_softmax_cross_entropy_with_logits`, which also takes logits split by class.

    Returns: A blob with one number per example.

    >>> run(
    ...     flow.nn.distributed_sparse_softmax_cross_entropy_with_logits,
    ...     np.int32([0, 2]),
    ...     [[2, 0, 0], [0, 0, 2]],
    ... ).round(4)
    array([0.2395, 0.2395], dtype=float32)
    """
    return sparse_softmax_cross_entropy_with_logits(labels, logits, name)


def fused_bias_add_gelu(
    value: Blob, bias: Blob, data_format: str | None = None, name: str | None = None
) -> BlobDef:
    """Return ``gelu(bias_add(value, bias))``.

    >>> run(flow.nn.fused_bias_add_gelu, [[0, 1]], [0, 1]).round(4)
    array([[0.    , 1.9545]], dtype=float32)
    """
    return gelu(bias_add(value, bias, data_format), name)


def fused_bias_add_dropout(
    value: Blob,
    bias: Blob,
    data_format: str | None = None,
    rate: float = 0.0,
    noise_shape: Sequence[int] | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> BlobDef:
    """Return ``dropout(bias_add(value, bias), rate)``.

    >>> run(flow.nn.fused_bias_add_dropout, [[0, 1]], [0, 1], rate=0.0)
    array([[0., 2.]], dtype=float32)
    """
    return dropout(bias_add(value, bias, data_format), rate, noise_shape, seed, name)


def fused_scale_tril_softmax_dropout(
    x: Blob,
    diagonal: int = 0,
    fill_value: int | float = 0,
    scale: int | float = 1,
    rate: float = 0.0,
    noise_shape: Sequence[int] | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> BlobDef:
    """Return ``dropout(softmax(fused_scale_tril(x)), rate)``, the weights of causal attention.

    Args:
        x: floating-point attention scores, with the keys on the last axis.

    Returns: A blob of the shape and type of ``x``.

    >>> run(
    ...     flow.math.fused_scale_tril_softmax_dropout, [[[1, 1], [1, 1]]], fill_value=float("-inf")
    ... )
    array([[[1. , 0. ],
            [0.5, 0.5]]], dtype=float32)
    """
    weights = softmax(fused_scale_tril(x, diagonal, fill_value, scale))
    return dropout(weights, rate, noise_shape, seed, name)


def fused_self_attention_query_mul_key_and_value(
    x: Blob, head_size: int, alpha: float = 1.0, name: str | None = None
) -> tuple[BlobDef, BlobDef]:
    """Return the scores of self-attention, and the values, of fused projections.

    Args:
        x: projections (time, batch, heads * 3 * head_size): for each head, the query, the key and
            the value.
        head_size: the size of each of these vectors.
        alpha: a factor of the scores.
        name: name of the product of queries and keys.

    Returns: ``alpha * query @ key.T`` (batch, heads, time, time), and the values (batch, heads,
        time, head_size).
    """
    function, shape = "fused_self_attention_query_mul_key_and_value", x.shape
    fits = len(shape) == 3 and head_size > 0 and shape[2] % (3 * head_size) == 0
    allowed = "3 axes, of which the last is a multiple of 3 * head_size"
    check(fits, function, f"shape {shape} with head_size={head_size}", allowed)
    heads = reshape(x, (*shape[:2], shape[2] // (3 * head_size), 3 * head_size))
    query, key, value = (
        transpose(
            slice_v2(heads, [ALL, ALL, ALL, (i * head_size, (i + 1) * head_size, 1)]), (1, 2, 0, 3)
        )
        for i in range(3)
    )
    scores = matmul(query, key, transpose_b=True, alpha=float(alpha), name=name)
    return scores, value


def nvtx_start(x: Blob, mark_prefix: str, name: str | None = None) -> BlobDef:
    """Return ``x``, in an op that marks the start of a range in measured timelines.

    Args:
        name: name of the op; by default, ``mark_prefix`` and "_start".

    >>> run(flow.profiler.nvtx_start, [1, 2], "block")
    array([1., 2.], dtype=float32)
    """
    return identity(x, name or f"{mark_prefix}_start")


def nvtx_end(x: Blob, mark_prefix: str, name: str | None = None) -> BlobDef:
    """Return ``x``, in an op that marks the end of a range; see `nvtx_start`.

    >>> run(flow.profiler.nvtx_end, [1, 2], "block")
    array([1., 2.], dtype=float32)
    """
    return identity(x, name or f"{mark_prefix}_end")
