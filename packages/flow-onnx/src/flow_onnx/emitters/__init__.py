"""How each op is written in ONNX: a function per op type, by family.

An emitter adds nodes to an `Emission` and gives the name of what they make, or of all outputs in a
tuple; it raises `Gap` where an op of these attributes has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flow_onnx.emission import Emission
from flow_onnx.emitters import (
    activation,
    arithmetic,
    choice,
    index,
    loss,
    matmul,
    norm,
    order,
    pad,
    quantize,
    reduce,
    shape,
    source,
    windows,
)

Emitter = Callable[[Emission], str | tuple[str, ...]]

FAMILIES = (
    activation, arithmetic, choice, index, loss, matmul, norm, order, pad, quantize, reduce, shape,
    source, windows,
)  # fmt: skip

EMITTERS: Mapping[str, Emitter] = {
    name: emitter for family in FAMILIES for name, emitter in family.EMITTERS.items()
}
"""By op type."""
