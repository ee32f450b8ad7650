"""Emitters of reductions, and of sums along an axis."""

from __future__ import annotations

from collections.abc import Mapping

from flow_onnx.emission import SMALL_INTEGERS, Emission
from flow_onnx.emitters.common import Emit, to_int32


def _axes(e: Emission) -> list[int]:
    axis = e.attr("axis")
    axes = (axis,) if isinstance(axis, int) else axis
    return sorted({a % e.rank for a in axes}) if e.rank else []


def reduced(e: Emission, op_type: str, x: str, axes: list[int], keepdims: bool) -> str:
    """Emit a reduction over axes; ``ReduceSum`` has the axes as an input since opset 13."""
    since = 13 if op_type == "ReduceSum" else 18
    return e.node_with_axes(op_type, x, axes, since, keepdims=int(keepdims))


def _reduction(op_type: str) -> Emit:
    """Return the emitter of a reduction; the result over all axes has shape (1,), as in OneFlow."""

    def emit(e: Emission) -> str:
        axes, small = _axes(e), e.dtype.name in SMALL_INTEGERS
        x = _reduce(e, op_type, to_int32(e, e.x, e.dtype), axes)
        return e.cast(x, e.dtype) if small else x

    return emit


def _reduce(e: Emission, op_type: str, x: str, axes: list[int]) -> str:
    keepdims = bool(e.attr("keepdims"))
    if not axes:
        return e.node("Identity", x)
    result = reduced(e, op_type, x, axes, keepdims)
    return e.as_output(result) if len(axes) == e.rank and not keepdims else result


def _mean(e: Emission) -> str:
    """Emit a mean; those of integers are truncated quotients of sums of 64 bits."""
    axes = _axes(e)
    if e.attr("count"):
        e.unsupported("a device's part of a mean")
    if e.dtype.is_floating or not axes:
        return _reduce(e, "ReduceMean", e.x, axes)
    total = _reduce(e, "ReduceSum", e.cast(e.x, "int64"), axes)
    count = e.node("Div", e.node("Size", e.x), e.node("Size", total))
    return e.cast(e.node("Div", total, count), e.dtype)


def _truth(op_type: str) -> Emit:
    """Return the emitter of ``any`` or ``all``, the maximum or minimum of zeros and ones."""

    def emit(e: Emission) -> str:
        ones = e.cast(e.to_bool(e.x, e.types[0]), "int32")
        return e.cast(_reduce(e, op_type, ones, _axes(e)), e.outputs[0].dtype)

    return emit


def _sum_like(e: Emission) -> str:
    axes = _axes(e)
    return e.as_output(reduced(e, "ReduceSum", e.x, axes, True) if axes else e.x)


def _square_sum(e: Emission) -> str:
    """Emit the sum of squares of all elements of all inputs."""
    sums = []
    for x, kind in zip(e.inputs, e.types, strict=True):
        x = x if kind.dtype == e.outputs[0].dtype else e.cast(x, e.outputs[0].dtype)
        axes = list(range(len(kind.shape)))
        sums.append(reduced(e, "ReduceSumSquare", x, axes, False) if axes else e.node("Mul", x, x))
    return e.node("Sum", *sums) if len(sums) > 1 else sums[0]


def _cumulative(e: Emission) -> str:
    """Emit sums along an axis; runtimes add small integers and 16-bit numbers in wider types."""
    narrow = e.dtype.accumulate.name if e.dtype.is_floating else "int32"
    wide = e.dtype.name if e.dtype.itemsize > 2 else narrow
    flags = {name: int(bool(e.attr(name))) for name in ("exclusive", "reverse")}
    axis = e.const(int(e.attr("axis")), "int64")
    found = e.node("CumSum", e.cast(e.x, wide) if wide != e.dtype.name else e.x, axis, **flags)
    return e.cast(found, e.dtype) if wide != e.dtype.name else found


EMITTERS: Mapping[str, Emit] = {
    "reduce_sum": _reduction("ReduceSum"),
    "reduce_max": _reduction("ReduceMax"),
    "reduce_mean": _mean,
    "reduce_min": _reduction("ReduceMin"),
    "reduce_prod": _reduction("ReduceProd"),
    "reduce_any": _truth("ReduceMax"),
    "reduce_all": _truth("ReduceMin"),
    "reduce_sum_like": _sum_like,
    "cumsum": _cumulative,
    "square_sum": _square_sum,
    "multi_square_sum": _square_sum,
}
