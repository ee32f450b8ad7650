"""Calls of losses and of ``flow.layers``; see `public_math`.

Layers' variables are given initial values, so that numpy knows them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from public_math import Call, f32
from public_nn import (
    IMAGE,
    LABELS,
    LAST,
    NO_PADS,
    PROBABILITIES,
    SIZES,
    TARGETS,
    VOLUME,
    X,
    conv,
    first,
    last,
    normal,
    row_slope,
    same,
    softmax,
)

import oneflow as flow

# --- losses


def whole(reduction: str) -> Callable[[Any], Any]:
    return {"none": lambda x: x, "mean": np.mean, "sum": np.sum}[reduction]


def bce(p: Any, t: Any) -> Any:
    return -(t * np.log(p) + (1 - t) * np.log(1 - p))


def logits_bce(x: Any, t: Any, positive: Any = 1.0) -> Any:
    return (1 - t) * x + ((positive - 1) * t + 1) * np.logaddexp(-x, 0)


def triplet(a: Any, p: Any, n: Any, degree: float = 2.0) -> Any:
    def distance(b: Any) -> Any:
        return (np.abs(a - b + 1e-6) ** degree).sum(1) ** (1 / degree)

    return np.maximum(distance(p) - distance(n) + 1, 0)


def divergence(x: Any, t: Any) -> Any:
    return np.where(t > 0, t * (np.log(np.where(t > 0, t, 1)) - x), 0)


PAIRS: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {
    "L1Loss": ((X, PROBABILITIES), lambda x, t: np.abs(x - t)),
    "MSELoss": ((X, PROBABILITIES), lambda x, t: (x - t) ** 2),
    "BCELoss": ((PROBABILITIES, TARGETS), bce),
    "KLDivLoss": ((X, PROBABILITIES), divergence),
    "MarginRankingLoss": (
        (X, f32(4, 3), np.sign(f32(4, 3))),
        lambda a, b, t: np.maximum(-t * (a - b), 0),
    ),
    "TripletMarginLoss": ((X, f32(4, 3), f32(4, 3)), triplet),
}
LOSSES: dict[str, Call] = {
    f"nn.{name}: {reduction}": (
        lambda *xs, f=name, r=reduction: getattr(flow.nn, f)(*xs, reduction=r),
        arrays,
        lambda *xs, f=wanted, r=reduction: np.atleast_1d(whole(r)(f(*xs))),
    )
    for name, (arrays, wanted) in PAIRS.items()
    for reduction in ("none", "mean", "sum")
}
LOSSES |= {
    "nn.BCELoss: weight": (
        lambda p, t, w: flow.nn.BCELoss(p, t, w),
        (PROBABILITIES, TARGETS, f32(4, 3)),
        lambda p, t, w: np.atleast_1d((w * bce(p, t)).mean()),
    ),
    "nn.BCEWithLogitsLoss": (
        lambda x, t: flow.nn.BCEWithLogitsLoss(x, t, reduction="none"),
        (X * 20, TARGETS),
        logits_bce,
    ),
    "nn.BCEWithLogitsLoss: weights": (
        lambda x, t, w, p: flow.nn.BCEWithLogitsLoss(x, t, w, p),
        (X, TARGETS, f32(4, 3), f32(3)),
        lambda x, t, w, p: np.atleast_1d((w * logits_bce(x, t, p)).mean()),
    ),
    "nn.KLDivLoss: log_target, zeros": (
        lambda x, t: flow.nn.KLDivLoss(x, t, log_target=True, reduction="none"),
        (X, f32(4, 3)),
        lambda x, t: np.exp(t) * (t - x),
    ),
    "nn.KLDivLoss: zeros": (
        lambda x, t: flow.nn.KLDivLoss(x, t, reduction="none"),
        (X, TARGETS),
        divergence,
    ),
    "nn.TripletMarginLoss: p": (
        lambda a, p, n: flow.nn.TripletMarginLoss(a, p, n, p=3.0, reduction="none"),
        (X, f32(4, 3), f32(4, 3)),
        lambda a, p, n: triplet(a, p, n, 3.0),
    ),
    "nn.MarginRankingLoss: margin": (
        lambda a, b, t: flow.nn.MarginRankingLoss(a, b, t, 0.5, "none"),
        (X, f32(4, 3), np.sign(f32(4, 3))),
        lambda a, b, t: np.maximum(-t * (a - b) + 0.5, 0),
    ),
    "nn.sparse_cross_entropy": (
        flow.nn.sparse_cross_entropy,
        (LABELS, softmax(X)),
        lambda i, p: -np.log(p[np.arange(4), i]),
    ),
    "nn.sparse_softmax_cross_entropy_with_logits": (
        flow.nn.sparse_softmax_cross_entropy_with_logits,
        (LABELS, X),
        lambda i, x: -np.log(softmax(x)[np.arange(4), i]),
    ),
    "nn.distributed_sparse_softmax_cross_entropy_with_logits": (
        flow.nn.distributed_sparse_softmax_cross_entropy_with_logits,
        (LABELS, X),
        lambda i, x: -np.log(softmax(x)[np.arange(4), i]),
    ),
    "nn.sparse_softmax_cross_entropy_with_logits: labels (n, 1)": (
        lambda i, x: flow.nn.sparse_softmax_cross_entropy_with_logits(i, x),
        (LABELS[:, None].astype("i8"), X),
        lambda i, x: -np.log(softmax(x)[np.arange(4), i[:, 0]]),
    ),
    "nn.softmax_cross_entropy_with_logits": (
        flow.nn.softmax_cross_entropy_with_logits,
        (softmax(f32(4, 3)), X),
        lambda t, x: -(t * np.log(softmax(x))).sum(1),
    ),
    "nn.sigmoid_cross_entropy_with_logits": (
        flow.nn.sigmoid_cross_entropy_with_logits,
        (TARGETS, X * 20),
        lambda t, x: logits_bce(x, t),
    ),
    "nn.sigmoid_cross_entropy_with_logits: integers": (
        flow.nn.sigmoid_cross_entropy_with_logits,
        (TARGETS.astype("i4"), X),
        lambda t, x: logits_bce(x, t),
    ),
    "smooth_l1_loss": (
        lambda x, t: flow.smooth_l1_loss(x, t, 0.5),
        (X, f32(4, 3)),
        lambda x, t: np.where(np.abs(x - t) < 0.5, (x - t) ** 2, np.abs(x - t) - 0.25),
    ),
    "combined_margin_loss": (
        lambda x, i: flow.combined_margin_loss(x, i, m1=0.3, m2=0.5, m3=0.4),
        (PROBABILITIES, LABELS),
        lambda x, i: np.where(np.eye(3)[i], np.cos(0.3 * np.arccos(x) + 0.5) - 0.4, x),
    ),
}

# --- layers

TWO, ONES = flow.constant_initializer(0.5), flow.ones_initializer()


def half(*shape: int) -> Any:
    return np.full(shape, 0.5)


LAYERS: dict[str, Call] = {
    "layers.dense": (
        lambda x: flow.layers.dense(x, 5, flow.nn.relu, True, TWO, ONES, name="d"),
        (X,),
        lambda x: np.maximum(x @ half(3, 5) + 1, 0),
    ),
    "layers.dense: three axes": (
        lambda x: flow.layers.dense(x, 2, use_bias=False, kernel_initializer=TWO),
        (f32(2, 3, 4),),
        lambda x: x @ half(4, 2),
    ),
    "layers.conv1d": (
        lambda x: flow.layers.conv1d(x, 3, 2, kernel_initializer=TWO, bias_initializer=ONES),
        (f32(2, 3, 6),),
        lambda x: conv(x, half(3, 3, 2), [1], [(0, 0)], [1]) + 1,
    ),
    "layers.conv2d": (
        lambda x: flow.layers.conv2d(
            x, 4, (3, 2), 2, "SAME", kernel_initializer=TWO, groups=2, name="c"
        ),
        (IMAGE,),
        lambda x: conv(
            x, half(4, 1, 3, 2), [2, 2], same([5, 6], [3, 2], [2, 2], [1, 1], True), [1, 1], 2
        ),
    ),
    "layers.conv2d: last": (
        lambda x: flow.layers.conv2d(
            x,
            4,
            3,
            data_format="NHWC",
            kernel_initializer=TWO,
            activation=flow.math.tanh,
            weight_name="w",
        ),
        (LAST,),
        lambda x: np.tanh(last(conv(first(x), half(4, 2, 3, 3), [1, 1], NO_PADS, [1, 1]))),
    ),
    "layers.conv3d": (
        lambda x: flow.layers.conv3d(x, 2, 2, kernel_initializer=TWO, data_format="NDHWC"),
        (last(VOLUME).copy(),),
        lambda x: last(conv(first(x), half(2, 2, 2, 2, 2), [1] * 3, [(0, 0)] * 3, [1] * 3)),
    ),
    "layers.layer_norm": (
        lambda x: flow.layers.layer_norm(x, begin_norm_axis=2, epsilon=0.1),
        (f32(3, 2, 4),),
        lambda x: normal(x, 2, 0.1),
    ),
    "layers.layer_norm_grad": (
        lambda dy, x, m, v: flow.layers.layer_norm_grad(dy, x, m, v),
        (f32(4, 3), X, X.mean(1), 1 / np.sqrt(X.var(1))),
        lambda dy, x, m, v: row_slope(dy, (x - m[:, None]) * v[:, None]) * v[:, None],
    ),
    "layers.layer_norm_param_grad": (
        flow.layers.layer_norm_param_grad,
        (f32(4, 3), X, f32(3)),
        lambda dy, n, g: (dy * g, dy.sum(0), (dy * n).sum(0)),
    ),
    "layers.batch_normalization": (
        lambda x: flow.layers.batch_normalization(
            x,
            axis=1,
            beta_initializer=TWO,
            moving_variance_initializer=flow.constant_initializer(4.0),
        ),
        (IMAGE,),
        lambda x: x / np.sqrt(4.001) + 0.5,
    ),
    "layers.batch_normalization: without parameters": (
        lambda x: flow.layers.batch_normalization(
            x, center=False, scale=False, moving_mean_initializer=TWO, epsilon=0.25
        ),
        (LAST,),
        lambda x: (x - 0.5) / np.sqrt(1.25),
    ),
    "layers.batch_normalization_relu": (
        lambda x: flow.layers.batch_normalization_relu(x, axis=1, epsilon=0.0),
        (IMAGE,),
        lambda x: np.maximum(x, 0),
    ),
    "layers.batch_normalization_add_relu": (
        lambda x, y: flow.layers.batch_normalization_add_relu(x, y, axis=1, epsilon=0.0),
        (IMAGE, f32(*SIZES)),
        lambda x, y: np.maximum(x + y, 0),
    ),
    "layers.prelu": (
        lambda x: flow.layers.prelu(x, TWO, shared_axes=[2, 3]),
        (IMAGE,),
        lambda x: np.where(x > 0, x, x / 2),
    ),
    "layers.upsample_2d": (
        lambda x: flow.layers.upsample_2d(x, (2, 3)),
        (IMAGE,),
        lambda x: x.repeat(2, 2).repeat(3, 3),
    ),
    "layers.upsample_2d: last": (
        lambda x: flow.layers.upsample_2d(x, 2, "NHWC"),
        (LAST,),
        lambda x: x.repeat(2, 1).repeat(2, 2),
    ),
}

CALLS: dict[str, Call] = {**LOSSES, **LAYERS}
