"""NumPy implementations of cuDNN graph nodes, for tensors (batch, channels, ...).

The implementations are independent of the op references: convolutions are products of unfolded
windows, and the gradient with respect to the input is a convolution of the dilated output gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from cuda_simulator.cudnn_tensors import FakeNode
from flow_core.base.arrays import Array

Ints = tuple[int, ...]
Arrays = Mapping[str, Array]


def window_sizes(x: Ints, w: Ints, node: FakeNode) -> Ints:
    """Return the spatial output sizes of a convolution."""
    columns = zip(
        x[2:], w[2:], node.params["stride"], node.params["dilation"], node.params["pre_padding"],
        node.params["post_padding"], strict=True,
    )  # fmt: skip
    return tuple((n + a + b - (k - 1) * d - 1) // s + 1 for n, k, s, d, a, b in columns)


def _columns(x: Array, kernel: Ints, out: Ints, stride: Ints, dilation: Ints, groups: int) -> Array:
    """Unfold the windows of a padded tensor.

    The axes of the result are batch, groups, positions, and channels with window elements.
    """
    n, channels, *_ = x.shape
    axes = zip(x.strides[2:], stride, strict=True), zip(x.strides[2:], dilation, strict=True)
    steps = tuple(tuple(a * b for a, b in rows) for rows in axes)
    shape = (n, groups, channels // groups, *out, *kernel)
    per_group = x.strides[1] * (channels // groups)
    strides = (x.strides[0], per_group, x.strides[1], *steps[0], *steps[1])
    windows = np.lib.stride_tricks.as_strided(x, shape, strides)
    rank = len(out)
    order = (0, 1, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank))
    taps = channels // groups * prod(kernel)
    return windows.transpose(order).reshape(n, groups, prod(out), taps)


def _padded(x: Array, node: FakeNode) -> Array:
    pads = zip(node.params["pre_padding"], node.params["post_padding"], strict=True)
    return np.pad(x, ((0, 0), (0, 0), *pads))


def conv_fprop(node: FakeNode, t: Arrays, out: Ints) -> Array:
    """Compute a convolution."""
    x, w = t["image"], t["weight"]
    groups = x.shape[1] // w.shape[1]
    stride, dilation = node.params["stride"], node.params["dilation"]
    rows = _columns(_padded(x, node), w.shape[2:], out[2:], stride, dilation, groups)
    filters = w.reshape(groups, w.shape[0] // groups, -1)
    y = rows @ filters.swapaxes(1, 2)
    return y.swapaxes(2, 3).reshape(out)


def conv_wgrad(node: FakeNode, t: Arrays, out: Ints) -> Any:
    """Compute the gradient with respect to the weights."""
    x, dy = t["image"], t["loss"]
    groups = x.shape[1] // out[1]
    stride, dilation = node.params["stride"], node.params["dilation"]
    rows = _columns(_padded(x, node), out[2:], dy.shape[2:], stride, dilation, groups)
    grads = dy.reshape(len(dy), groups, dy.shape[1] // groups, -1)
    return (grads @ rows).sum(0).reshape(out)


def conv_dgrad(node: FakeNode, t: Arrays, out: Ints) -> Array:
    """Compute the input gradient.

    It is the convolution of the output gradient, dilated by the stride, with the reversed weights.
    """
    dy, w = t["loss"], t["filter"]
    stride, dilation = node.params["stride"], node.params["dilation"]
    rank, groups = len(stride), out[1] // w.shape[1]
    wide: Any = np.zeros(
        (*dy.shape[:2], *((n - 1) * s + 1 for n, s in zip(dy.shape[2:], stride, strict=True))),
        dy.dtype,
    )
    wide[(..., *(slice(None, None, s) for s in stride))] = dy
    pads = []
    for i in range(rank):
        before = (w.shape[2 + i] - 1) * dilation[i] - node.params["pre_padding"][i]
        after = out[2 + i] + (w.shape[2 + i] - 1) * dilation[i] - wide.shape[2 + i] - before
        pads.append((before, after))
    grown = np.pad(wide, ((0, 0), (0, 0), *((max(a, 0), max(b, 0)) for a, b in pads)))
    cut = (slice(max(-a, 0), grown.shape[2 + i] - max(-b, 0)) for i, (a, b) in enumerate(pads))
    grown = grown[(slice(None), slice(None), *cut)]
    grouped = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    flipped = np.flip(grouped, tuple(range(-rank, 0))).swapaxes(1, 2)
    rows = _columns(grown, w.shape[2:], out[2:], (1,) * rank, dilation, groups)
    filters = flipped.reshape(groups, w.shape[1], -1)
    return (rows @ filters.swapaxes(1, 2)).swapaxes(2, 3).reshape(out)


def bias(node: FakeNode, t: Arrays, out: Ints) -> Array:
    """Add one element per channel."""
    return t["input"] + t["bias"]


def relu(node: FakeNode, t: Arrays, out: Ints) -> Array:
    """Compute a ReLU."""
    return np.maximum(t["input"], 0)


def _probabilities(node: FakeNode, t: Arrays) -> tuple[Array, Array]:
    """Return the softmax of the scores, and the log-sum-exp of each row."""
    value = np.einsum("bhsd,bhtd->bhst", t["q"], t["k"]) * node.params["attn_scale"]
    value = value + t["bias"] if "bias" in t else value
    stats = np.logaddexp.reduce(value, -1, keepdims=True)
    return np.exp(value - stats), stats


def sdpa(node: FakeNode, t: Arrays, out: Ints) -> tuple[Array, Array]:
    """Compute attention and the log-sum-exp."""
    weights, stats = _probabilities(node, t)
    return np.einsum("bhst,bhtd->bhsd", weights, t["v"]), stats


def sdpa_backward(node: FakeNode, t: Arrays, out: Ints) -> tuple[Array, Array, Array]:
    """Compute the gradients of attention from the saved log-sum-exp."""
    value = np.einsum("bhsd,bhtd->bhst", t["q"], t["k"]) * node.params["attn_scale"]
    weights = np.exp((value + t["bias"] if "bias" in t else value) - t["stats"])
    inner = np.einsum("bhsd,bhsd->bhs", t["o"], t["dO"])[..., None]
    slope = weights * (np.einsum("bhsd,bhtd->bhst", t["dO"], t["v"]) - inner)
    slope = slope * node.params["attn_scale"]
    dv = np.einsum("bhst,bhsd->bhtd", weights, t["dO"])
    dq = np.einsum("bhst,bhtd->bhsd", slope, t["k"])
    return dq, np.einsum("bhst,bhsd->bhtd", slope, t["q"]), dv


def add(node: FakeNode, t: Arrays, out: Ints) -> Array:
    """Add two tensors."""
    return t["a"] + t["b"]


def _per_channel(x: Array) -> Array:
    """Return one row per channel."""
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def batchnorm(node: FakeNode, t: Arrays, out: Ints) -> tuple[Array, ...]:
    """Compute batch normalization, the batch's statistics, and new moving statistics.

    The moving variance takes the unbiased variance of the batch.
    """
    rows, shape = _per_channel(t["input"]), t["scale"].shape
    mean, spread = rows.mean(1).reshape(shape), rows.var(1).reshape(shape)
    inverse = (spread + t["epsilon"]) ** -0.5
    y = (t["input"] - mean) * inverse * t["scale"] + t["bias"]
    count, takes = rows.shape[1], t["momentum"]
    moved = (
        (1 - takes) * t["in_running_mean"] + takes * mean,
        (1 - takes) * t["in_running_var"] + takes * spread * count / max(count - 1, 1),
    )
    return y, mean, inverse, *moved


def batchnorm_backward(node: FakeNode, t: Arrays, out: Ints) -> tuple[Array, ...]:
    """Compute the gradients of batch normalization."""
    shape = t["scale"].shape
    normal = (t["input"] - t["mean"]) * t["inv_variance"]
    dscale, dbias = (_per_channel(g).sum(1).reshape(shape) for g in (t["grad"] * normal, t["grad"]))
    count = t["input"].size // t["scale"].size
    rest = t["grad"] - dbias / count - normal * (dscale / count)
    return rest * t["scale"] * t["inv_variance"], dscale, dbias


NODES: Mapping[str, Callable[[FakeNode, Arrays, Ints], Array | tuple[Array, ...]]] = {
    "conv_fprop": conv_fprop,
    "conv_dgrad": conv_dgrad,
    "conv_wgrad": conv_wgrad,
    "bias": bias,
    "relu": relu,
    "add": add,
    "batchnorm": batchnorm,
    "batchnorm_backward": batchnorm_backward,
    "sdpa": sdpa,
    "sdpa_backward": sdpa_backward,
}
