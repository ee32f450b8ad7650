"""Weight gradients of convolutions with few output pixels, as im2col and one matrix product.

Each row of the im2col matrix has the window of one output pixel in the order of the weights, so
that the product with the output gradient has the layout of the weights. If there are fewer pixels
than filters, the library's primitives, which reorder the weights, take 1.5 times as long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import AttrValue, BindContext, tensor_type
from flow_core.base.dtypes import float32
from flow_onednn.kernels import matmul
from flow_onednn.native import compiler
from flow_onednn.native.calls import call
from flow_onednn.primitives import address
from flow_onednn.recipes import Implementation, Problem

X = 1
"""Position of the image among the inputs."""


@dataclass(frozen=True, slots=True)
class Im2col(matmul.WithCopy):
    """An im2col transformation, and the product of the output gradient and its matrix."""

    # Arguments of the C loop: n, h, w, c, then for each spatial axis the output size, kernel size,
    # stride, dilation and padding before.
    sizes: tuple[int, ...]

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches: im2col, then the product."""
        rows, rest = self.split(ctx.workspace)
        inputs = list(ctx.inputs)
        make = compiler.ffi(compiler.CDEF)
        pointers = (make.cast("float *", address(a)) for a in (inputs[X], rows))
        write = call("im2col", *pointers, make.new("long[]", self.sizes))
        inputs[X] = rows
        return [write, *self.product.bind(replace(ctx, inputs=tuple(inputs), workspace=rest))]


def filter_grad(p: Problem) -> Implementation | None:
    """Build the weight gradient; return None if im2col is not possible or a primitive is faster."""
    dy, x = (t.shape for t in p.inputs)
    rows, filters = prod(dy[:-1]), dy[-1]
    window: Any = p.attrs["kernel_size"]
    if len(p.outputs) > 1 or p.attrs["groups"] > 1 or prod(window) == 1 or rows > filters:
        return None
    if any(t.dtype is not float32 for t in (*p.inputs, *p.outputs)) or p.attrs.get("weights_last"):
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
    return Im2col(made, rows * seen, sizes)


def _product(p: Problem, rows: int, filters: int, seen: int) -> Implementation | None:
    attrs: dict[str, AttrValue] = {
        "transpose_a": True, "transpose_b": False, "alpha": 1.0, "activation": "",
        "math": p.attrs.get("math", ""),
    }  # fmt: skip
    shapes = (rows, filters), (rows, seen), (filters, seen)
    a, b, c = (tensor_type(shape, float32) for shape in shapes)
    return matmul.build(Problem("onednn_matmul", (a, b), (c,), tuple(sorted(attrs.items()))))
