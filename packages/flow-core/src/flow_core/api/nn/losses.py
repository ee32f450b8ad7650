"""``flow.nn``: losses, and ``flow.smooth_l1_loss``.

Losses with an argument ``reduction`` return a scalar for "mean" and "sum", and one number per
element (or per example) for "none".

Args:
    labels: class numbers in [0, classes), which each step checks; int32, int64 or int8 of shape
        (...) or (..., 1).
    logits: a floating-point blob of shape (..., classes).
    input: a floating-point blob.
    target: a blob of the shape and type of ``input``.
    weight: a factor for each element, of the same shape and type.

Returns: A blob of shape (1,), or for "none" one number per element.

Raises:
    InferenceError: the shapes, types or other arguments do not fit.
"""

from __future__ import annotations

from typing import Any

from flow_core.api import math as flow_math
from flow_core.api.arguments import inner
from flow_core.api.math.reduce import root
from flow_core.api.nn.common import check
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit, emit_one

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "KLDivLoss", "L1Loss", "MSELoss", "MarginRankingLoss",
    "TripletMarginLoss", "sigmoid_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits", "sparse_cross_entropy",
    "sparse_softmax_cross_entropy_with_logits",
]  # fmt: skip


def _same_shapes(function: str, first: Blob, second: Blob, what: str = "target") -> None:
    check(
        first.shape == second.shape,
        function,
        f"input of shape {first.shape} and {what} of shape {second.shape}",
        "one shape",
    )


def _check_reduction(function: str, reduction: str) -> None:
    known = reduction in ("none", "mean", "sum")
    check(known, function, f"reduction={reduction!r}", '"none", "mean" or "sum"')


def _reduced(loss: Blob, reduction: str, name: str | None) -> BlobDef:
    loss = checked_blob(loss)
    if reduction == "none":
        return loss
    reduce = flow_math.reduce_mean if reduction == "mean" else flow_math.reduce_sum
    result: BlobDef = reduce(loss, name=inner(name, f"reduce_{reduction}"))
    return result


# --- classification


def _per_example(function: str, labels: Blob, scores: Blob) -> BlobDef:
    """Return labels of shape (...), also if their shape is (..., 1)."""
    labels = checked_blob(labels)
    if len(labels.shape) == len(scores.shape) and labels.shape[-1:] == (1,):
        labels = emit_one("reshape", labels, shape=labels.shape[:-1])
    swapped = scores.shape == labels.shape[:-1]
    check(
        scores.shape != () and labels.shape == scores.shape[:-1],
        function,
        f"labels of shape {labels.shape} for scores of shape {scores.shape}",
        "labels without the axis of the classes, or with size 1 there"
        if swapped
        else f"labels of shape {scores.shape[:-1]} or {(*scores.shape[:-1], 1)}",
        "swap the arguments: labels come first" if swapped else None,
    )
    return labels


def sparse_cross_entropy(labels: Blob, prediction: Blob, name: str | None = None) -> BlobDef:
    """Return ``-log(prediction[label])`` per example, for predicted probabilities.

    Args:
        prediction: a floating-point blob of shape (..., classes).

    Returns: A blob of shape (...) and of the type of ``prediction``.

    Raises:
        InferenceError: the shapes or types do not fit.
        DataError: at run time, a label is out of range.

    >>> run(flow.nn.sparse_cross_entropy, np.int32([0, 1]), [[0.5, 0.5], [0.75, 0.25]]).round(4)
    array([0.6931, 1.3863], dtype=float32)
    """
    labels = _per_example("sparse_cross_entropy", labels, prediction)
    depth = int(prediction.shape[-1])
    return emit_one("sparse_cross_entropy", prediction, labels, depth=depth, name=name)


def sparse_softmax_cross_entropy_with_logits(
    labels: Blob, logits: Blob, name: str | None = None
) -> BlobDef:
    """Return ``-log(softmax(logits)[label])`` per example.

    Returns: A blob of shape (...) and of the type of ``logits``.

    Raises:
        InferenceError: the shapes or types do not fit.
        DataError: at run time, a label is out of range.

    >>> run(
    ...     flow.nn.sparse_softmax_cross_entropy_with_logits,
    ...     np.int32([0, 2]),
    ...     [[2, 0, 0], [0, 0, 2]],
    ... ).round(4)
    array([0.2395, 0.2395], dtype=float32)
    """
    labels = _per_example("sparse_softmax_cross_entropy_with_logits", labels, logits)
    depth = int(logits.shape[-1])
    out: BlobDef = emit("sparse_softmax_cross_entropy", logits, labels, depth=depth, name=name)[1]
    return out


def softmax_cross_entropy_with_logits(
    labels: Blob, logits: Blob, name: str | None = None
) -> BlobDef:
    """Return ``-sum(labels * log(softmax(logits)))`` over the last axis, with no gradient of
    ``labels``.

    Args:
        labels: a distribution per example, of the shape and type of ``logits``.  The gradient of
            ``logits`` is ``softmax(logits) - labels``, even if the labels do not add up to 1.

    Returns: A blob of shape (...) and of the type of ``logits``.

    >>> run(
    ...     flow.nn.softmax_cross_entropy_with_logits, [[1, 0], [0.5, 0.5]], [[1, 0], [1, 0]]
    ... ).round(4)
    array([0.3133, 0.8133], dtype=float32)
    """
    out: BlobDef = emit("softmax_cross_entropy", logits, labels, name=name)[1]
    return out


def sigmoid_cross_entropy_with_logits(
    labels: Blob, logits: Blob, name: str | None = None
) -> BlobDef:
    """Return the cross entropy of independent binary predictions, one per element.

    Args:
        labels: a blob of the shape of ``logits``: probabilities of the same type, or the integers 0
            and 1.
        logits: a floating-point blob.

    Returns: A blob of the shape and type of ``logits``.

    >>> run(flow.nn.sigmoid_cross_entropy_with_logits, [1, 0], [2, 2]).round(4)
    array([0.1269, 2.1269], dtype=float32)
    """
    return emit_one("sigmoid_cross_entropy", logits, labels, name=name)


def BCELoss(
    input: Blob,
    target: Blob,
    weight: Blob | None = None,
    reduction: str = "mean",
    name: str | None = None,
) -> BlobDef:
    """Return ``-(target log(input) + (1 - target) log(1 - input))`` of probabilities.

    Args:
        input: a floating-point blob of probabilities.

    >>> run(flow.nn.BCELoss, [0.5, 0.25], [1, 0]).round(4)
    array([0.4904], dtype=float32)
    """
    _check_reduction("BCELoss", reduction)
    _same_shapes("BCELoss", input, target)
    rest = -input + 1
    yes, no = flow_math.log(input), flow_math.log(rest)
    loss = -(target * yes + (-target + 1) * no)
    return _reduced(_weighted("BCELoss", loss, weight), reduction, name)


def _weighted(function: str, loss: Blob, weight: Blob | None) -> BlobDef:
    loss = checked_blob(loss)
    if weight is None:
        return loss
    _same_shapes(function, loss, weight, "weight")
    return checked_blob(weight) * loss


def BCEWithLogitsLoss(
    input: Blob,
    target: Blob,
    weight: Blob | None = None,
    pos_weight: Blob | None = None,
    reduction: str = "mean",
    name: str | None = None,
) -> BlobDef:
    """Return the `BCELoss` of ``sigmoid(input)``, computed without overflow for large inputs.

    Args:
        input: a floating-point blob of logits.
        pos_weight: a factor for the positive part of each class, of shape (classes,), where
            ``classes`` is the size of the last axis of ``input``.

    >>> run(flow.nn.BCEWithLogitsLoss, [2, -2], [1, 0]).round(4)
    array([0.1269], dtype=float32)
    """
    _check_reduction("BCEWithLogitsLoss", reduction)
    _same_shapes("BCEWithLogitsLoss", input, target)
    positive = _softplus(-input)
    if pos_weight is not None:
        check(
            pos_weight.shape == input.shape[-1:],
            "BCEWithLogitsLoss",
            f"pos_weight of shape {pos_weight.shape} for input of shape {input.shape}",
            f"shape {input.shape[-1:]}",
        )
        positive = positive * ((pos_weight - 1) * target + 1)
    loss = (-target + 1) * input + positive
    return _reduced(_weighted("BCEWithLogitsLoss", loss, weight), reduction, name)


def _softplus(x: Blob) -> BlobDef:
    """Return log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    result: BlobDef = flow_math.relu(x) + flow_math.log1p(flow_math.exp(-flow_math.abs(x)))
    return result


def KLDivLoss(
    input: Blob,
    target: Blob,
    log_target: bool = False,
    reduction: str = "mean",
    name: str | None = None,
) -> BlobDef:
    """Return ``target * (log(target) - input)``, the divergence of ``exp(input)`` from ``target``.

    Args:
        input: a floating-point blob of log probabilities.
        target: probabilities, or log probabilities if ``log_target``; where a probability is 0, the
            loss is 0.
        log_target: whether ``target`` holds logarithms.
        reduction: "mean" (over all elements), "sum" or "none".

    >>> run(flow.nn.KLDivLoss, [-1, -2], [0.5, 0.5]).round(4)
    array([0.4034], dtype=float32)
    """
    _check_reduction("KLDivLoss", reduction)
    if log_target:
        loss = flow_math.exp(target, name=inner(name, "exp")) * (target - input)
        return _reduced(loss, reduction, name)
    positive = emit("where", target > 0, target, _filled(target, 1.0))  # log(0) has no gradient
    loss = target * (flow_math.log(positive, name=inner(name, "log")) - input)
    zeros = _filled(loss, 0.0)
    loss = emit("where", _broadcast_to(target, loss) > 0, loss, zeros, name=inner(name, "where"))
    return _reduced(loss, reduction, name)


def _filled(like: Blob, value: float) -> BlobDef:
    return emit_one("constant_like", like, value=value, dtype=like.dtype.name)


def _broadcast_to(x: Blob, like: Blob) -> BlobDef:
    x = checked_blob(x)
    like = checked_blob(like)
    return x if x.shape == like.shape else x + _filled(like, 0.0)


# --- distances


def L1Loss(input: Blob, target: Blob, reduction: str = "mean", name: str | None = None) -> BlobDef:
    """Return ``|target - input|``.

    >>> run(flow.nn.L1Loss, [1, 2], [3, 2])
    array([1.], dtype=float32)
    """
    _check_reduction("L1Loss", reduction)
    _same_shapes("L1Loss", input, target)
    difference = flow_math.subtract(target, input, name=inner(name, "sub"))
    return _reduced(flow_math.abs(difference, name=inner(name, "abs")), reduction, name)


def MSELoss(input: Blob, target: Blob, reduction: str = "mean", name: str | None = None) -> BlobDef:
    """Return ``(target - input)`` squared.

    >>> run(flow.nn.MSELoss, [1, 2], [3, 2])
    array([2.], dtype=float32)
    """
    _check_reduction("MSELoss", reduction)
    _same_shapes("MSELoss", input, target)
    loss = flow_math.squared_difference(target, input, name=inner(name, "mean_squared"))
    return _reduced(loss, reduction, name)


def MarginRankingLoss(
    input1: Blob,
    input2: Blob,
    target: Blob,
    margin: float = 0.0,
    reduction: str = "mean",
    name: str | None = None,
) -> BlobDef:
    """Return ``max(0, margin - target * (input1 - input2))``.

    Args:
        input1, input2: floating-point blobs of the same shape.
        target: 1 where ``input1`` should be larger, -1 where ``input2`` should be larger.
        margin: the required difference.

    >>> run(flow.nn.MarginRankingLoss, [1, 2], [3, 1], [1, 1])
    array([1.], dtype=float32)
    """
    _check_reduction("MarginRankingLoss", reduction)
    _same_shapes("MarginRankingLoss", input1, input2, "input2")
    loss = flow_math.relu(target * (input2 - input1) + float(margin))
    return _reduced(loss, reduction, name)


def TripletMarginLoss(
    anchor: Blob,
    positive: Blob,
    negative: Blob,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
    name: str | None = None,
) -> BlobDef:
    """Return ``max(0, margin + |anchor - positive| - |anchor - negative|)`` per example.

    Args:
        anchor, positive, negative: floating-point blobs of the same shape, of at least two axes;
            the distances are norms over axis 1.
        margin: required difference between the two distances.
        p: degree of the norm.
        eps: added to the differences, so that the norm has a gradient everywhere.
        swap: whether to use the distance between negative and positive if it is smaller than that
            between anchor and negative.

    Returns: A blob of shape (1,), or for "none" one number per example.

    >>> run(flow.nn.TripletMarginLoss, [[0, 0]], [[3, 4]], [[0, 2]]).round(4)
    array([4.], dtype=float32)
    """
    _check_reduction("TripletMarginLoss", reduction)
    near = _distance(anchor, positive, p, eps)
    far = _distance(anchor, negative, p, eps)
    if swap:
        far = flow_math.minimum(far, _distance(positive, negative, p, eps))
    return _reduced(flow_math.relu(near - far + float(margin)), reduction, name)


def _distance(a: Blob, b: Blob, p: float, eps: float) -> BlobDef:
    difference = a - b + float(eps)
    if p == 2:
        norm: BlobDef = flow_math.reduce_euclidean_norm(difference, axis=1)
        return norm
    powers: Any = flow_math.abs(difference) ** float(p)
    total: Any = flow_math.reduce_sum(powers, axis=1)
    return root(total, lambda x: x ** (1.0 / p))


def smooth_l1_loss(
    prediction: Blob, label: Blob, beta: float = 1.0, name: str | None = None
) -> BlobDef:
    """Return ``|d| - beta/2`` for differences d larger than ``beta``, otherwise ``d*d / (2 beta)``.

    This is ``flow.smooth_l1_loss``; it is not part of ``flow.nn``.

    Args:
        prediction: a floating-point blob.
        label: a blob of the same shape and type; it receives no gradient.
        beta: a number of at least 0.

    Returns: A blob of the shape and type of ``prediction``.

    Raises: InferenceError: the shapes or types differ, or ``beta`` is negative.

    >>> run(flow.smooth_l1_loss, [1, 2], [1.5, 5])
    array([0.125, 2.5  ], dtype=float32)
    """
    return emit_one("smooth_l1_loss", prediction, label, beta=float(beta), name=name)


def combined_margin_loss(
    x: Blob, label: Blob, m1: float = 1, m2: float = 0, m3: float = 0, name: str | None = None
) -> BlobDef:
    """Return cosines x, replaced by ``cos(m1 * acos(x) + m2) - m3`` at each example's label.

    This is ``flow.combined_margin_loss``; it is not part of ``flow.nn``.  CosFace has the margins
    (1, 0, m), ArcFace (1, m, 0); a softmax cross entropy usually follows.

    Args:
        x: floating-point cosines of shape (n, classes).
        label: class numbers of shape (n,), int32 or int64.
        m1, m2, m3: the margins.
        name: name of the last op.

    Returns: A blob of the shape and type of ``x``.

    >>> run(flow.combined_margin_loss, [[0.5, 0.5]], np.int32([1]), m3=0.25)
    array([[0.5 , 0.25]], dtype=float32)
    """
    shapes = f"x of shape {x.shape} and label of shape {label.shape}"
    fits = len(x.shape) == 2 and label.shape == x.shape[:1]
    check(fits, "combined_margin_loss", shapes, "(n, classes) and (n,)")
    chosen: BlobDef = emit("one_hot", label, depth=x.shape[1], dtype="int8")
    if m1 == 1 and m2 == 0:
        return flow_math.where(chosen, x - float(m3), x, name=name)
    # acos has no gradient at -1 and 1, which the cosines of other classes may reach
    angle = flow_math.acos(emit("where_scalar_y", chosen, x, operand=0.0))
    margin = flow_math.cos(angle * float(m1) + float(m2)) - float(m3)
    return flow_math.where(chosen, margin, x, name=name)
