"""Softmax, and the losses that have separate ops.

Losses have OneFlow's layout, with the classes on the last axis.  The softmax cross entropies also
return ``prob``, from which the gradient is computed without the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.declare import Attributes, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import (
    Row,
    checked_axis,
    floating_like_input,
    signatures,
    split_all_axes,
    split_leading_axes,
    split_other_axes,
    with_nonincreasing,
    with_rows,
)
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import B, P, S, Signatures

SMALLEST_PROBABILITY = 1e-20
"""Lower bound on probabilities in logarithms and divisions."""

LABEL_TYPES = ("int32", "int64", "int8", "uint8")


LINEAR_IN_DY: Row = ((B, B, P), P)


def _logits(ctx: InferContext) -> TensorType:
    (x,) = floating_like_input(ctx)
    ctx.check(
        len(x.shape) >= 2 and x.shape[-1],
        f"predictions {x}",
        "one or more batch axes, then at least one class",
    )
    return x


def _loss_types(ctx: InferContext, x: TensorType, forward: bool) -> Types:
    """Return the types of prob and the loss, or of a gradient, for which dy is checked."""
    loss = tensor_type(x.shape[:-1], x.dtype)
    if forward:
        return x, loss
    ctx.check(ctx.inputs[2] == loss, f"dy {ctx.inputs[2]}", str(loss))
    return (x,)


def _cross_entropy_gradient(g: GradContext) -> Sequence[Sym | None]:
    """Emit the gradient through the loss and, if prob is used, the gradient of a softmax through
    prob.
    """
    (_, label), (prob, _), (d_prob, dy) = g.inputs, g.outputs, g.grads
    parts = []
    if dy is not None:
        parts.append(g.one(f"{g.op.type}_grad", prob, label, dy, **g.attrs))
    if d_prob is not None:
        parts.append(g.one("softmax_grad", prob, d_prob))
    return (parts[0] + parts[1] if len(parts) == 2 else parts[0], None)


def _loss_gradient(g: GradContext) -> Sequence[Sym | None]:
    x, label = g.inputs
    return g.one(f"{g.op.type}_grad", x, label, g.dy, **g.attrs), None


def _softmax(x: Array, *, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _softmax_grad(y: Array, dy: Array, *, axis: int) -> Any:
    return y * (dy - (y * dy).sum(axis, keepdims=True))


def _log_softmax(x: Array, *, axis: int = -1) -> Any:
    z = x - x.max(axis, keepdims=True)
    return z - np.log(np.exp(z).sum(axis, keepdims=True))


def _log_softmax_grad(y: Array, dy: Array, *, axis: int) -> Any:
    return dy - np.exp(y) * dy.sum(axis, keepdims=True)


def _at_label(x: Array, label: Array) -> Array:
    return np.take_along_axis(x, label[..., None].astype(np.int64), -1)[..., 0]


def _one_hot(label: Array, depth: int) -> Any:
    return label[..., None] == np.arange(depth)


def _sigmoid_loss(prediction: Array, label: Array) -> Any:
    positive = np.maximum(prediction, 0)
    return positive - prediction * label + np.log1p(np.exp(-np.abs(prediction)))


def _sigmoid_loss_grad(prediction: Array, label: Array, dy: Array) -> Array:
    return dy * (1 / (1 + np.exp(-prediction)) - label)


def _smooth_l1(prediction: Array, label: Array, *, beta: float) -> Any:
    distance = np.abs(prediction - label)
    near = np.minimum(distance, beta)
    return near * (distance - near / 2) / beta if beta else distance


def _smooth_l1_grad(prediction: Array, label: Array, dy: Array, *, beta: float) -> Any:
    difference = prediction - label
    return dy * (np.clip(difference / beta, -1, 1) if beta else np.sign(difference))


def _distribution(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return _softmax(rng.uniform(-1, 1, shape))


@dataclass(frozen=True, slots=True)
class AlongAxis(OpDef):
    """A row for a function along one axis, or for its gradient, which reads the result."""

    type: str
    reference: Callable[..., Any]
    attrs = {"axis": -1}

    def infer(self, ctx: InferContext) -> Types:
        (x,) = floating_like_input(ctx)
        ctx.check(x.shape, f"{x}", "at least one axis")
        axis = checked_axis(ctx, ctx.attrs["axis"], len(x.shape))
        ctx.check(x.shape[axis], f"{x}, with size 0 on axis {axis}", "at least one class")
        return (x,)

    def samples(self, rng: Rng) -> Samples:
        count = len(self.inputs)
        for shape, axis in (((3, 5), -1), ((4,), 0), ((2, 3, 4), 1), ((2, 1, 3), 0), ((70, 3), 1)):
            arrays = [rng.uniform(-3, 3, shape) for _ in range(count)]
            yield Sample(tuple(arrays), {"axis": axis}, gradient=len(shape) != 2 or shape[0] < 9)
        yield Sample((rng.uniform(0, 1, (2, 1)),) * count, note="one class")
        yield Sample((rng.uniform(-1, 1, (0, 3)),) * count, gradient=False, note="no rows")
        far = np.array([[50.0, -50.0, 49.0]])
        yield Sample((far,) if count == 1 else (_softmax(far), far), gradient=False)


class Normalized(AlongAxis):
    schema = "(in) -> out"
    inplace = (0,)
    sbp = staticmethod(split_other_axes)
    gradient = staticmethod(lambda g: (g.one(f"{g.op.type}_grad", g.y, g.dy, **g.attrs),))


class NormalizedGrad(AlongAxis):
    schema = "(y, dy) -> dx"
    inplace = (1,)
    sbp = staticmethod(with_rows(split_other_axes, ((B, P), P)))

    def infer(self, ctx: InferContext) -> Types:
        y, dy = ctx.inputs
        ctx.check(y == dy, f"y {y} and dy {dy}", "one type")
        return AlongAxis.infer(self, ctx)


SHAPES = ((3, 5), (2, 3, 4), (1, 1), (0, 4), (80, 3))


class Dense(OpDef):
    """A loss whose labels are probabilities, or its gradient."""

    inplace = (0,)

    def infer(self, ctx: InferContext) -> Types:
        x, label = _logits(ctx), ctx.inputs[1]
        ctx.check(x == label, f"labels {label} for predictions {x}", f"labels of type {x}")
        return _loss_types(ctx, x, len(self.inputs) == 2)


class SoftmaxCrossEntropy(Dense):
    """-sum(label * log(softmax(prediction))) over the last axis; no gradient for label."""

    schema = "softmax_cross_entropy(prediction, label) -> prob, out"
    # the loss, but not prob, is linear in the label
    sbp = staticmethod(with_rows(split_leading_axes, ((B, P), (B, P))))
    gradient = staticmethod(_cross_entropy_gradient)

    def reference(self, prediction: Array, label: Array) -> tuple[Array, ...]:
        return _softmax(prediction), -(label * _log_softmax(prediction)).sum(-1)

    def samples(self, rng: Rng) -> Samples:
        for shape in SHAPES:
            arrays = rng.uniform(-3, 3, shape), _distribution(rng, shape)
            yield Sample(arrays, gradient=0 < shape[0] < 9)


class SoftmaxCrossEntropyGrad(Dense):
    """The derivative for labels that add up to 1, also used for others, as in OneFlow."""

    schema = "softmax_cross_entropy_grad(prob, label, dy) -> prediction_diff"
    reference = staticmethod(lambda prob, label, dy: dy[..., None] * (prob - label))

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split like an elementwise op, where dy has one element per row."""
        classes = S(len(ctx.inputs[0].shape) - 1)
        own: Row = ((classes, classes, B), classes)
        return signatures(*split_leading_axes(ctx), own, ((P, P, B), P), ((B, B, P), P))

    def samples(self, rng: Rng) -> Samples:
        for shape in SHAPES:
            dy = rng.uniform(-1, 1, shape[:-1])
            yield Sample((_distribution(rng, shape), rng.uniform(0, 1, shape), dy), gradient=False)


@dataclass(frozen=True, slots=True)
class Elementwise(OpDef):
    """A row for an elementwise loss of prediction and label, or for its gradient."""

    type: str
    reference: Callable[..., Any]
    attrs: Attributes
    elementwise = True

    def infer(self, ctx: InferContext) -> Types:
        (x,) = floating_like_input(ctx)
        label = ctx.inputs[1]
        # sigmoid cross entropy also takes labels that are integers, 0 and 1
        whole = label.dtype.is_integer and self.type.startswith("sigmoid")
        ctx.check(
            label.shape == x.shape and (label.dtype is x.dtype or whole),
            f"labels {label} for predictions {x}",
            f"labels of type {x}",
        )
        ctx.check(all(t == x for t in ctx.inputs[2:]), f"dy {ctx.inputs[-1]}", str(x))
        ctx.check(ctx.attrs.get("beta", 0.0) >= 0, f"beta={ctx.attrs.get('beta')}", "beta >= 0")
        return (x,)

    def samples(self, rng: Rng) -> Samples:
        """Yield predictions and labels whose differences are 0.2 away from kinks at 0 and beta."""
        betas = ({}, {"beta": 0.5}, {"beta": 0.0}) if self.attrs else ({},)
        count = len(self.inputs)
        for shape, attrs in product(((7,), (3, 5), (2, 1, 4), (0, 3)), betas):
            label = rng.uniform(0, 1, shape)
            distance = rng.choice([-1, 1], shape) * rng.choice([0.2, 0.8, 1.7], shape)
            dy = (rng.uniform(-1, 1, shape),) if count == 3 else ()
            x, smooth = label + distance, count == 2 and attrs.get("beta") != 0
            yield Sample((x, label, *dy), attrs, smooth)
            if not self.attrs:
                yield Sample((x, rng.integers(0, 2, shape).astype(np.int32), *dy))


class ElementwiseLoss(Elementwise):
    schema = "(prediction, label) -> loss"
    sbp = staticmethod(split_all_axes)
    gradient = staticmethod(_loss_gradient)


class ElementwiseLossGrad(Elementwise):
    schema = "(prediction, label, loss_grad) -> prediction_grad"
    sbp = staticmethod(with_rows(split_all_axes, LINEAR_IN_DY))


class Sparse(OpDef):
    """A loss whose labels are classes, or its gradient."""

    attrs = {"depth": REQUIRED}
    logits: bool = False  # whether the first input is not a distribution

    def infer(self, ctx: InferContext) -> Types:
        x, label = _logits(ctx), ctx.inputs[1]
        ctx.check(
            label.dtype.name in LABEL_TYPES and label.shape == x.shape[:-1],
            f"labels {label} for predictions {x}",
            f"labels of shape {x.shape[:-1]}, of type {', '.join(LABEL_TYPES)}",
        )
        ctx.check(
            ctx.attrs["depth"] == x.shape[-1],
            f"depth={ctx.attrs['depth']} for {x.shape[-1]} classes",
            "the number of classes as depth",
        )
        return _loss_types(ctx, x, len(self.inputs) == 2)

    def samples(self, rng: Rng) -> Samples:
        forward, dtypes = len(self.inputs) == 2, (np.int32, np.int64, np.int8, np.uint8, np.int32)
        for shape, dtype in zip(SHAPES, dtypes, strict=True):
            dy = () if forward else (rng.uniform(-1, 1, shape[:-1]),)
            x = rng.uniform(-3, 3, shape) if self.logits else _distribution(rng, shape)
            label = rng.integers(0, shape[-1], shape[:-1]).astype(dtype)
            yield Sample((x, label, *dy), {"depth": shape[-1]}, forward and 0 < shape[0] < 9)


class SparseSoftmaxCrossEntropy(Sparse):
    """-log(softmax(prediction)[label]) over the last axis."""

    schema = "sparse_softmax_cross_entropy(prediction, label) -> prob, out"
    inplace = (0,)
    logits = True
    sbp = staticmethod(split_leading_axes)
    gradient = staticmethod(_cross_entropy_gradient)

    def reference(self, prediction: Array, label: Array, *, depth: int) -> tuple[Array, ...]:
        return _softmax(prediction), -_at_label(_log_softmax(prediction), label)


class SparseSoftmaxCrossEntropyGrad(Sparse):
    schema = "sparse_softmax_cross_entropy_grad(prob, label, dy) -> prediction_diff"
    inplace = (0,)
    sbp = staticmethod(with_rows(split_leading_axes, LINEAR_IN_DY))

    def reference(self, prob: Array, label: Array, dy: Array, *, depth: int) -> Any:
        return dy[..., None] * (prob - _one_hot(label, depth))


class SparseCrossEntropy(Sparse):
    """-log(prediction[label]) over the last axis."""

    schema = "sparse_cross_entropy(prediction, label) -> out"
    sbp = staticmethod(with_nonincreasing(split_leading_axes))
    gradient = staticmethod(_loss_gradient)

    def infer(self, ctx: InferContext) -> Types:
        return super().infer(ctx)[1:]

    def reference(self, prediction: Array, label: Array, *, depth: int) -> Array:
        return -np.log(np.maximum(_at_label(prediction, label), SMALLEST_PROBABILITY))


class SparseCrossEntropyGrad(Sparse):
    schema = "sparse_cross_entropy_grad(prediction, label, dy) -> prediction_diff"
    sbp = staticmethod(with_rows(split_leading_axes, LINEAR_IN_DY))

    def reference(self, prediction: Array, label: Array, dy: Array, *, depth: int) -> Array:
        at_label = -dy[..., None] / np.maximum(prediction, SMALLEST_PROBABILITY)
        return np.where(_one_hot(label, depth), at_label, np.zeros_like(prediction))


BETA = {"beta": 1.0}

OPS = specs(
    Normalized("softmax", _softmax), NormalizedGrad("softmax_grad", _softmax_grad),
    Normalized("log_softmax", _log_softmax), NormalizedGrad("log_softmax_grad", _log_softmax_grad),
    SoftmaxCrossEntropy, SoftmaxCrossEntropyGrad, SparseSoftmaxCrossEntropy,
    SparseSoftmaxCrossEntropyGrad, SparseCrossEntropy, SparseCrossEntropyGrad,
    ElementwiseLoss("sigmoid_cross_entropy", _sigmoid_loss, {}),
    ElementwiseLossGrad("sigmoid_cross_entropy_grad", _sigmoid_loss_grad, {}),
    ElementwiseLoss("smooth_l1_loss", _smooth_l1, BETA),
    ElementwiseLossGrad("smooth_l1_loss_grad", _smooth_l1_grad, BETA),
)  # fmt: skip
