"""Calls of ``flow.nn`` but for its losses; see `public_math`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import ceil
from typing import Any

import numpy as np
from public_math import Call, as8, f32, gelu, i32, sigmoid

import oneflow as flow

X = f32(4, 3)
SIZES = (1, 2, 5, 6)
IMAGE, LAST = f32(*SIZES), f32(1, 5, 6, 2)
VOLUME = f32(1, 2, 3, 4, 4)
FILTERS, LAST_FILTERS = f32(4, 2, 3, 2), f32(4, 3, 2, 2)
PROBABILITIES, TARGETS = f32(4, 3, low=0.1, high=0.9), as8(i32(4, 3, low=0, high=2)).astype("f4")
LABELS = np.array([0, 2, 1, 1], np.int32)
SLOPES = np.array([0.5, -1.5], np.float32)

Pads = Sequence[tuple[int, int]]


# --- activations

ACTIVATIONS: dict[str, Call] = {
    "nn.relu": (flow.nn.relu, (X,), lambda x: np.maximum(x, 0)),
    "nn.leaky_relu": (flow.nn.leaky_relu, (X,), lambda x: np.where(x > 0, x, 0.2 * x)),
    "nn.elu": (flow.nn.elu, (X,), lambda x: np.where(x > 0, x, np.expm1(x))),
    "nn.elu: alpha": (
        lambda x: flow.nn.elu(x, alpha=0.5),
        (X,),
        lambda x: np.where(x > 0, x, np.expm1(x) / 2),
    ),
    "nn.hardsigmoid": (
        flow.nn.hardsigmoid,
        (X * 3,),
        lambda x: np.clip(x / 6 + 0.5, 0, 1),
    ),
    "nn.hardswish": (flow.nn.hardswish, (X * 3,), lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "nn.hardtanh": (flow.nn.hardtanh, (X,), lambda x: np.clip(x, -1, 1)),
    "nn.hardtanh: bounds": (
        lambda x: flow.nn.hardtanh(x, -1.25, 1.2),
        (X,),
        lambda x: np.clip(x, -1.25, 1.2),
    ),
    "nn.relu6": (flow.nn.relu6, (X * 5,), lambda x: np.clip(x, 0, 6)),
    "nn.mish": (flow.nn.mish, (X,), lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "nn.swish": (flow.nn.swish, (X,), lambda x: x * sigmoid(x)),
    "nn.swish: beta": (lambda x: flow.nn.swish(x, 0.5), (X,), lambda x: x * sigmoid(x / 2)),
}


def softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def softmax_slope(y: Any, dy: Any) -> Any:
    return (dy - (dy * y).sum(1, keepdims=True)) * y


def normal(x: Any, axes: Any, eps: float = 1e-5) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def row_slope(dy: Any, n: Any) -> Any:
    return dy - dy.mean(1, keepdims=True) - n * (dy * n).mean(1, keepdims=True)


def channels(v: Any) -> Any:
    return v.reshape(1, -1, 1, 1)


def bn(x: Any, m: Any, v: Any, b: Any, g: Any) -> Any:
    shift, scale = channels(b), channels(g)
    return (x - channels(m)) / np.sqrt(channels(v) + 1e-5) * scale + shift


VECTORS = (f32(2), f32(2, low=0.5), f32(2), f32(2))

NORMS: dict[str, Call] = {
    "nn.softmax": (flow.nn.softmax, (X,), softmax),
    "nn.softmax: axis 1 of 3": (
        lambda x: flow.nn.softmax(x, axis=1),
        (f32(2, 3, 4),),
        lambda x: softmax(x, 1),
    ),
    "nn.logsoftmax": (flow.nn.logsoftmax, (X,), lambda x: np.log(softmax(x))),
    "nn.softmax_grad": (flow.nn.softmax_grad, (softmax(X), f32(4, 3)), softmax_slope),
    "nn.moments": (
        lambda x: flow.nn.moments(x, [0, 2]),
        (f32(3, 2, 4),),
        lambda x: (x.mean((0, 2)), x.var((0, 2))),
    ),
    "nn.batch_normalization": (
        flow.nn.batch_normalization,
        (IMAGE, *VECTORS),
        bn,
    ),
    "nn.batch_normalization: last axis": (
        lambda x, m, v: flow.nn.batch_normalization(x, m, v, variance_epsilon=0.5, axis=-1),
        (LAST, *VECTORS[:2]),
        lambda x, m, v: (x - m) / np.sqrt(v + 0.5),
    ),
    "nn.layer_norm": (flow.nn.layer_norm, (f32(3, 2, 4),), lambda x: normal(x, (1, 2))),
    "nn.layer_norm: parameters": (
        lambda x, g, b: flow.nn.layer_norm(
            x, g, b, begin_norm_axis=2, begin_params_axis=2, epsilon=0.1
        ),
        (f32(3, 2, 4), f32(4), f32(4)),
        lambda x, g, b: normal(x, 2, 0.1) * g + b,
    ),
    "nn.InstanceNorm1d": (
        lambda x: flow.nn.InstanceNorm1d(x, name="in"),
        (f32(3, 2, 4),),
        lambda x: normal(x, 2),
    ),
    "nn.InstanceNorm2d": (
        lambda x: flow.nn.InstanceNorm2d(x, eps=0.1, affine=False),
        (IMAGE,),
        lambda x: normal(x, (2, 3), 0.1),
    ),
    "nn.InstanceNorm3d": (
        flow.nn.InstanceNorm3d,
        (VOLUME,),
        lambda x: normal(x, (2, 3, 4)),
    ),
    "nn.GroupNorm": (
        lambda x: flow.nn.GroupNorm(x, num_groups=2, affine=True),
        (f32(2, 4, 3, 2),),
        lambda x: normal(x.reshape(2, 2, 12), 2).reshape(x.shape),
    ),
    "nn.bias_add": (flow.nn.bias_add, (IMAGE, f32(2)), lambda x, b: x + channels(b)),
    "nn.bias_add: last": (
        lambda x, b: flow.nn.bias_add(x, b, "NHWC"),
        (LAST, f32(2)),
        lambda x, b: x + b,
    ),
    "nn.dropout": (lambda x: flow.nn.dropout(x, 0.5), (X,), lambda x: x),  # of a predict job
    "nn.fused_bias_add_gelu": (
        flow.nn.fused_bias_add_gelu,
        (IMAGE, SLOPES),
        lambda x, b: gelu(x + channels(b)),
    ),
    "nn.fused_bias_add_dropout": (
        lambda x, b: flow.nn.fused_bias_add_dropout(x, b, "NHWC", rate=0.5),
        (LAST, SLOPES),
        lambda x, b: x + b,
    ),
    "math.fused_scale_tril_softmax_dropout": (
        lambda x: flow.math.fused_scale_tril_softmax_dropout(
            x, fill_value=float("-inf"), scale=2, rate=0.5
        ),
        (X,),
        lambda x: softmax(np.where(np.tri(4, 3), 2 * x, -np.inf)),
    ),
    "nn.PixelShuffle": (
        lambda x: flow.nn.PixelShuffle(x, 2),
        (f32(1, 8, 2, 3),),
        lambda x: x.reshape(1, 2, 2, 2, 2, 3).transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 4, 6),
    ),
    "nn.PixelShufflev2": (
        lambda x: flow.nn.PixelShufflev2(x, 1, 2),
        (f32(2, 4, 2, 2),),
        lambda x: x.reshape(2, 2, 1, 2, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 2, 4),
    ),
}

# --- windows, all written with channels first


def padded(x: Any, pads: Pads, value: float = 0.0) -> Any:
    return np.pad(x, [(0, 0), (0, 0), *pads], constant_values=value)


def places(sizes: Sequence[int], windows: Sequence[int], strides: Sequence[int]) -> Any:
    counts = [(n - w) // s + 1 for n, w, s in zip(sizes, windows, strides, strict=True)]
    return counts, product(*map(range, counts))


def conv(
    x: Any, w: Any, strides: Sequence[int], pads: Pads, dilations: Sequence[int], groups: int = 1
) -> Any:
    x = padded(x, pads)
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    counts, all_places = places(x.shape[2:], reach, strides)
    y = np.zeros((x.shape[0], w.shape[0], *counts))
    each = w.shape[0] // groups
    for at in all_places:
        cut = tuple(
            slice(i * s, i * s + r, d)
            for i, s, r, d in zip(at, strides, reach, dilations, strict=True)
        )
        window = x[(slice(None), slice(None), *cut)]
        for g in range(groups):
            part = window[:, g * w.shape[1] : (g + 1) * w.shape[1]]
            mine = w[g * each : (g + 1) * each]
            axes = tuple(range(1, w.ndim))
            found = np.tensordot(part, mine, (axes, axes))
            y[(slice(None), slice(g * each, (g + 1) * each), *at)] = found
    return y


def pool(
    x: Any, sizes: Sequence[int], strides: Sequence[int], pads: Pads, reduce: Callable[..., Any]
) -> Any:
    x = padded(x, pads, np.nan)
    counts, all_places = places(x.shape[2:], sizes, strides)
    y = np.zeros((*x.shape[:2], *counts))
    for at in all_places:
        cut = tuple(slice(i * s, i * s + k) for i, s, k in zip(at, strides, sizes, strict=True))
        window = x[(slice(None), slice(None), *cut)]
        y[(slice(None), slice(None), *at)] = reduce(window, axis=tuple(range(2, x.ndim)))
    return y


def same(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    lower: bool,
) -> Pads:  # fmt: skip
    pads = []
    for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        need = max(0, (ceil(n / s) - 1) * s + (k - 1) * d + 1 - n)
        small = need // 2
        pads.append((need - small, small) if lower else (small, need - small))
    return pads


def first(x: Any) -> Any:
    return np.moveaxis(x, -1, 1)


def last(x: Any) -> Any:
    return np.moveaxis(x, 1, -1)


NO_PADS = [(0, 0)] * 2
LIST_PADS = [(0, 0), (0, 0), (2, 1), (0, 3)]

CONVS: dict[str, Call] = {
    "nn.conv1d": (
        lambda x, w: flow.nn.conv1d(x, w, 2, "SAME", "NCW", 2),
        (f32(2, 3, 7), f32(4, 3, 3)),
        lambda x, w: conv(x, w, [2], same([7], [3], [2], [2], True), [2]),
    ),
    "nn.conv1d: groups, list": (
        lambda x, w: flow.nn.conv1d(x, w, [1], [[0, 0], [0, 0], [1, 0]], groups=2),
        (f32(2, 4, 5), f32(6, 2, 2)),
        lambda x, w: conv(x, w, [1], [(1, 0)], [1], 2),
    ),
    "nn.conv1d: last": (
        lambda x, w: flow.nn.conv1d(x, w, 1, "VALID", "NWC"),
        (f32(2, 6, 3), f32(4, 2, 3)),
        lambda x, w: last(conv(first(x), first(w), [1], [(0, 0)], [1])),
    ),
    "nn.conv2d: valid": (
        lambda x, w: flow.nn.conv2d(x, w, strides=1, padding="valid"),
        (IMAGE, FILTERS),
        lambda x, w: conv(x, w, [1, 1], NO_PADS, [1, 1]),
    ),
    "nn.conv2d: last, strides": (
        lambda x, w: flow.nn.conv2d(x, w, [1, 2], "SAME_UPPER", "NHWC"),
        (LAST, LAST_FILTERS),
        lambda x, w: last(
            conv(first(x), first(w), [1, 2], same([5, 6], [3, 2], [1, 2], [1, 1], False), [1, 1])
        ),
    ),
    "nn.conv2d: depthwise, list": (
        lambda x, w: flow.nn.conv2d(x, w, 2, LIST_PADS, "NCHW", (1, 2), groups=2),
        (IMAGE, f32(4, 1, 3, 2)),
        lambda x, w: conv(x, w, [2, 2], LIST_PADS[2:], [1, 2], 2),
    ),
    "nn.conv3d": (
        lambda x, w: flow.nn.conv3d(x, w, 1, "SAME"),
        (VOLUME, f32(3, 2, 2, 3, 2)),
        lambda x, w: conv(
            x, w, [1] * 3, same([3, 4, 4], [2, 3, 2], [1] * 3, [1] * 3, True), [1] * 3
        ),
    ),
    "nn.conv3d: last": (
        lambda x, w: flow.nn.conv3d(x, w, (1, 2, 2), "VALID", "NDHWC"),
        (f32(1, 3, 4, 4, 2), f32(3, 2, 2, 2, 2)),
        lambda x, w: last(conv(first(x), first(w), [1, 2, 2], [(0, 0)] * 3, [1] * 3)),
    ),
    "nn.compat_conv2d": (
        lambda x, w: flow.nn.compat_conv2d(x, w, 2, "SAME"),
        (IMAGE, FILTERS),
        lambda x, w: conv(x, w, [2, 2], same([5, 6], [3, 2], [2, 2], [1, 1], False), [1, 1]),
    ),
} | {
    f"nn.conv2d: {padding}, stride {stride}, dilation {dilation}": (
        lambda x, w, a=(stride, padding, "NCHW", dilation): flow.nn.conv2d(x, w, *a),
        (IMAGE, FILTERS),
        lambda x, w, s=[stride] * 2, d=[dilation] * 2, low=padding != "SAME_UPPER": conv(
            x, w, s, same(x.shape[2:], w.shape[2:], s, d, low), d
        ),
    )
    for padding in ("SAME", "SAME_LOWER", "SAME_UPPER")
    for stride, dilation in ((1, 2), (2, 1), (3, 1))
}


def transposed(x: Any, w: Any, strides: Sequence[int], pads: Pads, sizes: Sequence[int]) -> Any:
    """What conv2d_transpose gives: every input element adds its multiple of a filter."""
    (top, _), (left, _) = pads
    y = np.zeros((x.shape[0], w.shape[1], *(n + 20 for n in sizes)))
    for i, j in product(*map(range, x.shape[2:])):
        a, b = i * strides[0], j * strides[1]
        y[:, :, a : a + w.shape[2], b : b + w.shape[3]] += np.einsum(
            "nc,cohw->nohw", x[:, :, i, j], w
        )
    return y[:, :, top : top + sizes[0], left : left + sizes[1]]


CONVS |= {
    "nn.conv2d_transpose": (
        lambda x, w: flow.nn.conv2d_transpose(x, w, (1, 3, 11, 13), 2, "VALID"),
        (IMAGE, f32(2, 3, 3, 3)),
        lambda x, w: transposed(x, w, [2, 2], NO_PADS, [11, 13]),
    ),
    "nn.conv2d_transpose: space at the end": (
        lambda x, w: flow.nn.conv2d_transpose(
            input=x, filters=w, output_shape=[1, 3, 12, 14], strides=[2, 2], padding="VALID"
        ),
        (IMAGE, f32(2, 3, 3, 3)),
        lambda x, w: transposed(x, w, [2, 2], NO_PADS, [12, 14]),
    ),
    "nn.conv2d_transpose: same": (
        lambda x, w: flow.nn.conv2d_transpose(x, w, (1, 3, 10, 12), 2, "SAME"),
        (IMAGE, f32(2, 3, 4, 4)),
        lambda x, w: transposed(x, w, [2, 2], [(1, 1), (1, 1)], [10, 12]),
    ),
    "nn.conv2d_transpose: same, odd padding": (
        lambda x, w: flow.nn.conv2d_transpose(x, w, (1, 3, 10, 12), 2, "SAME"),
        (IMAGE, f32(2, 3, 3, 3)),
        lambda x, w: transposed(x, w, [2, 2], [(0, 1), (0, 1)], [10, 12]),
    ),
    "nn.conv2d_transpose: last": (
        lambda x, w: flow.nn.conv2d_transpose(x, w, (1, 7, 8, 3), 1, "VALID", "NHWC"),
        (LAST, f32(2, 3, 3, 3)),
        lambda x, w: last(transposed(first(x), first(w), [1, 1], NO_PADS, [7, 8])),
    ),
    "nn.torch_conv2d_transpose": (
        lambda x, w: flow.nn.torch_conv2d_transpose(x, w, (1, 0), 2, (2, 0)),
        (IMAGE, f32(2, 3, 3, 3)),
        lambda x, w: transposed(x, w, [2, 2], [(1, 1), (0, 0)], [10, 13]),
    ),
}

REDUCERS = {"max": np.nanmax, "avg": np.nanmean}

POOLS: dict[str, Call] = {
    f"nn.{name}_pool2d: {padding}, {sizes}": (
        lambda x, a=(sizes, 2, padding), f=f"{name}_pool2d": getattr(flow.nn, f)(x, *a),
        (IMAGE,),
        lambda x, k=sizes, p=padding, r=reduce: pool(
            x,
            k,
            [2, 2],
            NO_PADS if p == "VALID" else same(x.shape[2:], k, [2, 2], [1, 1], p != "SAME_UPPER"),
            r,
        ),
    )
    for name, reduce in REDUCERS.items()
    for padding in ("VALID", "SAME", "SAME_UPPER", "SAME_LOWER")
    for sizes in ((2, 2), (3, 2))
}
POOLS |= {
    f"nn.{name}_pool1d": (
        lambda x, f=f"{name}_pool1d": getattr(flow.nn, f)(x, 3, 2, "VALID", "NCW"),
        (f32(2, 3, 7),),
        lambda x, r=reduce: pool(x, [3], [2], [(0, 0)], r),
    )
    for name, reduce in REDUCERS.items()
}
POOLS |= {
    f"nn.{name}_pool2d: list, ceil_mode {ceil_mode}": (
        lambda x, f=f"{name}_pool2d", c=ceil_mode: getattr(flow.nn, f)(
            x, 3, 2, [(0, 0), (0, 0), (1, 1), (1, 0)], "NCHW", c
        ),
        (f32(1, 2, 6, 6),),
        lambda x, r=reduce, c=ceil_mode: pool(x, [3, 3], [2, 2], [(1, 1 + c), (1, c)], r),
    )
    for name, reduce in REDUCERS.items()
    for ceil_mode in (False, True)
}
POOLS |= {
    f"nn.{name}_pool2d: last": (
        lambda x, f=f"{name}_pool2d": getattr(flow.nn, f)(x, [2, 3], [1, 2], "SAME", "NHWC"),
        (LAST,),
        lambda x, r=reduce: last(
            pool(first(x), [2, 3], [1, 2], same([5, 6], [2, 3], [1, 2], [1, 1], True), r)
        ),
    )
    for name, reduce in REDUCERS.items()
}
POOLS |= {
    f"nn.{name}_pool3d: {form}": (
        lambda x, f=f"{name}_pool3d", form=form: getattr(flow.nn, f)(
            x, 2, (1, 2, 2), "VALID", form
        ),
        (VOLUME if form == "NCDHW" else last(VOLUME).copy(),),
        lambda x, r=reduce, form=form: (
            pool(x, [2] * 3, [1, 2, 2], [(0, 0)] * 3, r)
            if form == "NCDHW"
            else last(pool(first(x), [2] * 3, [1, 2, 2], [(0, 0)] * 3, r))
        ),
    )
    for name, reduce in REDUCERS.items()
    for form in ("NCDHW", "NDHWC")
}

CALLS: dict[str, Call] = {**ACTIVATIONS, **NORMS, **CONVS, **POOLS}
