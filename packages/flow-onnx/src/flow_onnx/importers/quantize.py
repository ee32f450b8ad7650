"""Importers of quantization to int8 and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from flow_onnx.importers.context import Blob, Importer, Node, as_type, reshaped
from flow_onnx.importers.folding import emit

LEVELS = ("int8", "uint8")


def _grid(n: Node, axis: int | None, dtype: str) -> list[Blob]:
    """Return the scale and the zero point, which is 0 by default, as the op takes them."""
    shape = (1,) if axis is None else n.shape(1)
    scale = n.blob(1, trainable=False)
    if n.has(2):
        zero = n.blob(2, trainable=False)
    else:
        zero = n.constant(np.zeros(shape, dtype), f"{n.proto.output[0]}-zero")
    return [reshaped(scale, shape), reshaped(zero, shape)]


def _axis(n: Node) -> int | None:
    """Return the axis whose indices have grids of their own."""
    if n.attr("block_size", 0):
        n.unsupported("block_size: grids of blocks")
    count = n.shape(1)
    if count == (1,) or not count:
        return None
    return n.axis(len(n.shape(0)), 1)


def _type_of(n: Node, index: int) -> str:
    return str(n.value(index).dtype.name)


def _quantize(n: Node) -> Blob:
    axis = _axis(n)
    dtype = _type_of(n, 2) if n.has(2) else "uint8"
    plain = n.attr("output_dtype", 0) in (0, TensorProto.UINT8, TensorProto.INT8)
    if dtype not in LEVELS or _type_of(n, 0) != "float32" or not plain:
        n.unsupported(f"quantization of {_type_of(n, 0)} to {dtype}")
    return emit("quantize_linear", n.blob(), *_grid(n, axis, dtype), axis=axis)


def _dequantize(n: Node) -> Blob:
    axis, dtype = _axis(n), _type_of(n, 0)
    if _type_of(n, 1) != "float32":
        n.unsupported(f"numbers of type {_type_of(n, 1)}")
    if dtype == "int32":  # the bias of a quantized convolution
        if n.has(2) and np.any(n.known(2, "the zero point")):
            n.unsupported("int32 with a zero point")
        shape = [1] * len(n.shape(0))
        if axis is not None:
            shape[axis] = -1
        return emit("broadcast_mul", as_type(n.blob(), "float32"), reshaped(n.blob(1), shape))
    if dtype not in LEVELS:
        n.unsupported(f"levels of type {dtype}")
    return emit("dequantize_linear", n.blob(trainable=False), *_grid(n, axis, dtype), axis=axis)


IMPORTERS: Mapping[str, Importer] = {
    "DequantizeLinear": _dequantize, "QuantizeLinear": _quantize,
}  # fmt: skip
