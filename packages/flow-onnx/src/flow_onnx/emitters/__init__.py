"""Emitters: one function per op type that adds its ONNX nodes, in one module per op family.

In: an `Emission`. Out: the names of its outputs, or `UnsupportedOp` if ONNX has no equivalent.
Must not import `flow_onnx.network`, `flow_onnx.export` or `flow_onnx.files`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flow_onnx.emission import Emission
from flow_onnx.emitters import (
    activation,
    arithmetic,
    choice,
    control,
    index,
    loss,
    matmul,
    norm,
    order,
    pad,
    quantize,
    recurrent,
    reduce,
    shape,
    source,
    windows,
)

Emitter = Callable[[Emission], str | tuple[str, ...]]

FAMILIES = (
    activation, arithmetic, choice, control, index, loss, matmul, norm, order, pad, quantize,
    recurrent, reduce, shape, source, windows,
)  # fmt: skip

EMITTERS: Mapping[str, Emitter] = {
    name: emitter for family in FAMILIES for name, emitter in family.EMITTERS.items()
}
"""Emitters by op type."""
