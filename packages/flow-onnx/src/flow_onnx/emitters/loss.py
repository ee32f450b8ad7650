"""Emitters of softmax and losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flow_onnx.emission import Emission
from flow_onnx.emitters.common import Emit, number
from flow_onnx.emitters.reduce import reduced

SMALLEST_PROBABILITY = 1e-20
"""Lower bound of probabilities in losses, the same as in the kernels of a job."""


def softmax(op_type: str) -> Callable[[Emission, str, int], str]:
    """Return a function that emits (log-)softmax; before opset 13, ONNX has the last axis only."""

    def emit(e: Emission, x: str, axis: int) -> str:
        last = e.rank - 1
        if axis == last or e.opset >= 13:
            return e.node(op_type, x, axis=axis)
        perm = [*(i for i in range(e.rank) if i != axis), axis]
        y = e.node(op_type, e.transpose(x, perm), axis=last)
        return e.transpose(y, sorted(range(e.rank), key=perm.__getitem__))

    return emit


def _softmax(op_type: str) -> Emit:
    return lambda e: softmax(op_type)(e, e.x, e.attr("axis") % e.rank)


def _at_label(e: Emission, x: str) -> str:
    """Emit the element of each row of ``x`` at the label, the second input."""
    rows = e.node("Unsqueeze", e.cast(e.inputs[1], "int64"), *_last_axis(e), **_last_attr(e))
    found = e.node("GatherElements", x, rows, axis=e.rank - 1)
    return e.node("Squeeze", found, *_last_axis(e), **_last_attr(e))


def _last_axis(e: Emission) -> tuple[str, ...]:
    return (e.ints([e.rank - 1]),) if e.opset >= 13 else ()


def _last_attr(e: Emission) -> dict[str, list[int]]:
    return {} if e.opset >= 13 else {"axes": [e.rank - 1]}


def _sparse(e: Emission) -> tuple[str, str]:
    last = e.rank - 1
    loss = e.node("Neg", _at_label(e, softmax("LogSoftmax")(e, e.x, last)))
    return (softmax("Softmax")(e, e.x, last) if 0 in e.used else ""), loss


def _dense(e: Emission) -> tuple[str, str]:
    last = e.rank - 1
    terms = e.node("Mul", e.inputs[1], softmax("LogSoftmax")(e, e.x, last))
    loss = e.node("Neg", reduced(e, "ReduceSum", terms, [last], False))
    return (softmax("Softmax")(e, e.x, last) if 0 in e.used else ""), loss


def _of_probabilities(e: Emission) -> str:
    floor = number(e, SMALLEST_PROBABILITY)
    return e.node("Neg", e.node("Log", e.node("Max", _at_label(e, e.x), floor)))


def _sigmoid(e: Emission) -> str:
    """Emit the loss log(1 + exp(x)) - x label."""
    label = e.inputs[1] if e.types[1].dtype is e.dtype else e.cast(e.inputs[1], e.dtype)
    return e.node("Sub", e.node("Softplus", e.x), e.node("Mul", e.x, label))


def _smooth_l1(e: Emission) -> str:
    """Emit the loss near (distance - near / 2) / beta, with near = min(distance, beta)."""
    distance, beta = e.node("Abs", e.node("Sub", *e.inputs)), float(e.attr("beta"))
    if not beta:
        return distance
    near = e.node("Min", distance, number(e, beta))
    rest = e.node("Sub", distance, e.node("Mul", near, number(e, 0.5)))
    return e.node("Div", e.node("Mul", near, rest), number(e, beta))


EMITTERS: Mapping[str, Callable[[Emission], str | tuple[str, ...]]] = {
    "softmax": _softmax("Softmax"),
    "log_softmax": _softmax("LogSoftmax"),
    "sparse_softmax_cross_entropy": _sparse,
    "softmax_cross_entropy": _dense,
    "sparse_cross_entropy": _of_probabilities,
    "sigmoid_cross_entropy": _sigmoid,
    "smooth_l1_loss": _smooth_l1,
}
