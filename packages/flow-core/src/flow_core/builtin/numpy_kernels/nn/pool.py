"""Pooling kernels.

Pooling and the gradient of average pooling process one axis after the other; the gradient of max
pooling processes one position within the windows after the other.  All launches work on a few
images at a time, which stay in the inner caches; in channels-first layout, each channel is treated
as an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array, NumpyType
from flow_core.base.shapes import balanced_range
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import carve, carved_bytes, kernel
from flow_core.builtin.numpy_kernels.nn.windows import apply, flat
from flow_core.device import Launch
from flow_core.ops.nn.pool import pool_window, window_counts
from flow_core.ops.nn.windows import space_axes
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

Ints = tuple[int, ...]

BUDGET = 1 << 19
"""Total size in bytes of the images that are processed together."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The windows along one axis of a tensor: ``out`` windows over ``size`` elements."""

    axis: int
    size: int
    out: int
    kernel: int
    stride: int
    before: int

    @property
    def trivial(self) -> bool:
        """Whether window i consists of element i only."""
        return self.kernel == self.stride == 1 and self.size == self.out

    @property
    def disjoint(self) -> bool:
        """Whether windows do not overlap."""
        return self.kernel <= self.stride

    def meeting(self, tap: int) -> tuple[slice, slice]:
        """Return slices of the elements at position ``tap`` of a window, and of these windows."""
        shift = tap - self.before
        low = max(0, -(shift // self.stride))
        high = max(low, min(self.out, (self.size - 1 - shift) // self.stride + 1))
        first = low * self.stride + shift
        stop = first + max(0, (high - low - 1) * self.stride + 1) if high > low else first
        return slice(first, stop, self.stride), slice(low, high)

    def covers(self) -> bool:
        """Return whether every element is in some window."""
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
    """Split ``n`` images into equal groups of about `BUDGET` bytes each."""
    count = max(1, min(n, -(-n * image_bytes // BUDGET)))
    return [slice(*balanced_range(n, count, i)) for i in range(count)]


def _split_shape(query: KernelQuery, shape: Ints) -> Ints:
    """Return the shape in which, in channels-first layout, each channel is an image."""
    first = query.attrs["data_format"] == "channels_first"
    return (shape[0] * shape[1], 1, *shape[2:]) if first else shape


def _split(ctx: BindContext) -> list[Array]:
    """Return the inputs and the output, reshaped to their `_split_shape`."""
    return [a.reshape(_split_shape(ctx.query, a.shape)) for a in (*ctx.inputs, *ctx.outputs)]


def _at(array: Array, axis: int, part: slice) -> Array:
    return array[(slice(None),) * axis + (part,)]


# ------------------------------------------------------------------------------ passes


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes that compute the pooling of a group of images."""

    shapes: tuple[Ints, ...]  # the shape before the first pass, then the shape after each pass
    axes: tuple[Axis, ...]
    dtype: Any  # the computation type
    staged: bool  # whether tensors are stored in another type

    def parts(self, backward: bool = False) -> list[tuple[Ints, DTypeLike]]:
        """Return two temporaries, then the buffers for intermediate results.

        The result of the last forward pass goes to y and that of the last backward pass to dx;
        these need no buffers unless they are staged.  A backward pooling also needs a buffer for
        the scaled copy of dy.
        """
        small = (max(map(prod, self.shapes[1:]), default=0),)
        between = self.shapes[1:] if backward else self.shapes[1:-1]
        shapes = (small, small, *(self.shapes if self.staged else between))
        return [(shape, self.dtype) for shape in shapes]


def _passes(query: KernelQuery, function: np.ufunc, part: slice | None = None) -> Passes:
    """Return the passes for a group of images, by default the largest group."""
    shape = _split_shape(query, query.inputs[0].shape)
    dtype = query.outputs[0].dtype
    staged = function is np.add and dtype.accumulate is not dtype
    computed = (dtype.accumulate if staged else dtype).numpy
    part = part or _images(shape[0], prod(shape[1:]) * computed.itemsize)[0]
    shapes = [(part.stop - part.start, *shape[1:])]
    axes = tuple(axis for axis in _axes(query, shape) if not axis.trivial)
    for axis in axes:
        last = shapes[-1]
        shapes.append((*last[: axis.axis], axis.out, *last[axis.axis + 1 :]))
    return Passes(tuple(shapes), axes, computed, staged)


def _groups(query: KernelQuery, passes: Passes) -> list[slice]:
    shape = _split_shape(query, query.inputs[0].shape)
    return _images(shape[0], prod(shape[1:]) * passes.dtype.itemsize)


def _bind_passes(
    ctx: BindContext, function: np.ufunc, backward: bool
) -> Iterator[tuple[Passes, slice, list[Array], list[Array]]]:
    """Yield, for each group of images, its passes, slice, temporaries and buffers."""
    for part in _groups(ctx.query, _passes(ctx.query, function)):
        passes = _passes(ctx.query, function, part)
        one, two, *buffers = carve(ctx.workspace, *passes.parts(backward))
        yield passes, part, [one, two], buffers


# ------------------------------------------------------------------------------ forward


def _pass(
    how: tuple[Any, Any], axis: Axis, source: Array, target: Array, temporaries: list[Array]
) -> Iterator[Launch]:
    """Yield launches that reduce windows along one axis.

    ``how`` has the function that reduces, and the value with which the reduction starts.
    """
    function, lowest = how
    meetings = [axis.meeting(tap) for tap in range(axis.kernel)]
    views = [(_at(source, axis.axis, e), _at(target, axis.axis, w)) for e, w in meetings]
    full = [part for part, goal in views if goal.size == target.size]
    rest = [(part, goal) for part, goal in views if 0 < goal.size < target.size]
    if len(full) > 1 and flat(full[0]) and flat(full[1]):
        yield call(function, full.pop(0), full.pop(0), out=target)
    elif full:
        yield partial(np.copyto, target, full.pop(0))
    else:
        yield partial(target.fill, lowest)
    for part, goal in (*((part, target) for part in full), *rest):
        yield from apply(function, (goal, part), goal, temporaries)


def _forward_workspace(function: np.ufunc) -> Callable[[KernelQuery], int]:
    return lambda query: carved_bytes(*_passes(query, function).parts())


def _bind_forward(function: np.ufunc) -> Callable[[BindContext], list[Launch]]:
    def bind(ctx: BindContext) -> list[Launch]:
        x, y = _split(ctx)
        launches: list[Launch] = []
        for passes, part, temporaries, buffers in _bind_passes(ctx, function, False):
            scale = _scale(ctx.query, passes) if function is np.add else None
            lowest = _lowest(np.dtype(passes.dtype)) if function is np.maximum else 0
            how = (function, lowest)
            launches += _forward(passes, how, (x[part], y[part]), temporaries, buffers, scale)
        return launches if y.size else []

    return bind


def _forward(
    passes: Passes,
    how: tuple[Any, Any],
    tensors: tuple[Any, Any],
    temporaries: list[Any],
    buffers: list[Any],
    scale: Any,
) -> Iterator[Launch]:
    source, y = tensors
    if passes.staged:
        yield partial(np.copyto, buffers[0], source, casting="unsafe")
        source, targets = buffers[0], buffers[1:]
    else:
        targets = [*buffers, y] if passes.axes else []
    for axis, target in zip(passes.axes, targets, strict=True):
        yield from _pass(how, axis, source, target, temporaries)
        source = target
    if scale is not None and passes.axes:
        yield from _scaled(source, scale, temporaries)
    if source is not y:
        yield partial(np.copyto, y, source, casting="unsafe")


def _lowest(dtype: NumpyType) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _scale(query: KernelQuery, passes: Passes) -> Array:
    """Return 1 / (number of elements) of each window, as a scalar if it is equal for all."""
    axes = _axes(query, _split_shape(query, query.inputs[0].shape))
    vectors = window_counts(query.attrs, tuple(axis.size for axis in axes))
    if all(np.all(v == v[:1]) for v in vectors):
        return np.array(1 / prod(int(v[0]) for v in vectors), passes.dtype)
    counts = reduce(np.multiply, np.ix_(*vectors))
    last = query.attrs["data_format"] == "channels_last"
    return (1 / counts).astype(passes.dtype)[(..., None) if last else ...]


def _scaled(array: Array, scale: Array, temporaries: list[Array]) -> Iterator[Launch]:
    """Yield launches that multiply a contiguous array in place by ``scale``, with broadcasting."""
    if not scale.ndim:
        yield call(np.multiply, array, scale, out=array)
        return
    yield from apply(np.multiply, (array, np.broadcast_to(scale, array.shape)), array, temporaries)


# ------------------------------------------------------------------------------ average gradient


def _avg_grad_workspace(query: KernelQuery) -> int:
    return carved_bytes(*_passes(query, np.add).parts(backward=True))


def _bind_avg_grad(ctx: BindContext) -> list[Launch]:
    _, _, dy, dx = _split(ctx)
    launches: list[Launch] = []
    for passes, part, temporaries, buffers in _bind_passes(ctx, np.add, True):
        scale = _scale(ctx.query, passes)
        launches += _avg_backward(passes, (dy[part], dx[part]), temporaries, buffers, scale)
    return launches if dx.size else []


def _avg_backward(
    passes: Passes,
    tensors: tuple[Array, Array],
    temporaries: list[Array],
    buffers: list[Array],
    scale: Array,
) -> Iterator[Launch]:
    dy, dx = tensors
    targets = buffers if passes.staged else [dx, *buffers]
    source = targets[-1]
    yield partial(np.copyto, source, dy, casting="unsafe")
    if passes.axes:
        yield from _scaled(source, scale, temporaries)
    for axis, target in zip(reversed(passes.axes), reversed(targets[:-1]), strict=True):
        yield from _spread(axis, source, target, temporaries)
        source = target
    if passes.staged:
        yield partial(np.copyto, dx, source, casting="unsafe")


def _spread(axis: Axis, source: Array, target: Array, temporaries: list[Array]) -> Iterator[Launch]:
    """Yield launches of a transposed sum, which add the value of each window to its elements."""
    if not (axis.disjoint and axis.covers()):
        yield partial(target.fill, 0)
    for tap in range(axis.kernel):
        elements, windows = axis.meeting(tap)
        goal, part = _at(target, axis.axis, elements), _at(source, axis.axis, windows)
        if axis.disjoint:
            yield partial(np.copyto, goal, part)
        elif goal.size:
            yield from apply(np.add, (goal, part), goal, temporaries)


# ------------------------------------------------------------------------------ maximum gradient


def _max_grad_plan(query: KernelQuery) -> tuple[list[slice], list[tuple[Ints, Any]], list[Axis]]:
    """Return the groups of images, the temporaries for the largest group, and the axes.

    The temporaries are the mask of finished windows, the matches at one position, the matches as
    integers of the element size, and two arrays for `apply`.  For overlapping windows of 16-bit
    types, dx in float32 follows.
    """
    x, dy = (_split_shape(query, query.inputs[i].shape) for i in (0, 2))
    dtype, axes = query.outputs[0].dtype, _axes(query, x)
    images = _images(x[0], prod(x[1:]) * dtype.itemsize)
    count = images[0].stop - images[0].start
    out = (count * prod(dy[1:]),)
    wide = dtype.accumulate.numpy
    parts = [((count, *dy[1:]), bool), (out, bool), (out, f"i{dtype.itemsize}"), (out, wide),
             (out, wide)]  # fmt: skip
    if dtype.accumulate is not dtype and not all(axis.disjoint for axis in axes):
        parts.append(((count, *x[1:]), wide))
    return images, parts, axes


def _max_grad_workspace(query: KernelQuery) -> int:
    return carved_bytes(*_max_grad_plan(query)[1])


def _bind_max_grad(ctx: BindContext) -> list[Launch]:
    images, parts, axes = _max_grad_plan(ctx.query)
    split, launches = _split(ctx), list[Launch]()
    buffers = carve(ctx.workspace, *parts)
    for part in images:
        launches += _max_backward(axes, [a[part] for a in split], buffers, part.stop - part.start)
    return launches if split[3].size else []


def _max_backward(
    axes: list[Axis], tensors: list[Array], buffers: tuple[Array, ...], count: int
) -> Iterator[Launch]:
    x, y, dy, dx = tensors
    served, *work = buffers[:5]
    served = served[:count]
    goal = buffers[5][:count] if len(buffers) == 6 else dx
    disjoint = all(axis.disjoint for axis in axes)
    yield partial(served.fill, False)
    if not (disjoint and all(axis.covers() for axis in axes)):
        yield partial(goal.fill, 0)
    for big, small in _meetings(axes, x.ndim):
        views = [a[small] for a in (y, served, dy)]
        if views[0].size:
            yield from _position(x[big], views, goal[big], work, disjoint)
    if y.size:
        yield partial(_add_at_nan, axes, (x, y, dy, goal), np.empty((), y.dtype))
    if goal is not dx:
        yield partial(np.copyto, dx, goal, casting="unsafe")


def _meetings(axes: list[Axis], rank: int) -> Iterator[tuple[Any, Any]]:
    """Yield, for each position within a window, the input elements there and their windows."""
    for tap in product(*(range(axis.kernel) for axis in axes)):
        big, small = [slice(None)] * rank, [slice(None)] * rank
        for axis, t in zip(axes, tap, strict=True):
            big[axis.axis], small[axis.axis] = axis.meeting(t)
        yield tuple(big), tuple(small)


def _add_at_nan(
    axes: list[Axis], arrays: tuple[Array, Array, Array, Array], largest: Array
) -> None:
    """Add dy at the first NaN of each window that has one, since NaN does not equal the maximum."""
    x, y, dy, goal = arrays
    np.maximum.reduce(y, None, out=largest)
    if largest == largest:
        return
    free = np.isnan(y)
    for big, small in _meetings(axes, x.ndim):
        hit = free[small] & np.isnan(x[big])
        free[small] &= ~hit
        goal[big][hit] += dy[small][hit]


def _position(
    x: Array, views: list[Array], goal: Array, work: list[Array], disjoint: bool
) -> Iterator[Launch]:
    """Yield launches that add dy to ``goal`` where x at one window position is the first maximum.

    dy is masked bitwise, so that inf and NaN in dy do not spread to other elements.
    """
    y, served, dy = views
    hit, wide = (a[: y.size].reshape(y.shape) for a in work[:2])
    temporaries, bits, small = work[2:], wide.dtype, hit.view(np.int8)
    yield from apply(np.equal, (x, y), hit, temporaries)
    yield from apply(np.greater, (hit, served), hit, temporaries)
    yield from apply(np.logical_or, (served, hit), served, temporaries)
    yield call(np.negative, small, out=small)
    yield partial(np.copyto, wide, small)
    if disjoint:
        yield from apply(np.bitwise_and, (wide, dy.view(bits)), goal.view(bits), temporaries)
        return
    yield from apply(np.bitwise_and, (wide, dy.view(bits)), wide, temporaries)
    yield from _accumulate(goal, wide.view(dy.dtype), temporaries)


def _accumulate(goal: Array, part: Array, temporaries: list[Array]) -> Iterator[Launch]:
    """Yield launches that add a contiguous part to ``goal``, converted if the types differ."""
    if part.dtype == goal.dtype:
        yield from apply(np.add, (goal, part), goal, temporaries)
        return
    copy = temporaries[0][: part.size].reshape(part.shape)
    yield partial(np.copyto, copy, part, casting="unsafe")
    yield from apply(np.add, (goal, copy), goal, temporaries[1:])


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
