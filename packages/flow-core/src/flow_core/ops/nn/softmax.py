"""Softmax, and the losses that have separate ops.

Losses have OneFlow's layout, with the classes on the last axis.  The softmax cross entropies also
return ``prob``, from which the gradient is computed without the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.rules import (
    checked_axis,
    floating_like_input,
    split_all_axes,
    split_axes,
    with_nonincreasing,
)
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import B, P, S, Sbp, Signature, Signatures

SMALLEST_PROBABILITY = 1e-20
"""Lower bound on probabilities in logarithms and divisions."""

LABEL_TYPES = ("int32", "int64", "int8", "uint8")


# --- SBP


def linear_in(ctx: SbpContext, index: int) -> Signature:
    """Map P of one input and B of the other inputs to P, for an op that is linear in that input."""
    inputs: list[Sbp] = [B] * len(ctx.inputs)
    inputs[index] = P
    return Signature(tuple(inputs), (P,) * len(ctx.outputs))


def _other_axes(ctx: SbpContext) -> Signatures:
    """Split any axis but the softmax axis."""
    rank = len(ctx.inputs[0].shape)
    axis = ctx.attrs["axis"] % rank
    return split_axes(ctx, [i for i in range(rank) if i != axis])


def _other_axes_linear(ctx: SbpContext) -> Signatures:
    return (*_other_axes(ctx), linear_in(ctx, 1))


def _batch_axes(ctx: SbpContext) -> Signatures:
    """Split any axis but the last, which holds the classes."""
    return split_axes(ctx, range(len(ctx.inputs[0].shape) - 1))


def _batch_axes_linear_label(ctx: SbpContext) -> Signatures:
    """Pass P of the label to the loss, which is linear in the label, but not to prob."""
    return (*_batch_axes(ctx), Signature((B, P), (B, P)))


def _batch_axes_linear_dy(ctx: SbpContext) -> Signatures:
    return (*_batch_axes(ctx), linear_in(ctx, 2))


def _difference_times_dy(ctx: SbpContext) -> Signatures:
    """Split like an elementwise op, where dy has one element per row."""
    classes = S(len(ctx.inputs[0].shape) - 1)
    own = (Signature((classes, classes, B), (classes,)), Signature((P, P, B), (P,)))
    return (*_batch_axes(ctx), *own, linear_in(ctx, 2))


def _all_axes_linear_dy(ctx: SbpContext) -> Signatures:
    return (*split_all_axes(ctx), linear_in(ctx, 2))


# --- shapes


def _softmax_type(ctx: InferContext) -> tuple[TensorType, ...]:
    (x,) = floating_like_input(ctx)
    ctx.check(x.shape, f"{x}", "at least one axis")
    axis = checked_axis(ctx, ctx.attrs["axis"], len(x.shape))
    ctx.check(x.shape[axis], f"{x}, with size 0 on axis {axis}", "at least one class")
    return (x,)


def _softmax_grad_type(ctx: InferContext) -> tuple[TensorType, ...]:
    y, dy = ctx.inputs
    ctx.check(y == dy, f"y {y} and dy {dy}", "one type")
    return _softmax_type(ctx)


def _logits(ctx: InferContext) -> TensorType:
    (x,) = floating_like_input(ctx)
    ctx.check(
        len(x.shape) >= 2 and x.shape[-1],
        f"predictions {x}",
        "one or more batch axes, then at least one class",
    )
    return x


def _check_sparse(ctx: InferContext) -> TensorType:
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
    return x


def _check_dense(ctx: InferContext) -> TensorType:
    x, label = _logits(ctx), ctx.inputs[1]
    ctx.check(x == label, f"labels {label} for predictions {x}", f"labels of type {x}")
    return x


def _check_dy(ctx: InferContext, x: TensorType) -> None:
    loss = tensor_type(x.shape[:-1], x.dtype)
    ctx.check(ctx.inputs[2] == loss, f"dy {ctx.inputs[2]}", str(loss))


Check = Callable[[InferContext], TensorType]


def _prob_and_loss(check: Check) -> Callable[[InferContext], Sequence[TensorType]]:
    def infer(ctx: InferContext) -> tuple[TensorType, ...]:
        x = check(ctx)
        return x, tensor_type(x.shape[:-1], x.dtype)

    return infer


def _loss(ctx: InferContext) -> tuple[TensorType, ...]:
    x = _check_sparse(ctx)
    return (tensor_type(x.shape[:-1], x.dtype),)


def _loss_grad(check: Check) -> Callable[[InferContext], Sequence[TensorType]]:
    def infer(ctx: InferContext) -> tuple[TensorType, ...]:
        x = check(ctx)
        _check_dy(ctx, x)
        return (x,)

    return infer


def _elementwise_loss(ctx: InferContext) -> tuple[TensorType, ...]:
    (x,) = floating_like_input(ctx)
    label = ctx.inputs[1]
    ctx.check(
        label.shape == x.shape and (label.dtype is x.dtype or _whole_labels(ctx, label)),
        f"labels {label} for predictions {x}",
        f"labels of type {x}",
    )
    ctx.check(all(t == x for t in ctx.inputs[2:]), f"dy {ctx.inputs[-1]}", str(x))
    ctx.check(ctx.attrs.get("beta", 0.0) >= 0, f"beta={ctx.attrs.get('beta')}", "beta >= 0")
    return (x,)


def _whole_labels(ctx: InferContext, label: TensorType) -> bool:
    """Return whether labels are integers (0 and 1), which sigmoid cross entropy also takes."""
    return label.dtype.is_integer and ctx.type.startswith("sigmoid")


# --- gradients


def _from_y(grad_type: str) -> Callable[[GradContext], Sequence[Sym | None]]:
    return lambda g: (g.one(grad_type, g.y, g.dy, axis=g.attrs["axis"]),)


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


# --- numpy semantics


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


def _dense(prediction: Array, label: Array) -> tuple[Array, ...]:
    return _softmax(prediction), -(label * _log_softmax(prediction)).sum(-1)


def _dense_grad(prob: Array, label: Array, dy: Array) -> Any:
    return dy[..., None] * (prob - label)


def _at_label(x: Array, label: Array) -> Array:
    return np.take_along_axis(x, label[..., None].astype(np.int64), -1)[..., 0]


def _one_hot(label: Array, depth: int) -> Any:
    return label[..., None] == np.arange(depth)


def _sparse(prediction: Array, label: Array, *, depth: int) -> tuple[Array, ...]:
    return _softmax(prediction), -_at_label(_log_softmax(prediction), label)


def _sparse_grad(prob: Array, label: Array, dy: Array, *, depth: int) -> Any:
    return dy[..., None] * (prob - _one_hot(label, depth))


def _entropy(prediction: Array, label: Array, *, depth: int) -> Array:
    return -np.log(np.maximum(_at_label(prediction, label), SMALLEST_PROBABILITY))


def _entropy_grad(prediction: Array, label: Array, dy: Array, *, depth: int) -> Array:
    at_label = -dy[..., None] / np.maximum(prediction, SMALLEST_PROBABILITY)
    return np.where(_one_hot(label, depth), at_label, np.zeros_like(prediction))


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


# --- samples


def _softmax_samples(count: int) -> Callable[[np.random.Generator], Iterator[Sample]]:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for shape, axis in (((3, 5), -1), ((4,), 0), ((2, 3, 4), 1), ((2, 1, 3), 0), ((70, 3), 1)):
            arrays = [rng.uniform(-3, 3, shape) for _ in range(count)]
            yield Sample(tuple(arrays), {"axis": axis}, gradient=len(shape) != 2 or shape[0] < 9)
        yield Sample((rng.uniform(0, 1, (2, 1)),) * count, note="one class")
        yield Sample((rng.uniform(-1, 1, (0, 3)),) * count, gradient=False, note="no rows")
        far = np.array([[50.0, -50.0, 49.0]])
        yield Sample((far,) * count if count == 1 else (_softmax(far), far), gradient=False)

    return samples


def _distribution(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return _softmax(rng.uniform(-1, 1, shape))


SHAPES = ((3, 5), (2, 3, 4), (1, 1), (0, 4), (80, 3))


def _dense_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SHAPES:
        arrays = rng.uniform(-3, 3, shape), _distribution(rng, shape)
        yield Sample(arrays, gradient=0 < shape[0] < 9)


def _dense_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SHAPES:
        dy = rng.uniform(-1, 1, shape[:-1])
        yield Sample((_distribution(rng, shape), rng.uniform(0, 1, shape), dy), gradient=False)


def _labels(rng: np.random.Generator, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    return rng.integers(0, shape[-1], shape[:-1]).astype(dtype)


def _sparse_samples(first: Callable[[Any, tuple[int, ...]], Any], with_dy: bool = False) -> Any:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        dtypes = (np.int32, np.int64, np.int8, np.uint8, np.int32)
        for shape, dtype in zip(SHAPES, dtypes, strict=True):
            dy = (rng.uniform(-1, 1, shape[:-1]),) if with_dy else ()
            yield Sample(
                (first(rng, shape), _labels(rng, shape, dtype), *dy),
                {"depth": shape[-1]},
                gradient=0 < shape[0] < 9 and not with_dy,
            )

    return samples


def _pairs(attrs: Sequence[dict[str, float]], with_dy: bool, whole: bool = False) -> Any:
    """Return predictions and labels whose differences are 0.2 away from the kinks at 0 and beta."""

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for shape in ((7,), (3, 5), (2, 1, 4), (0, 3)):
            for attr in attrs:
                label = rng.uniform(0, 1, shape)
                distance = rng.choice([-1, 1], shape) * rng.choice([0.2, 0.8, 1.7], shape)
                dy = (rng.uniform(-1, 1, shape),) if with_dy else ()
                x = label + distance
                yield Sample((x, label, *dy), attr, gradient=not with_dy and attr != BETA_ZERO)
                if whole:
                    yield Sample((x, rng.integers(0, 2, shape).astype(np.int32), *dy), attr)

    return samples


BETA_ZERO = {"beta": 0.0}
_BETAS: Sequence[dict[str, float]] = ({}, {"beta": 0.5}, BETA_ZERO)


def _logit_sample(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.uniform(-3, 3, shape)


def _softmax_spec(type_: str, forward: Any, backward: Any) -> tuple[OpSpec, OpSpec]:
    """Return the op of a function along one axis, and its gradient op, which reads y."""
    return (
        OpSpec(
            type=type_,
            inputs=("in",),
            attrs={"axis": -1},
            infer=_softmax_type,
            sbp=_other_axes,
            gradient=_from_y(f"{type_}_grad"),
            reference=forward,
            samples=_softmax_samples(1),
            inplace=(0,),
        ),
        OpSpec(
            type=f"{type_}_grad",
            inputs=("y", "dy"),
            outputs=("dx",),
            attrs={"axis": -1},
            infer=_softmax_grad_type,
            sbp=_other_axes_linear,
            reference=backward,
            samples=_softmax_samples(2),
            inplace=(1,),
        ),
    )


def _elementwise_spec(
    type_: str, attrs: AttrValue, forward: Any, backward: Any
) -> tuple[OpSpec, OpSpec]:
    """Return an elementwise loss of prediction and label, and its gradient op."""
    settings, whole = (_BETAS if attrs else ({},)), not attrs
    return (
        OpSpec(
            type=type_,
            inputs=("prediction", "label"),
            outputs=("loss",),
            attrs=attrs,
            infer=_elementwise_loss,
            sbp=split_all_axes,
            gradient=_loss_gradient,
            reference=forward,
            samples=_pairs(settings, with_dy=False, whole=whole),
            elementwise=True,
        ),
        OpSpec(
            type=f"{type_}_grad",
            inputs=("prediction", "label", "loss_grad"),
            outputs=("prediction_grad",),
            attrs=attrs,
            infer=_elementwise_loss,
            sbp=_all_axes_linear_dy,
            reference=backward,
            samples=_pairs(settings, with_dy=True, whole=whole),
            elementwise=True,
        ),
    )


DEPTH = {"depth": REQUIRED}

OPS: tuple[OpSpec, ...] = (
    *_softmax_spec("softmax", _softmax, _softmax_grad),
    *_softmax_spec("log_softmax", _log_softmax, _log_softmax_grad),
    OpSpec(
        type="softmax_cross_entropy",
        inputs=("prediction", "label"),
        outputs=("prob", "out"),
        infer=_prob_and_loss(_check_dense),
        sbp=_batch_axes_linear_label,
        gradient=_cross_entropy_gradient,
        reference=_dense,
        samples=_dense_samples,
        inplace=(0,),
        doc="-sum(label * log(softmax(prediction))) over the last axis; no gradient for label.",
    ),
    OpSpec(
        type="softmax_cross_entropy_grad",
        inputs=("prob", "label", "dy"),
        outputs=("prediction_diff",),
        infer=_loss_grad(_check_dense),
        sbp=_difference_times_dy,
        reference=_dense_grad,
        samples=_dense_grad_samples,
        inplace=(0,),
        doc="The derivative for labels that add up to 1, also used for others, as in OneFlow.",
    ),
    OpSpec(
        type="sparse_softmax_cross_entropy",
        inputs=("prediction", "label"),
        outputs=("prob", "out"),
        attrs=DEPTH,
        infer=_prob_and_loss(_check_sparse),
        sbp=_batch_axes,
        gradient=_cross_entropy_gradient,
        reference=_sparse,
        samples=_sparse_samples(_logit_sample),
        inplace=(0,),
        doc="-log(softmax(prediction)[label]) over the last axis.",
    ),
    OpSpec(
        type="sparse_softmax_cross_entropy_grad",
        inputs=("prob", "label", "dy"),
        outputs=("prediction_diff",),
        attrs=DEPTH,
        infer=_loss_grad(_check_sparse),
        sbp=_batch_axes_linear_dy,
        reference=_sparse_grad,
        samples=_sparse_samples(_distribution, with_dy=True),
        inplace=(0,),
    ),
    OpSpec(
        type="sparse_cross_entropy",
        inputs=("prediction", "label"),
        attrs=DEPTH,
        infer=_loss,
        sbp=with_nonincreasing(_batch_axes),
        gradient=_loss_gradient,
        reference=_entropy,
        samples=_sparse_samples(_distribution),
        doc="-log(prediction[label]) over the last axis.",
    ),
    OpSpec(
        type="sparse_cross_entropy_grad",
        inputs=("prediction", "label", "dy"),
        outputs=("prediction_diff",),
        attrs=DEPTH,
        infer=_loss_grad(_check_sparse),
        sbp=_batch_axes_linear_dy,
        reference=_entropy_grad,
        samples=_sparse_samples(_distribution, with_dy=True),
    ),
    *_elementwise_spec("sigmoid_cross_entropy", {}, _sigmoid_loss, _sigmoid_loss_grad),
    *_elementwise_spec("smooth_l1_loss", {"beta": 1.0}, _smooth_l1, _smooth_l1_grad),
)
