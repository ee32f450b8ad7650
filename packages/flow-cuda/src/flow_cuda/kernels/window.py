"""Kernels of pooling and convolution over one to three spatial axes.

Convolutions are lowered to matrix products (im2col); the workspace holds the unfolded input.
Products that are added up afterwards are not rounded to 16-bit types before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec, TensorType
from flow_core.base.shapes import same_padding
from flow_cuda.codegen.indices import index_type
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.config import allows_tf32
from flow_cuda.device.hardware import Product
from flow_cuda.device.launch import ProductLaunch, Read, Struct, Write, call, space, strides
from flow_cuda.kernels.binding import aligned, c_type, collect_launches, kernel, vector_width
from flow_cuda.kernels.matmul import is_floating
from flow_cuda.kernels.move import UNSIGNED, contiguous

HEADER = "window.h"
UNROLLED = 27
"""Loops over windows of at most so many elements are unrolled completely."""
Ints = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WindowLayout:
    """The sizes and strides of a tensor with batch, channel and spatial axes."""

    batch: int  # sizes of the batch and channel axes
    channels: int
    space: Ints  # three spatial sizes
    steps: Ints  # strides of batch, channels and spatial axes, in elements

    @property
    def elements(self) -> Struct:
        """The index space of all elements, batch first."""
        return Struct("Space", space((self.batch, self.channels, *self.space)))

    @property
    def strides(self) -> Struct:
        return Struct("Strides", strides(self.steps))


def layout(type_: TensorType, data_format: str) -> WindowLayout:
    """Describe the layout of a tensor; missing spatial axes have size 1.

    >>> from flow_core.base.dtypes import float32
    >>> from flow_core.authoring.specs import tensor_type
    >>> layout(tensor_type((2, 5, 3), float32), "channels_last")
    WindowLayout(batch=2, channels=3, space=(5, 1, 1), steps=(15, 1, 3, 0, 0))
    """
    shape, steps = type_.shape, contiguous(type_.shape)
    rank = len(shape)
    channel = 1 if data_format == "channels_first" else rank - 1
    axes = [i for i in range(1, rank) if i != channel]
    size = tuple(shape[i] for i in axes)
    rest = 3 - len(size)
    return WindowLayout(
        shape[0],
        shape[channel],
        (*size, *(1,) * rest),
        (steps[0], steps[channel], *(steps[i] for i in axes), *(0,) * rest),
    )


def _pad_to_three(values: Sequence[int], default: int) -> Ints:
    return (*values, *(default,) * (3 - len(values)))


def _window(
    size: Ints, kernel: Ints, stride: Ints, before: Ints, dilation: Ints, out: Ints
) -> Struct:
    rows = (
        size,
        _pad_to_three(kernel, 1),
        _pad_to_three(stride, 1),
        _pad_to_three(before, 0),
        _pad_to_three(dilation, 1),
        out,
    )
    return Struct("Window", np.array(rows, np.int64).reshape(-1))


# --- pooling


def _before(attrs: Any, axis: int, size: int) -> int:
    """Return the padding before one spatial axis."""
    kernel, stride, padding = attrs["pool_size"][axis], attrs["strides"][axis], attrs["padding"]
    if padding == "valid":
        return 0
    if padding == "customized":
        return int(attrs["padding_before"][axis])
    return same_padding(size, kernel, stride, 1, padding == "same_lower")[0]


def _pool_arguments(
    ctx: BindContext, x: TensorType, y: TensorType
) -> tuple[Ints, tuple[str, ...], Struct]:
    """Return the outer and inner size, the C++ types and the window; see `source/window.h`."""
    attrs: Any = ctx.attrs
    big, small = (layout(t, attrs["data_format"]) for t in (x, y))
    dims = len(attrs["pool_size"])
    before = tuple(_before(attrs, i, n) for i, n in enumerate(big.space[:dims]))
    ones = (1,) * dims
    window = _window(big.space, attrs["pool_size"], attrs["strides"], before, ones, small.space)
    outer, inner = big.batch, big.channels
    if attrs["data_format"] == "channels_first":
        outer, inner = outer * inner, 1
    width = vector_width((inner,), (*ctx.inputs, *ctx.outputs))
    size: Ints = attrs["pool_size"]
    unrolled = max(size) if prod(size) <= UNROLLED else 4
    types = (c_type(x), str(width), index_type(max(x.size, y.size)), str(unrolled))
    return (outer, inner // width), types, window


def _pool(mode: str, ctx: BindContext) -> Launch:
    x, y = ctx.query.inputs[0], ctx.query.outputs[0]
    sizes, types, window = _pool_arguments(ctx, x, y)
    values = (Read(ctx.inputs[0]), ctx.outputs[0], *sizes, window)
    return call(f"{mode}_pool", HEADER, types, *values, items=y.size // int(types[1]))


def _pool_grad(mode: str, ctx: BindContext) -> Launch:
    x, y = ctx.query.inputs[:2]
    sizes, types, window = _pool_arguments(ctx, x, y)
    inputs = map(Read, ctx.inputs if mode == "max" else ctx.inputs[2:])
    values = (*inputs, ctx.outputs[0], *sizes, window)
    return call(f"{mode}_pool_grad", HEADER, types, *values, items=x.size // int(types[1]))


def _is_floating(query: KernelQuery) -> bool:
    return query.inputs[0].dtype.is_floating


# --- convolution


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution, computed as matrix products."""

    x: WindowLayout  # larger tensor and the smaller one; a transposed convolution computes x from y
    y: WindowLayout
    window: Struct
    kernel: Ints  # window sizes
    groups: int
    last: bool  # whether the channel axis is the last one
    dtype: Any
    tf32: bool = False  # whether float32 may be rounded to TF32 (10 mantissa bits)

    @property
    def depth(self) -> int:
        """Size of the dimension reduced by a product: window elements times channels per group."""
        return self.x.channels // self.groups * prod(self.kernel)

    @property
    def places(self) -> int:
        """Number of window positions per sample."""
        return prod(self.y.space)

    @property
    def columns_size(self) -> int:
        """Number of elements of the unfolded input."""
        return self.x.batch * self.groups * self.depth * self.places

    @property
    def wide(self) -> Any:
        """The type of products that are added up."""
        return self.dtype.accumulate

    @property
    def column_steps(self) -> Ints:
        """Strides of the unfolded input: batch, channel of a group, window elements, positions."""
        taps, k = prod(self.kernel), contiguous(_pad_to_three(self.kernel, 1))
        o, per = contiguous(self.y.space), self.groups * self.per_group
        if not self.last:
            return (per, taps * self.places, *(s * self.places for s in k), *o)
        channels = self.x.channels // self.groups
        return (per, 1, *(s * channels for s in k), *(s * self.depth for s in o))

    @property
    def per_group(self) -> int:
        """Number of elements of the unfolded input per group and sample."""
        return self.depth * self.places

    @property
    def group(self) -> tuple[int, int]:
        """Number of channels per group, and the stride of groups in the unfolded input."""
        return self.x.channels // self.groups, self.per_group

    @property
    def column_space(self) -> Struct:
        """The index space of the unfolded input: batch, channels, window elements, positions."""
        sizes = (self.x.batch, self.x.channels, *_pad_to_three(self.kernel, 1), *self.y.space)
        return Struct("Space", space(sizes))


def conv_of(query: KernelQuery, x: TensorType, y: TensorType) -> Conv:
    """Return the convolution between a larger and a smaller tensor."""
    attrs: Any = query.attrs
    big, small = (layout(t, attrs["data_format"]) for t in (x, y))
    window = _window(
        big.space, attrs["kernel_size"], attrs["strides"], attrs["padding_before"],
        attrs["dilation_rate"], small.space,
    )  # fmt: skip
    last = attrs["data_format"] == "channels_last"
    sizes, groups = attrs["kernel_size"], attrs["groups"]
    return Conv(big, small, window, sizes, groups, last, x.dtype, allows_tf32(query.settings))


def _unfold(conv: Conv, x: DeviceArray, columns: DeviceArray) -> Launch:
    kind = UNSIGNED[x.itemsize]
    values = (Read(x, kind), Write(columns, kind), conv.column_space, conv.x.strides)
    steps = Struct("Strides", strides(conv.column_steps))
    return call(
        "unfold", HEADER, (kind,), *values, steps, *conv.group, conv.window, items=conv.columns_size
    )


def _fold(conv: Conv, columns: DeviceArray, x: DeviceArray) -> Launch:
    steps = Struct("Strides", strides(conv.column_steps))
    lists = (conv.x.elements, conv.x.strides, steps)
    values = (Read(columns), x, *lists, *conv.group, conv.window)
    types = (c_type(conv.wide), c_type(conv.dtype))
    return call("fold", HEADER, types, *values, items=x.size)


def _part(array: DeviceArray, first: int) -> DeviceArray:
    """Return the elements of an array from ``first`` on; products use as many as they need."""
    return array.part(first * array.itemsize, (array.size - first,), array.dtype)


def _products(
    conv: Conv,
    sizes: tuple[int, int, int],  # m, n and k of each product
    # Whether the first operand and the second operand are transposed.
    transposed: tuple[bool, bool],
    arrays: tuple[DeviceArray, DeviceArray, DeviceArray],  # the two operands and the result
    # Strides of samples, then of groups, in elements; one stride for each array.
    steps: tuple[Ints, Ints],
    # Leading dimensions, if the rows are parts of wider rows; 0 otherwise.
    leads: tuple[int, int, int] = (0, 0, 0),
) -> Iterator[Launch]:
    """Yield one matrix product for each group, batched over the samples."""
    product = Product(
        *sizes, *transposed, conv.dtype.name, conv.x.batch, 1.0, steps[0], conv.tf32,  # type: ignore[arg-type]
        leads, wide=arrays[2].itemsize > arrays[0].itemsize,
    )  # fmt: skip
    for group in range(conv.groups):
        a, b, c = (_part(x, group * step) for x, step in zip(arrays, steps[1], strict=True))
        yield ProductLaunch(a.hardware, product, a, b, c)


def _columns(ctx: BindContext, conv: Conv, dtype: Any) -> DeviceArray:
    found: DeviceArray = ctx.workspace.part(0, (conv.columns_size,), dtype.numpy)
    return found


def _forward(ctx: BindContext) -> Iterator[Launch]:
    (x, w), (y,) = ctx.inputs[:2], ctx.outputs
    conv = conv_of(ctx.query, ctx.query.inputs[0], ctx.query.outputs[0])
    columns, per = _columns(ctx, conv, conv.dtype), conv.depth * conv.places
    filters = conv.y.channels // conv.groups
    yield _unfold(conv, x, columns)
    result, leads = conv.y.channels * conv.places, (0, 0, 0)
    if conv.last:
        sizes, flip, arrays = (conv.places, filters, conv.depth), (False, True), (columns, w, y)
        batch: Ints = (per * conv.groups, 0, result)
        steps = (batch, (per, filters * conv.depth, filters))
        leads = (0, 0, conv.y.channels)
    else:
        sizes, flip, arrays = (filters, conv.places, conv.depth), (False, False), (w, columns, y)
        batch = (0, per * conv.groups, result)
        steps = (batch, (filters * conv.depth, per, filters * conv.places))
    yield from _products(conv, sizes, flip, arrays, steps, leads)


def _data_grad(ctx: BindContext) -> Iterator[Launch]:
    (dy, w), (dx,) = ctx.inputs[:2], ctx.outputs
    conv = conv_of(ctx.query, ctx.query.outputs[0], ctx.query.inputs[0])
    columns, per = _columns(ctx, conv, conv.wide), conv.depth * conv.places
    filters = conv.y.channels // conv.groups
    result, leads = conv.y.channels * conv.places, (0, 0, 0)
    if conv.last:
        sizes, flip, arrays = (conv.places, conv.depth, filters), (False, False), (dy, w, columns)
        batch: Ints = (result, 0, per * conv.groups)
        steps = (batch, (filters, filters * conv.depth, per))
        leads = (conv.y.channels, 0, 0)
    else:
        sizes, flip, arrays = (conv.depth, conv.places, filters), (True, False), (w, dy, columns)
        batch = (0, result, per * conv.groups)
        steps = (batch, (filters * conv.depth, filters * conv.places, per))
    yield from _products(conv, sizes, flip, arrays, steps, leads)
    yield _fold(conv, columns, dx)


def _filter_grad(ctx: BindContext) -> Iterator[Launch]:
    """Yield launches that compute one gradient per sample, then the sum over samples."""
    (dy, x), (dw,) = ctx.inputs, ctx.outputs
    conv = conv_of(ctx.query, ctx.query.inputs[1], ctx.query.inputs[0])
    columns, per = _columns(ctx, conv, conv.dtype), conv.depth * conv.places
    filters = conv.y.channels // conv.groups
    shape = (conv.x.batch, dw.size)
    own = ctx.workspace.part(aligned(columns.nbytes), (prod(shape),), conv.wide.numpy)
    yield _unfold(conv, x, columns)
    result = conv.y.channels * conv.places
    sizes = (filters, conv.depth, conv.places)
    if conv.last:
        batch = (result, per * conv.groups, dw.size)
        steps = (batch, (filters, per, filters * conv.depth))
        leads = (conv.y.channels, 0, 0)
        yield from _products(conv, sizes, (True, False), (dy, columns, own), steps, leads)
    else:
        batch = (result, per * conv.groups, dw.size)
        steps = (batch, (filters * conv.places, per, filters * conv.depth))
        yield from _products(conv, sizes, (False, True), (dy, columns, own), steps)
    yield batch_sum(own, dw, shape, (c_type(conv.wide), c_type(conv.dtype)))


def batch_sum(
    x: DeviceArray, y: DeviceArray, shape: tuple[int, int], kinds: tuple[str, str]
) -> Launch:
    """Build a launch that sums over the first of two axes of x, given the C++ types of x and y."""
    rows, columns = shape
    spaces = (
        Struct("Space", space((columns,))), Struct("Strides", strides((1,))),
        Struct("Space", space((rows,))), Struct("Strides", strides((columns,))),
    )  # fmt: skip
    types = ("Sum", "Plain", *kinds)
    return call("reduce", "reduce.h", types, Read(x), y, *spaces, items=columns)


def _conv_bytes(big: str, small: str, query: KernelQuery) -> int:
    """Return the bytes of the unfolded input and, if needed, of one filter gradient per sample."""
    x, y = (_operand_type(query, name) for name in (big, small))
    conv = conv_of(query, x, y)
    summed = big == "out"
    nbytes = aligned(conv.columns_size * (conv.wide if summed else conv.dtype).itemsize)
    if query.op == "conv_filter_grad":
        nbytes += aligned(x.shape[0] * query.outputs[0].size * conv.wide.itemsize)
    return nbytes


def _operand_type(query: KernelQuery, name: str) -> TensorType:
    return query.outputs[0] if name == "out" else query.inputs[int(name)]


def _accepts(query: KernelQuery) -> bool:
    return is_floating(query) and all(t.size for t in (*query.inputs, *query.outputs))


DIMS = (1, 2, 3)

KERNELS: tuple[KernelSpec, ...] = (
    *(kernel(f"max_pool_{d}d", partial(_pool, "max")) for d in DIMS),
    *(kernel(f"avg_pool_{d}d", partial(_pool, "avg"), _is_floating) for d in DIMS),
    *(kernel(f"{m}_pool_{d}d_grad", partial(_pool_grad, m)) for m in ("max", "avg") for d in DIMS),
    *(
        kernel(f"conv{d}d", collect_launches(_forward), _accepts, partial(_conv_bytes, "0", "out"))
        for d in DIMS
    ),
    *(
        kernel(
            f"deconv{d}d", collect_launches(_data_grad), _accepts, partial(_conv_bytes, "out", "0")
        )
        for d in DIMS
    ),
    kernel(
        "conv_data_grad", collect_launches(_data_grad), _accepts, partial(_conv_bytes, "out", "0")
    ),
    kernel(
        "conv_filter_grad", collect_launches(_filter_grad), _accepts, partial(_conv_bytes, "1", "0")
    ),
)
