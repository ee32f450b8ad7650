"""Kernels of ops that only move elements: one kernel per element size, for all element types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_core.base.shapes import slice_range
from flow_cuda.codegen.elementwise import AXES, VECTOR, broadcast_strides
from flow_cuda.codegen.indices import index_type, offset_of, split_index
from flow_cuda.codegen.program import Kernel, make_kernel
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import (
    Bits,
    CopyLaunch,
    Read,
    UploadLaunch,
    Write,
    ZeroLaunch,
    call,
    launch,
)
from flow_cuda.kernels.binding import c_type, collect_launches, kernel

HEADER = "move.h"
UNSIGNED = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
UNITS = {**UNSIGNED, 16: "u128"}
_NUMPY = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array, in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def move_box(
    source: DeviceArray,  # arrays of the same element size
    target: DeviceArray,
    sizes: Sequence[int],
    steps: tuple[Sequence[int], Sequence[int]],  # strides in the source and in the target
    # Offset of the box in the source and in the target, in elements.
    first: tuple[int, int] = (0, 0),
) -> Iterator[Launch]:
    """Yield a launch that copies a box; yield nothing for an empty box."""
    if not prod(sizes):
        return
    itemsize = source.itemsize
    places = (source.address, target.address, *(f * itemsize for f in first))
    box = widened(merged_axes(sizes, steps), itemsize, places)
    kernel, count = move_kernel(box), prod(box.sizes)
    starts = (f * itemsize // box.nbytes for f in first)
    yield launch(kernel, count, source, target, *starts)


@dataclass(frozen=True, slots=True)
class Move:
    """A box to copy, in units of bytes that one instruction moves."""

    sizes: tuple[int, ...]
    steps: tuple[tuple[int, ...], tuple[int, ...]]  # the strides in the source and in the target
    nbytes: int  # the size of a unit


def merged_axes(
    sizes: Sequence[int], steps: tuple[Sequence[int], Sequence[int]]
) -> list[tuple[int, int, int]]:
    """Return (size, stride in the source, stride in the target) of as few axes as possible.

    >>> merged_axes((2, 1, 3, 4), ((12, 12, 4, 1), (24, 9, 4, 1)))
    [(2, 12, 24), (12, 1, 1)]
    """
    found: list[tuple[int, int, int]] = []
    for n, a, b in zip(sizes, *steps, strict=True):
        if n == 1:
            continue
        if found and found[-1][1] == a * n and found[-1][2] == b * n:
            found[-1] = found[-1][0] * n, a, b
        else:
            found.append((n, a, b))
    return found or [(1, 1, 1)]


def widened(axes: Sequence[tuple[int, int, int]], itemsize: int, places: Sequence[int]) -> Move:
    """Return a box whose units are as large as sizes, strides and addresses allow."""
    sizes, *steps = zip(*axes, strict=True)
    width = VECTOR // itemsize if axes[-1][1:] == (1, 1) else 1
    numbers = (sizes[-1], *steps[0][:-1], *steps[1][:-1])
    while width > 1 and (
        any(n % width for n in numbers) or any(x % (width * itemsize) for x in places)
    ):
        width //= 2
    sizes = (*sizes[:-1], sizes[-1] // width)
    a, b = ((*(s // width for s in row[:-1]), row[-1]) for row in steps)
    return Move(sizes, (a, b), width * itemsize)


def move_kernel(box: Move) -> Kernel:
    """Return the kernel that copies a box, with its sizes and strides as constants."""
    kind, count = UNITS[box.nbytes], prod(box.sizes)
    source, target = (offset_of(box.sizes, row) for row in box.steps)
    lines = (
        f"x += from; y += first; EACH(i, {count}) {{ const auto e = ({index_type(count)})i;",
        *split_index(box.sizes, "e"), f"y[{target}] = x[{source}]; }}",
    )  # fmt: skip
    parameters = (
        (f"const {kind} *", "x"), (f"{kind} *", "y"), ("i64", "from"), ("i64", "first"),
    )  # fmt: skip
    return make_kernel("move", parameters, "\n".join(lines))


def copy_array(source: DeviceArray, target: DeviceArray) -> Iterator[Launch]:
    """Yield a copy of an array; nothing if it is empty or source and target share memory."""
    if source.nbytes and source.address != target.address:
        yield CopyLaunch(source.hardware, target, source)


def fill_array(target: DeviceArray, value: Any) -> Iterator[Launch]:
    """Yield a launch that fills an array with a number, converted to its type."""
    bits = bits_of(value, target.dtype)
    if not target.nbytes:
        return
    if bits == 0:
        yield ZeroLaunch(target.hardware, target)
        return
    kind = UNSIGNED[target.itemsize]
    yield call(
        "fill", HEADER, (kind,), Write(target, kind), target.size, Bits(bits), items=target.size
    )


def bits_of(value: Any, dtype: Any) -> int:
    """Return the bit pattern of a number in an element type.

    >>> hex(bits_of(1.0, np.float32))
    '0x3f800000'
    """
    one = np.array(value).astype(dtype)
    return int(one.reshape(1).view(_NUMPY[one.itemsize])[0])


def _copy(ctx: BindContext) -> Iterator[Launch]:
    for x, y in zip(ctx.inputs, ctx.outputs, strict=False):
        yield from copy_array(x, y)


def matrix_transposition(shape: Sequence[int], perm: Sequence[int]) -> tuple[int, int, int] | None:
    """Return batch, rows and columns if a permutation is a batched matrix transposition.

    >>> matrix_transposition((8, 64, 5, 7), (0, 2, 3, 1))
    (8, 64, 35)
    """
    longer = [axis for axis in perm if shape[axis] != 1]
    place = {axis: i for i, axis in enumerate(sorted(longer))}
    runs: list[list[int]] = []
    for axis in longer:
        if runs and place[axis] == place[runs[-1][-1]] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    sizes = [prod(shape[axis] for axis in run) for run in runs]
    match sorted(range(len(runs)), key=lambda i: runs[i][0]):
        case [1, 0]:
            return 1, sizes[1], sizes[0]
        case [0, 2, 1]:
            return sizes[0], sizes[2], sizes[1]
    return None


TILE = 32
"""The number of rows and of columns of the tile that a block transposes."""


def _transpose(ctx: BindContext) -> Iterator[Launch]:
    (x,), (y,) = ctx.inputs, ctx.outputs
    perm: Any = ctx.attrs["perm"]
    turned = matrix_transposition(x.shape, perm)
    if turned and min(turned[1:]) >= TILE and y.size:
        kind, (count, rows, columns) = UNSIGNED[x.itemsize], turned
        tiles = count * -(-rows // TILE) * -(-columns // TILE)
        values = (Read(x, kind), Write(y, kind), *turned)
        yield call("turn", HEADER, (kind,), *values, items=tiles, blocks=True)
        return
    steps = contiguous(x.shape)
    yield from move_box(x, y, y.shape, ([steps[p] for p in perm], contiguous(y.shape)))


def _broadcast(ctx: BindContext) -> Iterator[Launch]:
    x, y = ctx.inputs[0], ctx.outputs[0]
    axes: Any = ctx.attrs.get("broadcast_axes", ())
    shape = _with_axes(x.shape, y.shape, axes)
    yield from move_box(x, y, y.shape, (broadcast_strides(shape, y.shape), contiguous(y.shape)))


def _with_axes(
    shape: tuple[int, ...], out: tuple[int, ...], axes: Sequence[int]
) -> tuple[int, ...]:
    """Insert axes of size 1 at the broadcast axes.

    >>> _with_axes((4, 3), (4, 5, 3), (1,)), _with_axes((3,), (4, 3), ())
    ((4, 1, 3), (3,))
    """
    if not axes or len(shape) == len(out):
        return shape
    places = sorted(a % len(out) for a in axes)
    if len(shape) + len(places) != len(out):
        return shape
    wide = list(shape)
    for axis in places:
        wide.insert(axis, 1)
    return tuple(wide)


def _offsets(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]


def _parts(
    whole: DeviceArray, parts: Sequence[DeviceArray], axis: int
) -> Iterator[tuple[DeviceArray, int]]:
    inner = prod(whole.shape[axis + 1 :])
    starts = _offsets([part.shape[axis] for part in parts])
    for part, start in zip(parts, starts, strict=True):
        yield part, start * inner


def _concat(ctx: BindContext) -> Iterator[Launch]:
    (y,), axis = ctx.outputs, _axis(ctx)
    for x, first in _parts(y, ctx.inputs, axis):
        yield from move_box(x, y, x.shape, (contiguous(x.shape), contiguous(y.shape)), (0, first))


def _split(ctx: BindContext) -> Iterator[Launch]:
    x, axis = ctx.inputs[0], _axis(ctx)
    for y, first in _parts(x, ctx.outputs, axis):
        yield from move_box(x, y, y.shape, (contiguous(x.shape), contiguous(y.shape)), (first, 0))


def _axis(ctx: BindContext) -> int:
    axis: int = ctx.attrs["axis"]
    return axis % len(ctx.query.inputs[0].shape)


# --- slices


@dataclass(frozen=True, slots=True)
class Box:
    """The elements of a slice that a device's part of a tensor contains."""

    sizes: tuple[int, ...]  # number of elements per axis
    own: tuple[tuple[int, int], ...]  # start and step in the local part of the tensor, per axis
    part: tuple[int, ...]  # start in the slice, per axis

    def in_tensor(self, shape: Sequence[int]) -> tuple[int, list[int]]:
        """Return the box's offset and strides in the local part of the tensor."""
        steps = contiguous(shape)
        first = sum(s * start for s, (start, _) in zip(steps, self.own, strict=True))
        return first, [s * step for s, (_, step) in zip(steps, self.own, strict=True)]

    def in_slice(self, shape: Sequence[int]) -> tuple[int, list[int]]:
        """Return the box's offset and strides in the slice."""
        steps = contiguous(shape)
        return sum(s * p for s, p in zip(steps, self.part, strict=True)), list(steps)


def box_of(shape: tuple[int, ...], attrs: Any) -> Box:
    """Return the box of a slice op on a tensor, or on a device's window of it.

    >>> rows = {"start": (4,), "stop": (-6,), "step": (-2,), "window": None}
    >>> box_of((5,), rows)
    Box(sizes=(3,), own=((4, -2),), part=(0,))
    """
    window = attrs["window"] or [(0, n, n) for n in shape]
    rows = zip(attrs["start"], attrs["stop"], attrs["step"], strict=True)
    axes = [_axis_of(*row, *place) for row, place in zip(rows, window, strict=True)]
    return Box(*(tuple(column) for column in zip(*axes, strict=True))) if axes else Box((), (), ())


def _axis_of(
    start: int, stop: int, step: int, low: int, high: int, whole: int
) -> tuple[int, tuple[int, int], int]:
    """Return, for one axis: number of elements, (start, step) in the window, start in the slice."""
    taken = slice_range(whole, start, stop, step)
    numbers = [i for i, at in enumerate(taken) if low <= at < high]
    if not numbers:
        return 0, (0, 1), 0
    return len(numbers), (taken[numbers[0]] - low, step), numbers[0]


def _copy_slice(
    tensor: DeviceArray, part: DeviceArray, attrs: Any, into_tensor: bool
) -> Iterator[Launch]:
    """Yield a copy of the elements of a slice, out of the tensor or into it."""
    box = box_of(tensor.shape, attrs)
    (a, a_steps), (b, b_steps) = box.in_tensor(tensor.shape), box.in_slice(part.shape)
    if into_tensor:
        yield from move_box(part, tensor, box.sizes, (b_steps, a_steps), (b, a))
    else:
        yield from move_box(tensor, part, box.sizes, (a_steps, b_steps), (a, b))


def _slice(ctx: BindContext) -> Iterator[Launch]:
    (x,), (y,) = ctx.inputs, ctx.outputs
    if prod(box_of(x.shape, ctx.attrs).sizes) != y.size:
        yield from fill_array(y, 0)
    yield from _copy_slice(x, y, ctx.attrs, into_tensor=False)


def _slice_grad(ctx: BindContext) -> Iterator[Launch]:
    dy, (dx,) = ctx.inputs[0], ctx.outputs
    yield from fill_array(dx, 0)
    yield from _copy_slice(dx, dy, ctx.attrs, into_tensor=True)


def _slice_update(ctx: BindContext) -> Iterator[Launch]:
    (x, update), (y,) = ctx.inputs, ctx.outputs
    yield from copy_array(x, y)
    yield from _copy_slice(y, update, ctx.attrs, into_tensor=True)


def _slice_assign(ctx: BindContext) -> Iterator[Launch]:
    ref, value = ctx.inputs
    yield from _copy_slice(ref, value, ctx.attrs, into_tensor=True)


# --- padding


def _pad(ctx: BindContext) -> Iterator[Launch]:
    (x,), (y,) = ctx.inputs, ctx.outputs
    whole = ctx.query.inputs[0].dtype.kind in "iub"
    yield from fill_array(
        y, ctx.attrs["integral_constant_value" if whole else "floating_constant_value"]
    )
    before: Any = ctx.attrs["padding_before"]
    steps = contiguous(y.shape)
    first = sum(s * b for s, b in zip(steps, before, strict=True))
    yield from move_box(x, y, x.shape, (contiguous(x.shape), steps), (0, first))


def _pad_grad(ctx: BindContext) -> Iterator[Launch]:
    (dy,), (dx,) = ctx.inputs, ctx.outputs
    before: Any = ctx.attrs["padding_before"]
    steps = contiguous(dy.shape)
    first = sum(s * b for s, b in zip(steps, before, strict=True))
    yield from move_box(dy, dx, dx.shape, (steps, contiguous(dx.shape)), (first, 0))


# --- sources


def _constant(ctx: BindContext) -> Iterator[Launch]:
    yield from fill_array(ctx.outputs[0], ctx.attrs["value"])


def _literal(ctx: BindContext) -> Iterator[Launch]:
    """Yield a copy of the values from page-locked memory."""
    (out,) = ctx.outputs
    if out.nbytes:
        pinned = out.hardware.pinned(out.nbytes)
        numbers = np.array(ctx.attrs["data"], out.dtype).reshape(-1)
        pinned[:] = numbers.view(np.uint8)
        yield UploadLaunch(out.hardware, out, pinned)


def _zeros(ctx: BindContext) -> Iterator[Launch]:
    yield from fill_array(ctx.outputs[0], 0)


def _range(ctx: BindContext) -> Iterator[Launch]:
    (y,) = ctx.outputs
    start, delta = (float(ctx.attrs[k]) for k in ("start", "delta"))
    types = (c_type(ctx.query.outputs[0]),)
    yield call("count_up", HEADER, types, y, y.size, start, delta, items=y.size)


def _one_hot(ctx: BindContext) -> Iterator[Launch]:
    (index,), (y,), attrs = ctx.inputs, ctx.outputs, ctx.attrs
    prefix = "floating" if ctx.query.outputs[0].dtype.is_floating else "integer"
    on, off = (Bits(bits_of(attrs[f"{prefix}_{k}_value"], y.dtype)) for k in ("on", "off"))
    kind = UNSIGNED[y.itemsize]
    types = (kind, c_type(ctx.query.inputs[0]))
    values = (Read(index), Write(y, kind), y.size, y.shape[-1], attrs["first"], on, off)
    yield call("one_hot", HEADER, types, *values, items=y.size)


def _rank_fits(query: KernelQuery) -> bool:
    types = (*query.inputs, *query.outputs)
    return all(sum(n != 1 for n in t.shape) <= AXES for t in types)


ALIASES = (
    "reshape", "reshape_like", "flatten", "squeeze", "expand_dims", "identity", "parallel_cast",
    "amp_white_identity", "cast_to_static_shape", "copy", "tuple_identity",
)  # fmt: skip

_BINDS: dict[str, Callable[[BindContext], Iterator[Launch]]] = {
    **dict.fromkeys(ALIASES, _copy),
    "transpose": _transpose,
    "cuda_reorder": _transpose,
    "broadcast_to": _broadcast,
    "broadcast_like": _broadcast,
    "concat": _concat,
    "split": _split,
    "split_like": _split,
    "slice": _slice,
    "logical_slice": _slice,
    "slice_grad": _slice_grad,
    "slice_update": _slice_update,
    "logical_slice_assign": _slice_assign,
    "pad": _pad,
    "pad_grad": _pad_grad,
    "constant": _constant,
    "literal": _literal,
    "constant_like": _constant,
    "zero_like": _zeros,
    "range": _range,
    "one_hot": _one_hot,
}

KERNELS: tuple[KernelSpec, ...] = tuple(
    kernel(op, collect_launches(bind), _rank_fits) for op, bind in _BINDS.items()
)
