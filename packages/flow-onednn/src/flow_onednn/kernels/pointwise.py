"""Convolutions with windows of one element, as matrix products of the rows of pixels.

Their weights are used as they lie, where a convolution copies them into a layout of its own: with
few pixels and many channels that copy costs as much as the rest.  With strides, the pixels that are
met are brought together first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from flow_core.base.alignment import aligned
from flow_core.base.dtypes import float32
from flow_core.device import Launch
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.plugins.specs import BindContext
from flow_onednn.kernels import matmul
from flow_onednn.native import compiler
from flow_onednn.recipes import Cooked, Problem

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Strided:
    """A product of the pixels that a stride meets.

    Attributes:
        product: on pixels side by side.
        full: NHWC shape of the image with all pixels.
        met: of the one with those that are met.
        strides: along height and width.
        index: position of the image among the inputs, None where it is the output.
    """

    product: Cooked
    full: Shape
    met: Shape
    strides: Shape
    index: int | None

    @property
    def workspace(self) -> int:
        """Bytes for the pixels side by side, and for the product."""
        return self._bytes + self.product.workspace

    @property
    def _bytes(self) -> int:
        return aligned(4 * prod(self.met))

    @property
    def reorders(self) -> int:
        """Bytes that are copied: the pixels."""
        return 4 * prod(self.met) + self.product.reorders

    @property
    def allocates(self) -> bool:
        """Whether the library takes memory at each launch."""
        return self.product.allocates

    def bind(self, ctx: BindContext) -> list[Launch]:
        """The launches: bring together and multiply, or multiply and spread."""
        near = ctx.workspace[: 4 * prod(self.met)].view("float32")
        rest = ctx.workspace[self._bytes :]
        if self.index is None:
            product = replace(ctx, outputs=(near,), workspace=rest)
            return [*self.product.bind(product), self._copy("spread_pixels", near, ctx.outputs[0])]
        inputs = list(ctx.inputs)
        inputs[self.index] = near
        gather = self._copy("take_pixels", ctx.inputs[self.index], near)
        return [gather, *self.product.bind(replace(ctx, inputs=tuple(inputs), workspace=rest))]

    def _copy(self, name: str, source: Any, target: Any) -> Launch:
        make = compiler.ffi(compiler.CDEF)
        pointers = (make.cast("float *", a.ctypes.data) for a in (source, target))
        sizes = (*self.full, *self.met[1:3], *self.strides)
        run = getattr(compiler.native(), name)
        return partial(run, *pointers, *sizes)


def applies(p: Problem) -> bool:
    """Whether a convolution has windows of one element on channels-last images."""
    attrs = p.attrs
    widths = (*attrs["padding_before"], *(attrs.get("padding_after") or ()))
    one = set(attrs["kernel_size"]) == {1} and attrs["groups"] == 1
    exact = p.outputs[0].dtype is float32
    return exact and one and not any(widths) and attrs.get("data_format") in (None, "channels_last")


def forward(p: Problem) -> Cooked | None:
    """The recipe of a convolution as a product, None where it does not apply or pay."""
    x, w, *bias = (t.shape for t in p.inputs)
    y = p.outputs[0].shape
    made = _product(p, (_rows(y), x[-1]), (w[0], x[-1]), (_rows(y), w[0]), *bias, transpose_b=True)
    return _placed(p, made, x, y, 0, _rows(y) <= max(x[-1], w[0]))


def data_grad(p: Problem) -> Cooked | None:
    """The recipe of the gradient of its input."""
    dy, w = (t.shape for t in p.inputs)
    x = p.outputs[0].shape
    made = _product(p, (_rows(dy), w[0]), (w[0], x[-1]), (_rows(dy), x[-1]))
    return _placed(p, made, x, dy, None, _rows(dy) <= max(x[-1], w[0]))


def filter_grad(p: Problem) -> Cooked | None:
    """The recipe of the gradient of its weights; that of a bias is not made here."""
    dy, x = (t.shape for t in p.inputs)
    if len(p.outputs) > 1:
        return None
    shapes = (_rows(dy), dy[-1]), (_rows(dy), x[-1]), (dy[-1], x[-1])
    made = _product(p, *shapes, transpose_a=True)
    return _placed(p, made, x, dy, 1, _rows(dy) <= 2 * max(x[-1], dy[-1]))


def _rows(image: Shape) -> int:
    """The number of pixels."""
    return prod(image[:-1])


def _product(p: Problem, a: Shape, b: Shape, c: Shape, *bias: Shape, **how: bool) -> Cooked | None:
    if not applies(p):
        return None
    attrs: dict[str, AttrValue] = {"transpose_a": False, "transpose_b": False, "alpha": 1.0, **how}
    attrs |= {key: p.attrs.get(key, "") for key in ("activation", "math")}
    types = tuple(map(_type, (a, b, *bias)))
    return matmul.cook(Problem("onednn_matmul", types, (_type(c),), tuple(sorted(attrs.items()))))


def _type(shape: Shape) -> TensorType:
    return tensor_type(shape, float32)


def _placed(
    p: Problem, made: Cooked | None, full: Shape, out: Shape, index: int | None, pays: bool
) -> Cooked | None:
    strides = tuple(p.attrs["strides"])
    if made is None or not pays:
        return None
    if set(strides) == {1}:
        return made
    met = (*out[:3], full[-1])
    return Strided(made, full, met, strides, index) if compiler.available() else None
