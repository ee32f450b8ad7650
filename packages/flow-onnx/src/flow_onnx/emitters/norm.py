"""Emitters of batch, layer and L2 normalization."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flow_core.authoring.specs import TensorType
from flow_onnx.emission import Emission
from flow_onnx.emitters.reduce import reduced

Emitter = Callable[[Emission], str | tuple[str, ...]]


def _batch_norm(e: Emission) -> tuple[str, ...]:
    """Emit batch normalization with the moving statistics, in their element type."""
    if e.attr("training"):
        e.unsupported("training=True: it normalizes by the batch and updates the moving statistics")
    x, mean, variance, gamma, beta = e.inputs
    stats = e.types[1].dtype
    x = x if e.dtype is stats else e.cast(x, stats)
    y = _per_channel(e, x, (gamma, beta, mean, variance))
    y = y if e.dtype is stats else e.cast(y, e.dtype)
    inverse = _inverse_root(e, variance, e.types[1]) if 2 in e.used else variance
    return y, mean, inverse


def _per_channel(e: Emission, x: str, vectors: tuple[str, ...]) -> str:
    """Emit with the channels on axis 1, as ONNX requires; a vector becomes a batch of one."""
    if e.rank == 1:
        return e.reshape(_node(e, e.reshape(x, (1, *e.shape)), vectors), e.shape)
    axis = e.attr("axis") % e.rank
    others = [i for i in range(e.rank) if i != axis]
    perm = [others[0], axis, *others[1:]]
    y = _node(e, e.transpose(x, perm), vectors)
    return e.transpose(y, sorted(range(e.rank), key=perm.__getitem__))


def _node(e: Emission, x: str, vectors: tuple[str, ...]) -> str:
    return e.node("BatchNormalization", x, *vectors, epsilon=float(e.attr("epsilon")))


def _inverse_root(e: Emission, variance: str, kind: TensorType) -> str:
    shifted = e.node("Add", variance, e.const(e.attr("epsilon"), kind.dtype))
    return e.node("Reciprocal", e.node("Sqrt", shifted))


# ------------------------------------------------------------------------------ layers


def _layer_norm(e: Emission) -> tuple[str, ...]:
    """Emit layer normalization.

    This is one node since opset 17 if the parameters have the shape of the normalized axes and only
    y is used.
    """
    begin = e.attr("begin_norm_axis") % e.rank
    stats = e.outputs[1].dtype
    x = e.x if e.dtype is stats else e.cast(e.x, stats)
    params = [p if k.dtype is stats else e.cast(p, stats) for p, k in _parameters(e)]
    fits = all(k.shape == e.shape[begin:] for _, k in _parameters(e))
    if e.opset >= 17 and fits and e.used <= {0}:
        y, mean, inverse = _one_node(e, x, params, begin), "", ""
    else:
        y, mean, inverse = _by_parts(e, x, params, begin)
    return (y if e.dtype is stats else e.cast(y, e.dtype)), mean, inverse


def _parameters(e: Emission) -> list[tuple[str, TensorType]]:
    """Return those of beta and gamma that the op has."""
    return list(zip(e.inputs[1:], e.types[1:], strict=True))


def _one_node(e: Emission, x: str, params: list[str], begin: int) -> str:
    stats = e.outputs[1].dtype
    if e.attr("scale"):
        gamma = params[-1]
    else:
        gamma = e.node("Expand", e.const(1, stats), e.ints(e.shape[begin:]))
    beta = params[:1] if e.attr("center") else []
    epsilon = float(e.attr("epsilon"))
    return e.node("LayerNormalization", x, gamma, *beta, axis=begin, epsilon=epsilon)


def _by_parts(e: Emission, x: str, params: list[str], begin: int) -> tuple[str, str, str]:
    axes = list(range(begin, e.rank))
    mean = reduced(e, "ReduceMean", x, axes, True)
    centered = e.node("Sub", x, mean)
    variance = reduced(e, "ReduceMean", e.node("Mul", centered, centered), axes, True)
    inverse = _inverse_root(e, variance, e.outputs[1])
    y = e.node("Mul", centered, inverse)
    y = e.node("Mul", y, params[-1]) if e.attr("scale") else y
    y = e.node("Add", y, params[0]) if e.attr("center") else y
    if e.used <= {0}:
        return y, "", ""
    flat = e.open[1] if len(e.open) > 1 else frozenset()
    shape = e.outputs[1].shape
    return y, e.reshape(mean, shape, flat), e.reshape(inverse, shape, flat)


def _l2_normalize(e: Emission) -> tuple[str, str]:
    axis = e.attr("axis") % e.rank
    squares = reduced(e, "ReduceSumSquare", e.x, [axis], True)
    least = e.node("Max", squares, e.const(e.attr("epsilon"), e.dtype))
    return e.node("Div", e.x, e.node("Sqrt", least)), squares


EMITTERS: Mapping[str, Emitter] = {
    "normalization": _batch_norm,
    "layer_norm": _layer_norm,
    "l2_normalize": _l2_normalize,
}
