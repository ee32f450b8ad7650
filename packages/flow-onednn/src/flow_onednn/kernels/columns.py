"""Gradients of convolutions' weights as one matrix product, where there are few pixels.

What each pixel of the result sees is written out as a row, in the order of the weights: the product
with the result's gradient then has the weights' own layout.  The library's kernels have a layout of
their own, and take half as long again where there are fewer pixels than filters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from flow_core.base.alignment import aligned
from flow_core.base.dtypes import float32
from flow_core.device import Launch
from flow_core.ir.graph import AttrValue, tensor_type
from flow_core.plugins.specs import BindContext
from flow_onednn.kernels import matmul
from flow_onednn.native import compiler
from flow_onednn.primitives import address
from flow_onednn.recipes import Cooked, Problem

FLOAT_BYTES = 4
X = 1
"""The position of the image among the inputs."""


@dataclass(frozen=True, slots=True)
class Columns:
    """A product with what each pixel sees.

    Attributes:
        product: of the result's gradient with the rows.
        sizes: what C wants to know: n, h, w, c, then per axis the result's size, the window's size,
            the stride, the dilation and the padding before.
        size: elements of all rows.
    """

    product: Cooked
    sizes: tuple[int, ...]
    size: int

    @property
    def workspace(self) -> int:
        """Bytes for the rows, and for the product."""
        return self._bytes + self.product.workspace

    @property
    def _bytes(self) -> int:
        return aligned(FLOAT_BYTES * self.size)

    @property
    def reorders(self) -> int:
        """Bytes that are copied: the rows."""
        return FLOAT_BYTES * self.size + self.product.reorders

    @property
    def allocates(self) -> bool:
        """Whether the library takes memory at each launch."""
        return self.product.allocates

    def bind(self, ctx: BindContext) -> list[Launch]:
        """The launches: write the rows out, multiply."""
        rows = ctx.workspace[: FLOAT_BYTES * self.size].view("float32")
        inputs = list(ctx.inputs)
        make = compiler.ffi(compiler.CDEF)
        pointers = (make.cast("float *", address(a)) for a in (inputs[X], rows))
        write = partial(compiler.native().columns, *pointers, make.new("long[]", self.sizes))
        inputs[X] = rows
        rest = replace(ctx, inputs=tuple(inputs), workspace=ctx.workspace[self._bytes :])
        return [write, *self.product.bind(rest)]


def filter_grad(p: Problem) -> Cooked | None:
    """The recipe of the gradient of weights, None where it does not apply or pay."""
    dy, x = (t.shape for t in p.inputs)
    rows, filters = prod(dy[:-1]), dy[-1]
    window: Any = p.attrs["kernel_size"]
    if len(p.outputs) > 1 or p.attrs["groups"] > 1 or prod(window) == 1 or rows > filters:
        return None
    if p.outputs[0].dtype is not float32 or p.attrs.get("weights_last"):
        return None
    if not compiler.available():
        return None
    seen = x[-1] * prod(window)
    made = _product(p, rows, filters, seen)
    if made is None:
        return None
    axes = zip(
        dy[1:3], window, p.attrs["strides"], p.attrs["dilation_rate"], p.attrs["padding_before"],
        strict=True,
    )  # fmt: skip
    sizes = (*x, *(n for axis in axes for n in axis))
    return Columns(made, sizes, rows * seen)


def _product(p: Problem, rows: int, filters: int, seen: int) -> Cooked | None:
    attrs: dict[str, AttrValue] = {
        "transpose_a": True, "transpose_b": False, "alpha": 1.0, "activation": "",
        "math": p.attrs.get("math", ""),
    }  # fmt: skip
    shapes = (rows, filters), (rows, seen), (filters, seen)
    a, b, c = (tensor_type(shape, float32) for shape in shapes)
    return matmul.cook(Problem("onednn_matmul", (a, b), (c,), tuple(sorted(attrs.items()))))
