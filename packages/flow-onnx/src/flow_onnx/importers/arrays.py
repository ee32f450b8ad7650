"""Importers of operators that move, select, order and scatter elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from flow_core.base.dtypes import as_dtype
from flow_onnx.importers.context import (
    Blob,
    Importer,
    Node,
    as_type,
    by_kind,
    expanded,
    moved_last,
    numbers,
    reshaped,
    transposed,
)
from flow_onnx.importers.folding import emit, filled


def _reshape(n: Node) -> Blob:
    x, wanted = n.blob(), n.ints_of("shape", 1) or []
    total, zeros = prod(x.shape), bool(n.attr("allowzero", 0))
    allowed = f"{total} elements, of which one -1 stands for the rest, and 0 for an existing size"
    if not zeros and any(size == 0 for size in wanted[len(x.shape) :]):
        n.invalid(f"shape {wanted} for a value of shape {tuple(x.shape)}", allowed)
    sizes = [x.shape[i] if s == 0 and not zeros else s for i, s in enumerate(wanted)]
    rest = prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and rest:
        sizes = [total // rest if size == -1 else size for size in sizes]
    if min(sizes, default=0) < 0 or prod(sizes) != total:
        n.invalid(f"shape {wanted} for a value of shape {tuple(x.shape)}", allowed)
    return reshaped(x, sizes)


def _flatten(n: Node) -> Blob:
    x = n.blob()
    axis = n.axis(len(x.shape), 1, last=1)
    return reshaped(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _squeeze(n: Node) -> Blob:
    x, axes = n.blob(), n.ints_of("axes", 1)
    dropped = {i for i, size in enumerate(x.shape) if size == 1}
    if axes is not None:
        chosen = set(n.axes(axes, len(x.shape)))
        if chosen - dropped:
            n.invalid(f"axes={axes} of shape {tuple(x.shape)}", "axes of size 1")
        dropped = chosen
    return reshaped(x, [size for i, size in enumerate(x.shape) if i not in dropped])


def _unsqueeze(n: Node) -> Blob:
    x, axes = n.blob(), n.ints_of("axes", 1) or []
    rank = len(x.shape) + len(axes)
    added, sizes = set(n.axes(axes, rank)), iter(x.shape)
    return reshaped(x, [1 if i in added else next(sizes) for i in range(rank)])


def _transpose(n: Node) -> Blob:
    x = n.blob()
    perm = list(n.attr("perm", range(len(x.shape))[::-1]))
    if sorted(perm) != list(range(len(x.shape))):
        n.invalid(f"perm={perm} for a value of {len(x.shape)} axes", "each axis once")
    return transposed(x, perm)


def _expand(n: Node) -> Blob:
    x, wanted = n.blob(), n.ints(1, "a shape") or []
    try:
        shape = np.broadcast_shapes(tuple(x.shape), tuple(wanted))
    except ValueError:
        n.invalid(f"shape {wanted} for a value of shape {tuple(x.shape)}", "equal sizes, or 1")
    return expanded(x, shape)


def _tile(n: Node) -> Blob:
    """Repeat a blob along its axes: insert an axis before each, broadcast, and merge both."""
    x, repeats = n.blob(), n.ints(1, "repeats") or []
    if len(repeats) != len(x.shape) or min(repeats, default=0) < 0:
        n.invalid(f"repeats {repeats} for shape {tuple(x.shape)}", "a count of at least 0 per axis")
    sizes = [size * count for size, count in zip(x.shape, repeats, strict=True)]
    if 0 in sizes:
        return filled(x, sizes)
    if set(repeats) <= {1}:
        return x
    pairs = list(zip(repeats, x.shape, strict=True))
    apart = reshaped(x, [k for count, size in pairs for k in ((1, size) if count > 1 else (size,))])
    wide = tuple(k for pair in pairs for k in (pair if pair[0] > 1 else pair[1:]))
    return reshaped(expanded(apart, wide), sizes)


def _concat(n: Node) -> Blob:
    given = n.blobs()
    axis = n.axis(len(given[0].shape), 1)  # the default of opset 1; required since then
    return given[0] if len(given) == 1 else emit("concat", *given, axis=axis)


def _split(n: Node) -> Any:
    x, parts = n.blob(), len(n.proto.output)
    axis = n.axis(len(x.shape))
    size, sizes = x.shape[axis], n.ints_of("split", 1)
    count = n.attr("num_outputs", parts if n.opset < 18 else None)
    if count != (None if sizes is not None and n.opset >= 18 else parts):
        n.invalid(f"num_outputs={count}, sizes {sizes}, {parts} outputs", "one of both, for each")
    if sizes is None:
        each = -(-size // parts)
        sizes = [max(0, min(each, size - each * i)) for i in range(parts)]
        if n.opset < 18 and size % parts:
            n.invalid(f"{parts} equal parts of {size} elements", "a divisor of the size")
    if len(sizes) != parts or sum(sizes) != size or min(sizes) < 0:
        n.invalid(f"parts of sizes {sizes}", f"{parts} sizes with the sum {size}")
    starts = np.cumsum([0, *sizes]).tolist()
    return tuple(sliced(x, {axis: range(*starts[i : i + 2])}) for i in range(parts))


def sliced(x: Blob, parts: Mapping[int, range]) -> Blob:
    """Return the elements of a blob at positions along some of its axes."""
    ranges = [parts.get(i, range(size)) for i, size in enumerate(x.shape)]
    if all(r == range(size) for r, size in zip(ranges, x.shape, strict=True)):
        return x
    if not all(ranges):
        return filled(x, tuple(map(len, ranges)))
    start = tuple(r.start for r in ranges)
    stops = (r.stop if r.stop >= 0 else -size - 1 for r, size in zip(ranges, x.shape, strict=True))
    return emit("slice", x, start=start, stop=tuple(stops), step=tuple(r.step for r in ranges))


def _slice(n: Node) -> Blob:
    x = n.blob()
    starts, ends = n.ints_of("starts", 1) or [], n.ints_of("ends", 2) or []
    axes, steps = n.ints_of("axes", 3), n.ints(4, "steps") or [1] * len(starts)
    axes = n.axes(range(len(starts)) if axes is None else axes, len(x.shape))
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        found = f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes, steps {steps}"
        n.invalid(found, "as many of each; steps other than 0")
    columns = zip(axes, starts, ends, steps, strict=True)
    return sliced(x, {axis: _positions(x.shape[axis], *column) for axis, *column in columns})


def _positions(size: int, start: int, end: int, step: int) -> range:
    """Return the positions of a slice; unlike in Python, a start before the axis is its begin.

    >>> _positions(10, -20, -30, -1), _positions(4, -3, 9, 2)
    (range(0, -1, -1), range(1, 4, 2))
    """
    start, end = (place + size if place < 0 else place for place in (start, end))
    low, high = (0, size) if step > 0 else (-1, size - 1)
    start = min(max(start, 0), high)
    return range(start, min(max(end, low), high), step)


def _indices(n: Node, index: int, sizes: int | Sequence[int], any_number: bool = False) -> Blob:
    """Return indices as a blob, in which negative ones are replaced by positions.

    Args:
        sizes: the size of the indexed axis; or that of several axes, to each of which an index of
            the last axis applies.
        any_number: whether indices may be out of range.
    """
    given, limits = n.value(index), np.array(sizes)
    if isinstance(given, np.ndarray):
        given = given.astype(np.int64)
        wrong = (given < -limits) | (given >= limits)
        if wrong.any() and not any_number:
            found = f"index {given[wrong][0]} in input {index}"
            n.invalid(found, f"-{limits.max()} to {limits.max() - 1}")
        return n.constant(
            np.where(given < 0, given + limits, given), f"{n.proto.output[0]}-indices"
        )
    given = given if given.dtype.name == "int32" else as_type(given, "int64")
    below = as_type(emit("scalar_logical_less", given, operand=0), given.dtype.name)
    if limits.ndim == 0:
        return emit("broadcast_add", given, emit("scalar_mul", below, operand=int(limits)))
    wide = n.constant(limits.astype(given.dtype.numpy), f"{n.proto.output[0]}-sizes")
    return emit("broadcast_add", given, emit("broadcast_mul", below, wide))


def _gather(n: Node) -> Blob:
    x = n.blob()
    axis = n.axis(len(x.shape))
    index, place = _indices(n, 1, x.shape[axis]), n.value(1)
    if isinstance(place, np.ndarray) and place.ndim == 0:
        first = int(place) % x.shape[axis]
        kept = sliced(x, {axis: range(first, first + 1)})
        return reshaped(kept, [s for i, s in enumerate(x.shape) if i != axis])
    if not index.shape:
        found = emit("gather", x, reshaped(index, (1,)), axis=axis)
        return reshaped(found, [s for i, s in enumerate(x.shape) if i != axis])
    return emit("gather", x, index, axis=axis)


def _gather_elements(n: Node) -> Blob:
    x = n.blob()
    axis = n.axis(len(x.shape))
    index = _indices(n, 1, x.shape[axis])
    sizes = {i: range(size) for i, size in enumerate(index.shape) if i != axis}
    return emit("dim_gather", sliced(x, sizes), index, dim=axis)


def _gather_nd(n: Node) -> Blob:
    x, shape, lead = n.blob(), n.shape(1), n.attr("batch_dims", 0)
    index = _indices(n, 1, x.shape[lead : lead + shape[-1]])
    if lead == 0:
        return emit("gather_nd", x, index)
    if lead != len(shape) - 2 or shape[-1] != 1:
        n.unsupported(f"batch_dims={lead} with indices of shape {shape}")
    return emit("batch_gather", x, reshaped(index, shape[:-1]))


def _scatter_elements(n: Node) -> Blob:
    x = n.blob()
    if n.attr("reduction", "none") != "add":
        n.unsupported("a reduction other than add")
    axis = n.axis(len(x.shape))
    index = _indices(n, 1, x.shape[axis])
    if any(a != b for i, (a, b) in enumerate(zip(x.shape, index.shape, strict=True)) if i != axis):
        n.unsupported(f"indices of shape {tuple(index.shape)} for shape {tuple(x.shape)}")
    added = emit("dim_scatter_add_like", x, n.blob(2), index, dim=axis)
    return _truth_of(n, emit("broadcast_add", x, added))


def _truth_of(n: Node, total: Blob) -> Blob:
    """Return sums of booleans as booleans, and other sums unchanged."""
    is_bool = n.elements[0] == TensorProto.BOOL
    return emit("scalar_logical_not_equal", total, operand=0) if is_bool else total


def _scatter_nd(n: Node) -> Blob:
    x, reduction = n.blob(), n.attr("reduction", "none")
    ops = {"add": "tensor_scatter_nd_add", "none": "tensor_scatter_nd_update"}
    if reduction not in ops:
        n.unsupported(f"reduction={reduction!r}")
    index = _indices(n, 1, x.shape[: n.shape(1)[-1]])
    return _truth_of(n, emit(ops[reduction], x, n.blob(2), index))


def _pad(n: Node) -> Blob:
    x, mode = n.blob(), n.attr("mode", "constant")
    pads, rank = n.ints_of("paddings" if n.opset < 2 else "pads", 1) or [], len(x.shape)
    given = n.ints(3, "axes")
    axes = n.axes(range(rank) if given is None else given, rank)
    if len(pads) != 2 * len(axes):
        n.invalid(f"{len(pads)} pads for {len(axes)} axes", "two for each axis")
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    if any(s + min(0, b) + min(0, a) < 0 for s, b, a in zip(x.shape, before, after, strict=True)):
        n.invalid(f"pads={pads} of shape {tuple(x.shape)}", "no more than the size is removed")
    x = sliced(x, {i: range(max(0, -b), x.shape[i] + min(0, a)) for i, (b, a) in
                    enumerate(zip(before, after, strict=True))})  # fmt: skip
    before, after = ([max(0, p) for p in side] for side in (before, after))
    if mode == "constant":
        value = n.number(2, "a value", 0) if "value" not in n.attrs else n.attr("value")
        return padded(x, before, after, value)
    n.unread.discard(2)
    for axis, sides in enumerate(zip(before, after, strict=True)):
        x = _extended(n, x, axis, sides, mode)
    return x


def padded(x: Blob, before: Sequence[int], after: Sequence[int], value: float = 0) -> Blob:
    """Extend a blob by elements of a value."""
    if not any((*before, *after)):
        return x
    return emit(
        "pad", x, padding_before=tuple(before), padding_after=tuple(after),
        **by_kind("{}_constant_value", value, x.dtype),
    )  # fmt: skip


def _extended(n: Node, x: Blob, axis: int, sides: tuple[int, int], mode: str) -> Blob:
    """Extend an axis by reflection, or by repeating or wrapping its elements."""
    if not any(sides):
        return x
    if mode not in ("reflect", "edge", "wrap") or not x.shape[axis]:
        n.unsupported(f"mode={mode!r} for shape {tuple(x.shape)}")
    rows: Any = np.arange(x.shape[axis])
    taken = np.pad(rows, sides, mode=mode)  # type: ignore[call-overload]
    index = n.constant(taken.astype(np.int64), f"{n.proto.output[0]}-rows-{axis}")
    return emit("gather", x, index, axis=axis)


def _one_hot(n: Node) -> Blob:
    """Compare the indices with all classes, since those out of range equal none of them."""
    depth, values = n.number(1, "a depth", None), n.known(2, "values")
    if int(depth) < 1 or values.shape != (2,):
        n.invalid(f"depth {depth}, values of shape {values.shape}", "a depth above 0, two values")
    index = _indices(n, 0, int(depth), any_number=True)
    classes = n.counting(int(depth), index.dtype)
    hot = emit("broadcast_equal", reshaped(index, (*index.shape, 1)), classes)
    off, on = numbers(values)
    chosen = emit("constant_like", hot, value=on, dtype=as_dtype(values.dtype).name)
    found = emit("where_scalar_y", hot, chosen, operand=off)
    rank = len(index.shape)
    perm = [*range(rank)]
    perm.insert(n.axis(rank + 1, -1), rank)
    return transposed(found, perm)


def _in_reverse(n: Node, x: Blob) -> Blob:
    """Return numbers in the opposite order; for integers -1 - x, as -x does not exist for all."""
    if x.dtype.is_floating:
        return emit("negative", x)
    x = as_type(x, "int32") if x.dtype.name == "uint8" else x
    return emit("broadcast_sub", n.constant(np.full(1, -1, x.dtype.numpy), "minus_one"), x)


def _top_k(n: Node) -> Any:
    count = n.ints_of("k", 1) or [1]
    x, largest = n.blob(), n.attr("largest", 1)
    axis = n.axis(len(x.shape), -1)
    n.attr("sorted", 1)  # sorted results are right for 0, too
    if not 0 < count[0] <= x.shape[axis]:
        n.invalid(f"k={count[0]} of {x.shape[axis]} elements", f"1 to {x.shape[axis]}")

    def run(x: Blob) -> Any:
        key = x if largest else _in_reverse(n, x)
        places = emit("top_k", key, k=count[0], sorted=True)
        return emit("dim_gather", x, places, dim=len(x.shape) - 1), as_type(places, "int64")

    return moved_last(x, axis, run)


def _arg_extreme(sign: int) -> Importer:
    def run(n: Node) -> Blob:
        if n.attr("select_last_index", 0):
            n.unsupported("select_last_index=1")
        x = n.blob() if sign > 0 else _in_reverse(n, n.blob())
        rank = len(x.shape)
        axis = n.axis(rank)
        perm = [*(i for i in range(rank) if i != axis), axis]
        found = as_type(emit("argmax", transposed(x, perm)), "int64")
        shape = [1 if i == axis else s for i, s in enumerate(x.shape)]
        if not n.attr("keepdims", 1):
            del shape[axis]
        return reshaped(found, shape)

    return run


def _triangle(n: Node) -> Blob:
    """Keep the lower triangle, or the upper one as the lower one of the transposed matrices."""
    x, upper, given = n.blob(), n.attr("upper", 1), int(n.number(1, "a diagonal", 0))
    if len(x.shape) < 2:
        n.invalid(f"a value of shape {tuple(x.shape)}", "matrices")
    diagonal = min(max(given, -x.shape[-2]), x.shape[-1])
    swapped = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    fills = {"floating_fill_value": 0.0, "integer_fill_value": 0, "is_floating_fill_value": True}
    if not upper:
        return emit("tril", x, diagonal=diagonal, **fills)
    return transposed(emit("tril", transposed(x, swapped), diagonal=-diagonal, **fills), swapped)


IMPORTERS: Mapping[str, Importer] = {
    "ArgMax": _arg_extreme(1),
    "ArgMin": _arg_extreme(-1),
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Reshape": _reshape,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "TopK": _top_k,
    "Transpose": _transpose,
    "Trilu": _triangle,
    "Unsqueeze": _unsqueeze,
}
