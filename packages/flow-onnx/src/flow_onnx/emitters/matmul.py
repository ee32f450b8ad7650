"""Emitters of matrix products and biases."""

from __future__ import annotations

from collections.abc import Mapping

from flow_onnx.emission import Emission
from flow_onnx.emitters.common import Emit, computed_in_int32


def _matmul(e: Emission) -> str:
    """Emit one ``Gemm`` for transposed or scaled floating-point matrices, else ``MatMul``."""
    flags = {f"trans{side.upper()}": int(e.attr(f"transpose_{side}")) for side in "ab"}
    alpha = e.attr("alpha")
    if e.rank == 2 and e.dtype.is_floating and (any(flags.values()) or alpha != 1):
        return e.node("Gemm", *e.inputs, alpha=float(alpha), **flags)
    return computed_in_int32(e, lambda a, b: _product(e, a, b))


def _product(e: Emission, a: str, b: str) -> str:
    left = _swapped(e, a) if e.attr("transpose_a") else a
    right = _swapped(e, b) if e.attr("transpose_b") else b
    product, alpha = e.node("MatMul", left, right), e.attr("alpha")
    return product if alpha == 1 else e.node("Mul", product, e.const(alpha, e.dtype))


def _swapped(e: Emission, x: str) -> str:
    return e.transpose(x, [*range(e.rank - 2), e.rank - 1, e.rank - 2])


def _bias_add(e: Emission) -> str:
    axis = e.attr("axis") % e.rank
    bias = e.inputs[1]
    if axis != e.rank - 1:
        bias = e.reshape(bias, (*e.types[1].shape, *(1,) * (e.rank - 1 - axis)))
    return computed_in_int32(e, lambda x, _: e.node("Add", x, bias))


EMITTERS: Mapping[str, Emit] = {"matmul": _matmul, "batch_matmul": _matmul, "bias_add": _bias_add}
