"""Pointwise (1 x 1) convolutions as matrix products over pixels.

The product reads the weights in place, whereas a convolution primitive reorders the weights: with
few pixels and many channels, the reorder takes as long as the convolution. With strides, the pixels
that the convolution uses are gathered first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import AttrValue, BindContext, TensorType, tensor_type
from flow_core.base.dtypes import float32
from flow_onednn.kernels import matmul
from flow_onednn.native import compiler
from flow_onednn.native.calls import call
from flow_onednn.recipes import Implementation, Problem

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StridedProduct(matmul.WithCopy):
    """A product over the pixels that a strided convolution uses, which are made contiguous."""

    full: Shape  # NHWC shape of the image with all pixels
    used: Shape  # NHWC shape of the image with only the used pixels
    strides: Shape  # strides along height and width
    index: int | None  # position of the image among the inputs; None if the image is the output

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches, which gather and multiply, or multiply and scatter."""
        pixels, rest = self.split(ctx.workspace)
        if self.index is None:
            product = replace(ctx, outputs=(pixels,), workspace=rest)
            scatter = self._copy("scatter_pixels", pixels, ctx.outputs[0])
            return [*self.product.bind(product), scatter]
        inputs = list(ctx.inputs)
        inputs[self.index] = pixels
        gather = self._copy("gather_pixels", ctx.inputs[self.index], pixels)
        return [gather, *self.product.bind(replace(ctx, inputs=tuple(inputs), workspace=rest))]

    def _copy(self, name: str, source: Any, target: Any) -> Launch:
        make = compiler.ffi(compiler.CDEF)
        pointers = (make.cast("float *", a.ctypes.data) for a in (source, target))
        sizes = (*self.full, *self.used[1:3], *self.strides)
        return call(name, *pointers, *sizes)


def applies(p: Problem) -> bool:
    """Return whether a convolution is pointwise and has channels-last float32 images."""
    attrs = p.attrs
    widths = (*attrs["padding_before"], *(attrs.get("padding_after") or ()))
    one = set(attrs["kernel_size"]) == {1} and attrs["groups"] == 1
    exact = all(t.dtype is float32 for t in (*p.inputs, *p.outputs))
    return exact and one and not any(widths) and attrs.get("data_format") in (None, "channels_last")


def forward(p: Problem) -> Implementation | None:
    """Build a convolution as a product; None if it is not pointwise or a primitive is faster."""
    x, w, *bias = (t.shape for t in p.inputs)
    y = p.outputs[0].shape
    made = _product(p, (_rows(y), x[-1]), (w[0], x[-1]), (_rows(y), w[0]), *bias, transpose_b=True)
    return _placed(p, made, x, y, 0, _rows(y) <= max(x[-1], w[0]))


def data_grad(p: Problem) -> Implementation | None:
    """Build the gradient of the input."""
    dy, w = (t.shape for t in p.inputs)
    x = p.outputs[0].shape
    made = _product(p, (_rows(dy), w[0]), (w[0], x[-1]), (_rows(dy), x[-1]))
    return _placed(p, made, x, dy, None, _rows(dy) <= max(x[-1], w[0]))


def filter_grad(p: Problem) -> Implementation | None:
    """Build the gradient of the weights; return None if the op also computes a bias gradient."""
    dy, x = (t.shape for t in p.inputs)
    if len(p.outputs) > 1:
        return None
    shapes = (_rows(dy), dy[-1]), (_rows(dy), x[-1]), (dy[-1], x[-1])
    made = _product(p, *shapes, transpose_a=True)
    return _placed(p, made, x, dy, 1, _rows(dy) <= 2 * max(x[-1], dy[-1]))


def _rows(image: Shape) -> int:
    """Return the number of pixels."""
    return prod(image[:-1])


def _product(
    p: Problem, a: Shape, b: Shape, c: Shape, *bias: Shape, **how: bool
) -> Implementation | None:
    if not applies(p):
        return None
    attrs: dict[str, AttrValue] = {"transpose_a": False, "transpose_b": False, "alpha": 1.0, **how}
    attrs |= {key: p.attrs.get(key, "") for key in ("activation", "math")}
    types = tuple(map(_type, (a, b, *bias)))
    return matmul.build(Problem("onednn_matmul", types, (_type(c),), tuple(sorted(attrs.items()))))


def _type(shape: Shape) -> TensorType:
    return tensor_type(shape, float32)


def _placed(
    p: Problem, made: Implementation | None, full: Shape, out: Shape, index: int | None, pays: bool
) -> Implementation | None:
    strides = tuple(p.attrs["strides"])
    if made is None or not pays:
        return None
    if set(strides) == {1}:
        return made
    used = (*out[:3], full[-1])
    if not compiler.available():
        return None
    return StridedProduct(made, prod(used), full, used, strides, index)
