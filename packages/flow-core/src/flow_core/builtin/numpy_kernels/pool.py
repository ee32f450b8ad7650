"""Pooling kernels: separable passes over axes forward, window positions backward.

Maxima and sums over a window are those over its axes one after the other, so that a pass per
axis does.  All launches work on a few images at a time, which stay in the inner caches; where
channels come first, every channel is an image of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from flow_core.builtin.numpy_kernels.binding import call, carve, carved_bytes, kernel
from flow_core.device import Launch
from flow_core.ops.pool import pool_window, window_counts
from flow_core.ops.windows import space_axes
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec
from flow_core.shapes import balanced_range

Ints = tuple[int, ...]

BUDGET = 1 << 19
"""Bytes of the images that are worked on together."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Windows over one axis of a tensor: ``size`` elements, ``out`` windows."""

    axis: int
    size: int
    out: int
    kernel: int
    stride: int
    before: int

    @property
    def trivial(self) -> bool:
        """Whether windows are the elements themselves."""
        return self.kernel == self.stride == 1 and self.size == self.out

    @property
    def disjoint(self) -> bool:
        """Whether no element is in two windows."""
        return self.kernel <= self.stride

    def meeting(self, tap: int) -> tuple[slice, slice]:
        """Elements at a position of their windows, and the windows that have an element there."""
        shift = tap - self.before
        low = max(0, -(shift // self.stride))
        high = max(low, min(self.out, (self.size - 1 - shift) // self.stride + 1))
        first = low * self.stride + shift
        stop = first + max(0, (high - low - 1) * self.stride + 1) if high > low else first
        return slice(first, stop, self.stride), slice(low, high)

    def covers(self) -> bool:
        """Whether every element is in some window."""
        last = (self.out - 1) * self.stride - self.before + self.kernel
        return self.kernel >= self.stride and last >= self.size


def _axes(query: KernelQuery, big: Ints) -> list[Axis]:
    attrs = query.attrs
    axes = []
    for i, axis in enumerate(space_axes(len(big), attrs["data_format"])):
        before, out = pool_window(attrs, i, big[axis])
        kernel_, stride = attrs["pool_size"][i], attrs["strides"][i]
        axes.append(Axis(axis, big[axis], out, kernel_, stride, before))
    return axes


def _images(n: int, image_bytes: int) -> list[slice]:
    """Equal groups of images of about `BUDGET` bytes."""
    count = max(1, min(n, -(-n * image_bytes // BUDGET)))
    return [slice(*balanced_range(n, count, i)) for i in range(count)]


def _split_shape(query: KernelQuery, shape: Ints) -> Ints:
    """A shape with an image per channel where channels come first."""
    first = query.attrs["data_format"] == "channels_first"
    return (shape[0] * shape[1], 1, *shape[2:]) if first else shape


def _split(ctx: BindContext) -> list[Any]:
    """The inputs and the output in their `_split_shape`."""
    return [a.reshape(_split_shape(ctx.query, a.shape)) for a in (*ctx.inputs, *ctx.outputs)]


def _cut(shape: Ints, axis: int, size: int) -> Ints:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _at(array: Any, axis: int, part: slice) -> Any:
    return array[(slice(None),) * axis + (part,)]


# ------------------------------------------------------------------------------ forward


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of a forward pooling over a few images.

    Attributes:
        shapes: shapes before the first and after each pass.
        axes: the axis of each pass.
        staged: whether numbers are added up in another type than the stored one.
    """

    shapes: tuple[Ints, ...]
    axes: tuple[Axis, ...]
    staged: bool

    def buffers(self) -> list[Ints]:
        """Shapes of the temporaries; the last pass writes the output unless it is staged."""
        return list(self.shapes if self.staged else self.shapes[1:-1])


def _passes(shape: Ints, axes: list[Axis], n: int, staged: bool) -> Passes:
    shapes = [(n, *shape[1:])]
    work = tuple(axis for axis in axes if not axis.trivial)
    for axis in work:
        shapes.append(_cut(shapes[-1], axis.axis, axis.out))
    return Passes(tuple(shapes), work, staged)


def _pass(function: Any, lowest: Any, axis: Axis, source: Any, target: Any) -> Iterator[Launch]:
    """One axis of windows: ``function`` over the elements of each."""
    meetings = [axis.meeting(tap) for tap in range(axis.kernel)]
    full = [m for m in meetings if m[1] == slice(0, axis.out)]
    rest = [m for m in meetings if m not in full]
    if not full:
        yield partial(target.fill, lowest)
    elif len(full) == 1:
        yield partial(np.copyto, target, _at(source, axis.axis, full[0][0]))
    else:
        first, second = (_at(source, axis.axis, m[0]) for m in full[:2])
        yield call(function, first, second, out=target)
    for elements, windows in (*full[2:], *rest):
        goal = _at(target, axis.axis, windows)
        if goal.size:
            yield call(function, goal, _at(source, axis.axis, elements), out=goal)


def _work_dtype(query: KernelQuery, function: Any) -> tuple[Any, bool]:
    """The type that passes compute in, and whether it is not the stored one."""
    dtype = query.outputs[0].dtype
    staged = function is np.add and dtype.accumulate is not dtype
    return (dtype.accumulate if staged else dtype).numpy, staged


def _forward_plan(query: KernelQuery, function: Any) -> tuple[list[slice], Any, list[Axis], bool]:
    shape, (dtype, staged) = query.inputs[0].shape, _work_dtype(query, function)
    shape = _split_shape(query, shape)
    image = prod(shape[1:]) * np.dtype(dtype).itemsize
    return _images(shape[0], image), dtype, _axes(query, shape), staged


def _forward_workspace(function: Any) -> Callable[[KernelQuery], int]:
    def workspace(query: KernelQuery) -> int:
        images, dtype, axes, staged = _forward_plan(query, function)
        count = images[0].stop - images[0].start
        shapes = _passes(_split_shape(query, query.inputs[0].shape), axes, count, staged).buffers()
        return carved_bytes(*((shape, dtype) for shape in shapes))

    return workspace


def _bind_forward(function: Any) -> Callable[[BindContext], list[Launch]]:
    def bind(ctx: BindContext) -> list[Launch]:
        images, dtype, axes, staged = _forward_plan(ctx.query, function)
        x, y = _split(ctx)
        scale = _scale(ctx.query.attrs, x, axes, dtype) if function is np.add else None
        lowest = _lowest(np.dtype(dtype)) if function is np.maximum else 0
        launches: list[Launch] = []
        for part in images:
            passes = _passes(x.shape, axes, part.stop - part.start, staged)
            buffers = carve(ctx.workspace, *((shape, dtype) for shape in passes.buffers()))
            launches += _forward(passes, (function, lowest), x[part], y[part], list(buffers), scale)
        return launches if y.size else []

    return bind


def _forward(
    passes: Passes, how: tuple[Any, Any], x: Any, y: Any, buffers: list[Any], scale: Any
) -> Iterator[Launch]:
    if passes.staged:
        source = buffers.pop(0)
        yield partial(np.copyto, source, x, casting="unsafe")
        targets = buffers
    else:
        source, targets = x, [*buffers, y] if passes.axes else []
    for axis, target in zip(passes.axes, targets, strict=True):
        yield from _pass(*how, axis, source, target)
        source = target
    if scale is not None and passes.axes:
        yield call(np.multiply, source, scale, out=source)
    if source is not y:
        yield partial(np.copyto, y, source, casting="unsafe")


def _lowest(dtype: Any) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _scale(attrs: Mapping[str, Any], x: Any, axes: list[Axis], dtype: Any) -> Any:
    """One over the number of elements of each window: a scalar when all are alike."""
    vectors = window_counts(attrs, tuple(axis.size for axis in axes))
    if all(np.all(v == v[:1]) for v in vectors):
        return np.array(1 / prod(int(v[0]) for v in vectors), dtype)
    counts = reduce(np.multiply, np.ix_(*vectors))
    last = attrs["data_format"] == "channels_last"
    return (1 / counts).astype(dtype)[(..., None) if last else ...]


# ------------------------------------------------------------------------------ averages back


def _avg_grad_plan(query: KernelQuery) -> tuple[list[slice], Any, list[Axis], bool]:
    x = _split_shape(query, query.inputs[0].shape)
    dtype, staged = _work_dtype(query, np.add)
    image = prod(x[1:]) * np.dtype(dtype).itemsize
    return _images(x[0], image), dtype, _axes(query, x), staged


def _avg_grad_workspace(query: KernelQuery) -> int:
    images, dtype, axes, staged = _avg_grad_plan(query)
    count = images[0].stop - images[0].start
    passes = _passes(_split_shape(query, query.inputs[0].shape), axes, count, staged)
    shapes = passes.shapes if staged else passes.shapes[1:]
    return carved_bytes(*((shape, dtype) for shape in shapes))


def _bind_avg_grad(ctx: BindContext) -> list[Launch]:
    images, dtype, axes, staged = _avg_grad_plan(ctx.query)
    x, _, dy, dx = _split(ctx)
    scale = _scale(ctx.query.attrs, x, axes, dtype)
    launches: list[Launch] = []
    for part in images:
        passes = _passes(x.shape, axes, part.stop - part.start, staged)
        shapes = passes.shapes if staged else passes.shapes[1:]
        buffers = list(carve(ctx.workspace, *((shape, dtype) for shape in shapes)))
        targets = buffers if staged else [dx[part], *buffers]
        launches += _avg_backward(passes, dy[part], dx[part], targets, scale)
    return launches if dx.size else []


def _avg_backward(
    passes: Passes, dy: Any, dx: Any, buffers: list[Any], scale: Any
) -> Iterator[Launch]:
    source = buffers[-1]
    yield partial(np.copyto, source, dy, casting="unsafe")
    if passes.axes:
        yield call(np.multiply, source, scale, out=source)
    for axis, target in zip(reversed(passes.axes), reversed(buffers[:-1]), strict=True):
        yield from _spread(axis, source, target)
        source = target
    if passes.staged:
        yield partial(np.copyto, dx, source, casting="unsafe")


def _spread(axis: Axis, source: Any, target: Any) -> Iterator[Launch]:
    """The transpose of a pass of sums."""
    if not (axis.disjoint and axis.covers()):
        yield partial(target.fill, 0)
    for tap in range(axis.kernel):
        elements, windows = axis.meeting(tap)
        goal, part = _at(target, axis.axis, elements), _at(source, axis.axis, windows)
        if goal.size:
            copy = partial(np.copyto, goal, part)
            yield copy if axis.disjoint else call(np.add, goal, part, out=goal)


# ------------------------------------------------------------------------------ maxima back


def _max_grad_plan(query: KernelQuery) -> tuple[list[slice], list[tuple[Ints, Any]], list[Axis]]:
    """Groups of images, the temporaries of one, the axes.

    Temporaries are: hits of one window position, windows served so far, hits as integers as wide
    as numbers; where windows overlap also the hit numbers and, for half types, these and dx in
    float32.
    """
    x, dy = (_split_shape(query, query.inputs[i].shape) for i in (0, 2))
    dtype, axes = query.outputs[0].dtype, _axes(query, x)
    images = _images(x[0], prod(x[1:]) * dtype.itemsize)
    count = images[0].stop - images[0].start
    out, big = (count, *dy[1:]), (count, *x[1:])
    parts: list[tuple[Ints, Any]] = [(out, bool), (out, bool), (out, f"i{dtype.itemsize}")]
    if not all(axis.disjoint for axis in axes):
        parts.append((out, dtype.numpy))
        if dtype.accumulate is not dtype:
            parts += [(out, np.float32), (big, np.float32)]
    return images, parts, axes


def _max_grad_workspace(query: KernelQuery) -> int:
    return carved_bytes(*_max_grad_plan(query)[1])


def _bind_max_grad(ctx: BindContext) -> list[Launch]:
    images, parts, axes = _max_grad_plan(ctx.query)
    split, launches = _split(ctx), list[Launch]()
    for part in images:
        count = part.stop - part.start
        sizes = [((count, *shape[1:]), dtype) for shape, dtype in parts]
        buffers = carve(ctx.workspace, *sizes)
        x, y, dy, dx = (a[part] for a in split)
        launches += _max_backward(axes, x, y, dy, dx, buffers)
    return launches if split[3].size else []


def _max_backward(
    axes: list[Axis], x: Any, y: Any, dy: Any, dx: Any, buffers: tuple[Any, ...]
) -> Iterator[Launch]:
    served, goal = buffers[1], buffers[5] if len(buffers) == 6 else dx
    disjoint = all(axis.disjoint for axis in axes)
    yield partial(served.fill, False)
    if not (disjoint and all(axis.covers() for axis in axes)):
        yield partial(goal.fill, 0)
    for tap in product(*(range(axis.kernel) for axis in axes)):
        meetings = [axis.meeting(t) for axis, t in zip(axes, tap, strict=True)]
        big, small = [slice(None)] * x.ndim, [slice(None)] * x.ndim
        for axis, (elements, windows) in zip(axes, meetings, strict=True):
            big[axis.axis], small[axis.axis] = elements, windows
        views = [a[tuple(small)] for a in (y, dy, *buffers[:5])]
        if views[0].size:
            yield from _hits(x[tuple(big)], *views[:5])
            yield from _collect(goal[tuple(big)], views[4], views[1], views[5:])
    if goal is not dx:
        yield partial(np.copyto, dx, goal, casting="unsafe")


def _hits(x: Any, y: Any, _: Any, hit: Any, served: Any, wide: Any) -> Iterator[Launch]:
    """Where x is its window's first maximum: all bits of ``wide``."""
    small = hit.view(np.int8)
    yield call(np.equal, x, y, out=hit)
    yield call(np.greater, hit, served, out=hit)
    yield call(np.logical_or, served, hit, out=served)
    yield call(np.negative, small, out=small)
    yield partial(np.copyto, wide, small)


def _collect(goal: Any, wide: Any, dy: Any, more: list[Any]) -> Iterator[Launch]:
    """Adds the hit numbers of dy: bits are masked, so that inf and nan stay where they are."""
    bits = wide.dtype
    if not more:
        yield call(np.bitwise_and, wide, dy.view(bits), out=goal.view(bits))
        return
    yield call(np.bitwise_and, wide, dy.view(bits), out=more[0].view(bits))
    if len(more) > 1:
        yield partial(np.copyto, more[1], more[0], casting="unsafe")
    yield call(np.add, goal, more[-1], out=goal)


KERNELS: tuple[KernelSpec, ...] = tuple(
    spec
    for dims in (1, 2, 3)
    for spec in (
        kernel(
            f"max_pool_{dims}d", _bind_forward(np.maximum),
            workspace=_forward_workspace(np.maximum),
        ),
        kernel(f"avg_pool_{dims}d", _bind_forward(np.add), workspace=_forward_workspace(np.add)),
        kernel(f"max_pool_{dims}d_grad", _bind_max_grad, workspace=_max_grad_workspace),
        kernel(f"avg_pool_{dims}d_grad", _bind_avg_grad, workspace=_avg_grad_workspace),
    )
)  # fmt: skip
