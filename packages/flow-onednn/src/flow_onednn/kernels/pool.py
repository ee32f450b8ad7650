"""Two-dimensional pooling: oneDNN computes average pooling; C loops compute max pooling.

The library's max pooling drops NaN and returns the least finite number for -inf. In training,
`onednn_max_pool` also returns the positions of the maxima, so that its gradient does not read the
input.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import AttrValue, BindContext, KernelQuery, KernelSpec, TensorType
from flow_core.base.alignment import aligned
from flow_onednn import binding
from flow_onednn.binding import CData
from flow_onednn.kernels.convolution.conv import LAST, first, image
from flow_onednn.kernels.loops import null, pointer, thread_parts, upcast_loop_kernel
from flow_onednn.kernels.upcast import is_half
from flow_onednn.native import compiler
from flow_onednn.native.calls import call
from flow_onednn.primitives import Md, Primitive, create, dims
from flow_onednn.recipes import Operand, Problem, Recipe, kernel, recipe

Shape = tuple[int, ...]
FLOAT = "float32"
PLACES = 256
"""Maximum number of elements of a window, because positions within a window are stored as bytes."""


def window(attrs: dict[str, AttrValue], x: Shape, y: Shape) -> tuple[Any, ...] | None:
    """Return strides, kernel, dilation, and padding before and after, as C arrays.

    Returns:
        The arrays; None if the padding is not smaller than the window.
    """
    kernel_, stride = attrs["pool_size"], attrs["strides"]
    before = _before(attrs, x, y)
    after = [
        max(0, (o - 1) * s + k - n - b)
        for n, o, k, s, b in zip(x, y, kernel_, stride, before, strict=True)
    ]
    if any(b >= k or a >= k for b, a, k in zip(before, after, kernel_, strict=True)):
        return None
    return tuple(dims(v) for v in (stride, kernel_, (0, 0), before, after))


def _before(attrs: dict[str, AttrValue], x: Shape, y: Shape) -> list[int]:
    padding = attrs["padding"]
    if padding == "valid":
        return [0, 0]
    if padding == "customized":
        return list(attrs["padding_before"])
    columns = zip(x, y, attrs["pool_size"], attrs["strides"], strict=True)
    total = [max(0, (o - 1) * s + k - n) for n, o, k, s in columns]
    return [(t + (padding == "same_lower")) // 2 for t in total]


def _space(shape: Shape, last: bool) -> Shape:
    return first(shape, last)[2:]


def forward(
    attrs: dict[str, AttrValue], x: Shape, y: Shape, prop: int, dtype: str = FLOAT,
    kind: str = "avg",
) -> Primitive | None:  # fmt: skip
    """Create the primitive of average pooling, or of max pooling."""
    last = attrs["data_format"] == LAST
    widths = window(attrs, _space(x, last), _space(y, last))
    if widths is None:
        return None
    ends = image(x, last, dtype), image(y, last, dtype)
    return create("pooling_forward", prop, binding.POOLING[kind], *ends, *widths)


def backward(
    attrs: dict[str, AttrValue], x: Shape, y: Shape, dtype: str = FLOAT
) -> Primitive | None:
    """Create the primitive of the gradient of average pooling."""
    last = attrs["data_format"] == LAST
    hint = forward(attrs, x, y, binding.FORWARD_TRAINING, dtype)
    widths = window(attrs, _space(x, last), _space(y, last))
    if hint is None or widths is None:
        return None
    ends = image(x, last, dtype), image(y, last, dtype)
    return create("pooling_backward", binding.POOLING["avg"], *ends, *widths, hint.desc)


def max_sizes(attrs: dict[str, AttrValue], x: Shape, y: Shape) -> tuple[int, ...] | None:
    """Return the sizes of a max pooling for the C loops.

    Returns:
        The sizes; None if a window contains no element of the input.
    """
    last = attrs["data_format"] == LAST
    (n, c, h, w), (_, _, oh, ow) = first(x, last), first(y, last)
    kernel_, stride = attrs["pool_size"], attrs["strides"]
    before = _before(attrs, (h, w), (oh, ow))
    columns = zip((h, w), (oh, ow), kernel_, stride, before, strict=True)
    if any(b >= k or (o - 1) * s - b >= n for n, o, k, s, b in columns) or not prod((*x, *y)):
        return None
    planes = (n, h, w, c) if last else (n * c, h, w, 1)
    return (*planes, oh, ow, *kernel_, *stride, *before)


def places_bytes(attrs: dict[str, AttrValue], x: Shape, y: Shape) -> int | None:
    """Return the size of the positions output of `onednn_max_pool`; None without a kernel."""
    few = prod(attrs["pool_size"]) <= PLACES and compiler.available()
    return prod(y) if few and max_sizes(attrs, x, y) else None


def _images(p: Problem, x: Shape, y: Shape) -> tuple[Md, Md]:
    last, dtype = p.attrs["data_format"] == LAST, _dtype(p)
    return image(x, last, dtype), image(y, last, dtype)


def _dtype(p: Problem) -> str:
    """Return the name of the element type of the activations."""
    return p.outputs[0].dtype.name


def _build(kind: str, p: Problem) -> Recipe | None:
    x, y = p.inputs[0].shape, p.outputs[0].shape
    made = forward(p.attrs, x, y, binding.FORWARD_INFERENCE, _dtype(p), kind)
    source, target = _images(p, x, y)
    return recipe(made, (Operand("src", 0, source), Operand("dst", 0, target, True)))


def _build_average_grad(p: Problem) -> Recipe | None:
    x, y = p.outputs[0].shape, p.inputs[2].shape
    made = backward(p.attrs, x, y, _dtype(p))
    source, target = _images(p, x, y)
    operands = (Operand("diff_dst", 2, target), Operand("diff_src", 0, source, True))
    return recipe(made, operands)


def _c_sizes(query: KernelQuery, x: TensorType, y: TensorType) -> tuple[int, ...] | None:
    return max_sizes(dict(query.attrs), x.shape, y.shape)


def _c_array(sizes: tuple[int, ...] | None) -> CData:
    return compiler.ffi(compiler.CDEF).new("long[]", list(sizes or ()))


def _accepts_max(query: KernelQuery) -> bool:
    (x,), y = query.inputs, query.outputs[0]
    sizes = _c_sizes(query, x, y)
    native = is_half(x) and sizes is not None and not _is_plane(query, sizes)
    return sizes is not None and (native or x.dtype.name == FLOAT)


def _is_plane(query: KernelQuery, sizes: tuple[int, ...]) -> bool:
    """Return whether the images have a single channel, and no positions are needed."""
    return sizes[3] == 1 and len(query.outputs) == 1


def _buffer_bytes(query: KernelQuery) -> int:
    """Return the workspace bytes: one input row per thread for channels-first images, else 0."""
    (n, _, w, c, oh, *_) = _c_sizes(query, query.inputs[0], query.outputs[0]) or (0,) * 5
    return aligned(4 * w * thread_parts(n * oh)) if c == 1 else 0


def _bind_max(ctx: BindContext) -> Launch:
    (x,), (y, *places) = ctx.inputs, ctx.outputs
    sizes = _c_sizes(ctx.query, ctx.query.inputs[0], ctx.query.outputs[0])
    c_sizes = _c_array(sizes)
    if sizes and _is_plane(ctx.query, sizes):
        count = thread_parts(sizes[0] * sizes[4])
        buffer = pointer(ctx.workspace)
        return call("max_pool_planes", pointer(x), pointer(y), buffer, c_sizes, count)
    where = pointer(places[0], "uint8_t *") if places else null()
    if is_half(ctx.query.inputs[0]):
        halves = (pointer(a, "uint16_t *") for a in (x, y))
        return call("max_pool_bf16", *halves, where, c_sizes)
    return call("max_pool", pointer(x), pointer(y), where, c_sizes)


def _accepts_max_grad(query: KernelQuery) -> bool:
    dy, places = query.inputs
    return dy.dtype.name == FLOAT and places.size == dy.size


def _bind_max_grad(ctx: BindContext) -> Launch:
    (dy, places), (dx,) = ctx.inputs, ctx.outputs
    c_sizes = _c_array(_c_sizes(ctx.query, ctx.query.outputs[0], ctx.query.inputs[0]))
    where = pointer(places, "uint8_t *")
    return call("max_pool_grad", pointer(dy), where, pointer(dx), c_sizes)


def _has_levels(query: KernelQuery) -> bool:
    x = query.inputs[0]
    return x.dtype.name in ("int8", "uint8") and x.size > 0


KERNELS: tuple[KernelSpec, ...] = (
    upcast_loop_kernel("max_pool_2d", _bind_max, _accepts_max, _buffer_bytes),
    kernel("onednn_int8_pool", partial(_build, "max"), accepts=_has_levels),
    kernel("avg_pool_2d", partial(_build, "avg")),
    kernel("avg_pool_2d_grad", _build_average_grad),
    upcast_loop_kernel("onednn_max_pool", _bind_max, _accepts_max),
    upcast_loop_kernel("onednn_max_pool_grad", _bind_max_grad, _accepts_max_grad),
)
