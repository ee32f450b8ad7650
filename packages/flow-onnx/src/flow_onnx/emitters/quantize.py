"""Emitters of quantization.

ONNX has the operators of quantization after training.  The fake quantization of quantization-aware
jobs is emitted in floating point, because ONNX's operators round halves to even and have one more
negative level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flow_onnx.emission import Emission
from flow_onnx.emitters.common import number
from flow_onnx.emitters.reduce import reduced

Emitter = Callable[[Emission], str | tuple[str, ...]]


def _is_symmetric(e: Emission) -> bool:
    return bool(e.attr("quantization_scheme") == "symmetric")


def _levels(e: Emission) -> int:
    """Return the maximum quantized integer; the symmetric scheme uses one bit for the sign."""
    return int(2 ** (e.attr("quantization_bit") - _is_symmetric(e))) - 1


def _grid(e: Emission, high: str, low: str) -> tuple[str, str]:
    """Return the scale and the zero point for a range of values."""
    if _is_symmetric(e):
        return e.node("Div", high, number(e, _levels(e))), e.node("Mul", low, number(e, 0))
    step = e.node("Div", e.node("Sub", high, low), number(e, _levels(e)))
    return step, e.node("Neg", e.node("Div", low, step))


def _observer(e: Emission) -> tuple[str, str]:
    """Emit the scale and the zero point for all elements together, or for each row."""
    whole = bool(e.attr("per_layer_quantization"))
    axes = list(range(0 if whole else 1, e.rank))
    high, low = (_extreme(e, op_type, axes) for op_type in ("ReduceMax", "ReduceMin"))
    if _is_symmetric(e):
        high = e.node("Max", e.node("Abs", high), e.node("Abs", low))
    return _grid(e, high, low)


def _extreme(e: Emission, op_type: str, axes: list[int]) -> str:
    found = reduced(e, op_type, e.x, axes, False) if axes else e.x
    return e.as_output(found)


def _moving(e: Emission) -> tuple[str, str]:
    """Emit the scale and the zero point that follow from the moving averages."""
    if e.attr("training"):
        e.unsupported("training=True: it updates the moving averages")
    return _grid(e, *e.inputs[2:])


def _fake(e: Emission) -> str:
    """Emit the quantized number nearest to each element; halves are rounded away from zero."""
    scale, zero = (_per_row(e, i) for i in (1, 2))
    top, symmetric = _levels(e), _is_symmetric(e)
    y = e.node("Div", e.x, scale)
    y = y if symmetric else e.node("Add", y, zero)
    whole = e.node("Floor", e.node("Add", e.node("Abs", y), number(e, 0.5)))
    y = e.node("Mul", e.node("Sign", y), whole)
    y = e.node("Clip", y, number(e, -top if symmetric else 0), number(e, top))
    y = y if symmetric else e.node("Sub", y, zero)
    return e.node("Mul", y, scale)


def _per_row(e: Emission, position: int) -> str:
    """Reshape an input that has one number per row, so that it can be broadcast."""
    rows = e.types[position].shape[0]
    if rows == 1:
        return e.inputs[position]
    return e.reshape(e.inputs[position], (rows, *(1,) * (e.rank - 1)))


def _linear(op_type: str) -> Emitter:
    """Return the emitter of a conversion to levels or from levels."""

    def emit(e: Emission) -> str:
        axis = e.attr("axis")
        e.require_opset(10 if axis is None else 13, op_type)
        more = {} if axis is None else {"axis": axis}
        return e.node(op_type, *e.inputs, **more)

    return emit


EMITTERS: Mapping[str, Emitter] = {
    "quantize_linear": _linear("QuantizeLinear"),
    "dequantize_linear": _linear("DequantizeLinear"),
    "min_max_observer": _observer,
    "moving_average_min_max_observer": _moving,
    "fake_quantization": _fake,
}
