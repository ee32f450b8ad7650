"""Two-dimensional convolutions, forward and backward, on NHWC activations.

Weights have the layout of their variables, which is (filters, channels per group, height, width) or
channels-last. Each launch reorders the weights to the layout that the primitive selects.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from flow_core.authoring.specs import AttrValue, KernelSpec
from flow_onednn import binding, threads
from flow_onednn.kernels.convolution import im2col, pointwise, split_batch
from flow_onednn.kernels.nan_relu import preserve_nan
from flow_onednn.kernels.upcast import product
from flow_onednn.library import library
from flow_onednn.primitives import (
    Md,
    PostOps,
    Primitive,
    any_layout,
    create,
    dims,
    plain,
    row_major,
)
from flow_onednn.recipes import Build, Implementation, Operand, Problem, Recipe, recipe

LAST = "channels_last"
SUMS = "float32"
"""Element type in which gradients are summed over pixels."""
STRIDED = "brgconv_strided"
"""Implementation whose matrices have the channels of one group: for depthwise convolutions in
bfloat16 it takes 40 times as long as the loop that the library chooses for float32."""
ACTIVATIONS = {"": None, "relu": binding.RELU}


def first(shape: Sequence[int], last: bool) -> tuple[int, ...]:
    """Return the sizes of an array in channels-first order.

    >>> first((2, 5, 6, 3), True)
    (2, 3, 5, 6)
    """
    n, *space = shape
    return (n, space[-1], *space[:-1]) if last else tuple(shape)


def first_strides(shape: Sequence[int], last: bool) -> tuple[int, ...]:
    """Return the strides of a contiguous array, in elements and in channels-first order."""
    return first(row_major(shape), last)


def image(shape: Sequence[int], last: bool, dtype: str = "float32") -> Md:
    """Return the descriptor of activations, with logical axes NCHW and their own memory layout."""
    return plain(first(shape, last), dtype, first_strides(shape, last))


def nhwc(shape: Sequence[int], last: bool, dtype: str) -> Md:
    """Return the descriptor of activations of the same shape in the memory layout NHWC."""
    n, c, *space = first(shape, last)
    return image((n, *space, c), True, dtype)


def weight(shape: Sequence[int], groups: int, last: bool, dtype: str) -> tuple[Md, tuple[int, ...]]:
    """Return descriptor and logical sizes of weights; several groups add a leading axis."""
    sizes, strides = first(shape, last), first_strides(shape, last)
    if groups > 1:
        sizes = (groups, sizes[0] // groups, *sizes[1:])
        strides = (sizes[1] * strides[0], *strides)
    return plain(sizes, dtype, strides), sizes


class Geometry:
    """The geometry of a convolution as arguments of the library.

    Attributes:
        arguments: strides, dilations minus 1, padding before, padding after.
    """

    def __init__(self, attrs: dict[str, AttrValue], x: Sequence[int], y: Sequence[int]) -> None:
        """Compute the arguments; the padding after ends where the last window ends."""
        kernel_, stride, dilation, before = (
            attrs[k] for k in ("kernel_size", "strides", "dilation_rate", "padding_before")
        )
        after = [
            (o - 1) * s + (k - 1) * d + 1 - n - b
            for n, o, k, s, d, b in zip(x, y, kernel_, stride, dilation, before, strict=True)
        ]
        widths = (stride, [d - 1 for d in dilation], before, after)
        self.arguments = tuple(dims(w) for w in widths)


def _forward(
    attrs: dict[str, AttrValue], ends: tuple[Md, Md], w: Md, bias: Any, g: Geometry
) -> Primitive | None:
    post = PostOps(activation=ACTIVATIONS[attrs.get("activation", "")])
    return create(
        "convolution_forward", binding.FORWARD_TRAINING, binding.CONVOLUTION_DIRECT,
        ends[0], w, bias, ends[1], *g.arguments, post=post, math=attrs.get("math", ""),
    )  # fmt: skip


def _is_last(p: Problem) -> tuple[bool, bool]:
    """Return whether the activations are channels-last, and whether the weights are."""
    form = p.attrs.get("data_format")
    return (True, p.attrs["weights_last"]) if form is None else (form == LAST, form == LAST)


def _dtype(p: Problem) -> str:
    """Return the name of the element type of all arrays of a convolution."""
    return p.outputs[0].dtype.name


def _space(shape: Sequence[int], last: bool) -> tuple[int, ...]:
    return first(shape, last)[2:]


def build_forward(p: Problem) -> Recipe | None:
    """Build a convolution."""
    attrs, (last, w_last), dtype = p.attrs, _is_last(p), _dtype(p)
    x, w, *bias = (t.shape for t in p.inputs)
    (y,) = (t.shape for t in p.outputs)
    given, sizes = weight(w, attrs["groups"], w_last, dtype)
    geometry = Geometry(attrs, _space(x, last), _space(y, last))
    vector = plain(bias[0], dtype) if bias else library().ffi.NULL
    ends = nhwc(x, last, dtype), nhwc(y, last, dtype)
    made = _forward(attrs, ends, any_layout(sizes, dtype), vector, geometry)
    operands = [
        Operand("src", 0, image(x, last, dtype)), Operand("weights", 1, given),
        Operand("dst", 0, image(y, last, dtype), True),
    ]  # fmt: skip
    if bias:
        operands.append(Operand("bias", 2, vector))
    return recipe(made, operands)


def _hint(p: Problem, x: Sequence[int], sizes: Sequence[int], y: Sequence[int], last: bool) -> Any:
    """Return the geometry, and the forward primitive, a hint that the library's gradients need."""
    dtype = p.inputs[0].dtype.name
    geometry = Geometry(p.attrs, _space(x, last), _space(y, last))
    null = library().ffi.NULL
    math = {"math": p.attrs.get("math", "")}
    ends = nhwc(x, last, dtype), nhwc(y, last, dtype)
    forward = _forward(math, ends, any_layout(sizes, dtype), null, geometry)
    return geometry, forward


def build_data_grad(p: Problem) -> Recipe | None:
    """Build the gradient of the input."""
    (last, w_last), dtype = _is_last(p), _dtype(p)
    dy, w = p.inputs[0].shape, p.inputs[1].shape
    x = p.outputs[0].shape
    given, sizes = weight(w, p.attrs["groups"], w_last, dtype)
    geometry, forward = _hint(p, x, sizes, dy, last)
    if forward is None:
        return None
    made = create(
        "convolution_backward_data", binding.CONVOLUTION_DIRECT,
        nhwc(x, last, dtype), any_layout(sizes, dtype), nhwc(dy, last, dtype), *geometry.arguments,
        forward.desc, math=p.attrs.get("math", ""),
    )  # fmt: skip
    slow = p.attrs["groups"] > 1 and dtype != SUMS
    if slow and made is not None and made.implementation.startswith(STRIDED):
        return None
    operands = (
        Operand("diff_dst", 0, image(dy, last, dtype)), Operand("weights", 1, given),
        Operand("diff_src", 0, image(x, last, dtype), True),
    )  # fmt: skip
    return recipe(made, operands)


def build_filter_grad(p: Problem) -> Recipe | None:
    """Build the gradients of the weights and, as a second output, of the bias.

    Half-precision gradients are summed in float32 and rounded once.
    """
    (last, w_last), dtype = _is_last(p), p.inputs[0].dtype.name
    dy, x = (t.shape for t in p.inputs)
    dw, *bias = (t.shape for t in p.outputs)
    given, sizes = weight(dw, p.attrs["groups"], w_last, _dtype(p))
    geometry, forward = _hint(p, x, sizes, dy, last)
    if forward is None:
        return None
    vector = plain(bias[0], _dtype(p)) if bias else library().ffi.NULL
    # after rounding, equal bits in a trial run do not show that a sum was not divided
    rounded = bool(bias) and _dtype(p) != SUMS
    with threads.single_threaded() if rounded else nullcontext():
        made = create(
            "convolution_backward_weights", binding.CONVOLUTION_DIRECT,
            nhwc(x, last, dtype), any_layout(sizes, SUMS), vector, nhwc(dy, last, dtype),
            *geometry.arguments, forward.desc, math=p.attrs.get("math", ""),
        )  # fmt: skip
    if made is not None and rounded:
        made = replace(made, threads=1)
    operands = [
        Operand("diff_dst", 0, image(dy, last, dtype)), Operand("src", 1, image(x, last, dtype)),
        Operand("diff_weights", 0, given, True),
    ]  # fmt: skip
    if bias:
        operands.append(Operand("diff_bias", 1, vector, True))
    return recipe(made, operands)


def _split_filter_grad(p: Problem) -> Implementation | None:
    """Build the weight gradient of channels-last images, split along the batch."""
    return split_batch.filter_grad(p, build_filter_grad) if _is_last(p)[0] else None


def _two(build: Build) -> Build:
    """Restrict a build function to two spatial dimensions."""
    return lambda p: build(p) if len(p.inputs[0].shape) == 4 else None


def _either(product: Build, build: Build) -> Build:
    """Return a function that builds a matrix product if that is possible, else a convolution."""
    return lambda p: product(p) or build(p)


def _filter_product(p: Problem) -> Implementation | None:
    return pointwise.filter_grad(p) or im2col.filter_grad(p) or _split_filter_grad(p)


KERNELS: tuple[KernelSpec, ...] = (
    product("conv2d", build_forward),
    product("conv_data_grad", _two(build_data_grad)),
    product("conv_filter_grad", _two(_either(_split_filter_grad, build_filter_grad))),
    product("onednn_conv", preserve_nan(_either(pointwise.forward, build_forward))),
    product("onednn_conv_data_grad", _either(pointwise.data_grad, build_data_grad)),
    product("onednn_conv_filter_grad", _either(_filter_product, build_filter_grad)),
)
