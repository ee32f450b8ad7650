"""Functions that later releases of OneFlow added for transformers: several operations in one call.

Each function emits a sequence of other ops; passes fuse these ops where that is faster.
"""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.api.array.source import fused_scale_tril
from flow_core.api.math.unary import gelu
from flow_core.api.nn.basic import bias_add, dropout, softmax
from flow_core.api.nn.losses import sparse_softmax_cross_entropy_with_logits
from flow_core.frontend.trace.blob import Blob, BlobDef

__all__ = [
    "distributed_sparse_softmax_cross_entropy_with_logits",
    "fused_bias_add_dropout",
    "fused_bias_add_gelu",
    "fused_scale_tril_softmax_dropout",
]


def distributed_sparse_softmax_cross_entropy_with_logits(
    labels: Blob, logits: Blob, name: str | None = None
) -> BlobDef:
    """Call `sparse_softmax_cross_entropy_with_logits`, which also takes logits split by class.

    Args:
        labels, logits, name: see `sparse_softmax_cross_entropy_with_logits`.
    """
    return sparse_softmax_cross_entropy_with_logits(labels, logits, name)


def fused_bias_add_gelu(
    value: Blob, bias: Blob, data_format: str | None = None, name: str | None = None
) -> BlobDef:
    """Return ``gelu(bias_add(value, bias))``.

    Args:
        value, bias, data_format: see `bias_add`.
        name: name of the last op.
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

    Args:
        value, bias, data_format: see `bias_add`.
        rate, noise_shape, seed: see `dropout`.
        name: name of the last op.
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
        diagonal, fill_value, scale: see `fused_scale_tril`.
        rate, noise_shape, seed: see `dropout`.
        name: name of the last op.
    """
    weights = softmax(fused_scale_tril(x, diagonal, fill_value, scale))
    return dropout(weights, rate, noise_shape, seed, name)
