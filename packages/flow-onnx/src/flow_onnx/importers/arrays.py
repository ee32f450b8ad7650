"""Importers of operators that move, select, order and scatter elements."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.specs import emit
from flow_onnx.importers.context import (
    Blob,
    Importer,
    Node,
    Weight,
    as_type,
    expanded,
    moved_last,
    reshaped,
    scalar,
    transposed,
)


def _reshape(n: Node) -> Blob:
    x, wanted = n.blob(), n.ints_of("shape", 1) or []
    if not n.attr("allowzero", 0):
        wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    rest = prod(size for size in wanted if size != -1)
    return reshaped(x, [prod(x.shape) // max(1, rest) if s == -1 else s for s in wanted])


def _flatten(n: Node) -> Blob:
    x, axis = n.blob(), n.attr("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    return reshaped(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _squeeze(n: Node) -> Blob:
    x, axes = n.blob(), n.ints_of("axes", 1)
    dropped = {i for i, size in enumerate(x.shape) if size == 1}
    if axes is not None:
        dropped = {axis % len(x.shape) for axis in axes}
    return reshaped(x, [size for i, size in enumerate(x.shape) if i not in dropped])


def _unsqueeze(n: Node) -> Blob:
    x, axes = n.blob(), n.ints_of("axes", 1) or []
    rank = len(x.shape) + len(axes)
    added, sizes = {axis % rank for axis in axes}, iter(x.shape)
    return reshaped(x, [1 if i in added else next(sizes) for i in range(rank)])


def _transpose(n: Node) -> Blob:
    x = n.blob()
    return transposed(x, n.attr("perm") or range(len(x.shape))[::-1])


def _expand(n: Node) -> Blob:
    x, wanted = n.blob(), n.ints(1, "a shape") or []
    return expanded(x, np.broadcast_shapes(tuple(x.shape), tuple(wanted)))


def _tile(n: Node) -> Blob:
    x, repeats = n.blob(), n.ints(1, "repeats") or []
    for axis, count in enumerate(repeats):
        x = emit("concat", *[x] * count, axis=axis) if count != 1 else x
    return x


def _concat(n: Node) -> Blob:
    given = n.blobs()
    if len(given) == 1:
        return given[0]
    return emit("concat", *given, axis=n.attr("axis") % len(given[0].shape))


def _split(n: Node) -> Any:
    x, axis = n.blob(), n.attr("axis", 0)
    axis %= len(x.shape)
    sizes, parts = n.ints_of("split", 1), len(n.proto.output)
    if sizes is None:
        size = -(-x.shape[axis] // parts)
        sizes = [min(size, x.shape[axis] - size * i) for i in range(parts)]
    starts = np.cumsum([0, *sizes])
    return tuple(
        _sliced(x, {axis: slice(int(starts[i]), int(starts[i + 1]), 1)}) for i in range(parts)
    )


def _sliced(x: Blob, parts: Mapping[int, slice]) -> Blob:
    ranges = [range(size)[parts.get(i, slice(None))] for i, size in enumerate(x.shape)]
    if all(r == range(size) for r, size in zip(ranges, x.shape, strict=True)):
        return x
    if not all(ranges):
        sizes = tuple(map(len, ranges))
        return emit("constant", value=0, dtype=x.dtype.name, shape=sizes)
    start = tuple(r.start for r in ranges)
    stops = (r.stop if r.stop >= 0 else -size - 1 for r, size in zip(ranges, x.shape, strict=True))
    return emit("slice", x, start=start, stop=tuple(stops), step=tuple(r.step for r in ranges))


def _slice(n: Node) -> Blob:
    x = n.blob()
    starts, ends = n.ints_of("starts", 1) or [], n.ints_of("ends", 2) or []
    axes = n.ints_of("axes", 3)
    axes = list(range(len(starts))) if axes is None else axes
    steps = n.ints(4, "steps") or [1] * len(starts)
    parts = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = x.shape[axis % len(x.shape)]
        last: int | None = max(-size - 1, end)
        if step < 0 and end < -size:
            last = None
        parts[axis % len(x.shape)] = slice(start, last, step)
    return _sliced(x, parts)


def _indices(n: Node, index: int, size: int) -> Blob:
    """Return indices as a blob; negative ones count from the end."""
    given = n.inputs[index]
    array = given.array if isinstance(given, Weight) else given
    if isinstance(array, np.ndarray):
        return n.constant(np.where(array < 0, array + size, array), f"{n.proto.output[0]}-indices")
    below = emit("scalar_logical_less", given, operand=0)
    wrapped = emit("scalar_mul", as_type(below, given.dtype.name), operand=size)
    return emit("broadcast_add", given, wrapped)


def _gather(n: Node) -> Blob:
    x = n.blob()
    axis = n.attr("axis", 0) % len(x.shape)
    place = scalar(n, 1)
    if place is not None and n.known(1, "").ndim == 0:
        first = int(place) % x.shape[axis]
        kept = _sliced(x, {axis: slice(first, first + 1)})
        return reshaped(kept, [s for i, s in enumerate(x.shape) if i != axis])
    return emit("gather", x, _indices(n, 1, x.shape[axis]), axis=axis)


def _gather_elements(n: Node) -> Blob:
    x = n.blob()
    axis = n.attr("axis", 0) % len(x.shape)
    index = _indices(n, 1, x.shape[axis])
    sizes = [slice(0, m) if i != axis else slice(None) for i, m in enumerate(index.shape)]
    return emit("dim_gather", _sliced(x, dict(enumerate(sizes))), index, dim=axis)


def _gather_nd(n: Node) -> Blob:
    x, index, lead = n.blob(), n.blob(1), n.attr("batch_dims", 0)
    if lead == 0:
        return emit("gather_nd", x, index)
    if lead != len(index.shape) - 2 or index.shape[-1] != 1:
        n.unsupported(f"batch_dims={lead} with indices of shape {tuple(index.shape)}")
    return emit("batch_gather", x, reshaped(index, index.shape[:-1]))


def _scatter_elements(n: Node) -> Blob:
    x, index, updates = n.blobs()
    if n.attr("reduction", "none") != "add":
        n.unsupported("a reduction other than add")
    axis = n.attr("axis", 0) % len(x.shape)
    added = emit("dim_scatter_add_like", x, updates, index, dim=axis)
    return emit("broadcast_add", x, added)


def _scatter_nd(n: Node) -> Blob:
    x, index, updates = n.blobs()
    ops = {"add": "tensor_scatter_nd_add", "none": "tensor_scatter_nd_update"}
    reduction = n.attr("reduction", "none")
    if reduction not in ops:
        n.unsupported(f"reduction={reduction!r}")
    return emit(ops[reduction], x, updates, index)


def _pad(n: Node) -> Blob:
    x, mode = n.blob(), n.attr("mode", "constant")
    pads, rank = n.ints_of("pads", 1) or [], len(x.shape)
    axes = n.ints(3, "axes") or list(range(rank))
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis % rank], after[axis % rank] = pads[i], pads[i + len(axes)]
    x = _sliced(x, {i: slice(max(0, -b), x.shape[i] + min(0, a)) for i, (b, a) in
                    enumerate(zip(before, after, strict=True))})  # fmt: skip
    before, after = ([max(0, p) for p in side] for side in (before, after))
    if mode == "constant":
        value = scalar(n, 2) if n.has(2) else n.attr("value", 0.0)
        return _padded(x, before, after, 0 if value is None else value)
    for axis, sides in enumerate(zip(before, after, strict=True)):
        x = _extended(n, x, axis, sides, mode)
    return x


def _padded(x: Blob, before: list[int], after: list[int], value: float) -> Blob:
    if not any((*before, *after)):
        return x
    return emit(
        "pad", x, padding_before=tuple(before), padding_after=tuple(after),
        floating_constant_value=float(value), integral_constant_value=int(value),
    )  # fmt: skip


def _extended(n: Node, x: Blob, axis: int, sides: tuple[int, int], mode: str) -> Blob:
    """Extend an axis by reflection, or by repeating or wrapping its elements."""
    if not any(sides):
        return x
    modes = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
    if mode not in modes:
        n.unsupported(f"mode={mode!r}")
    rows: Any = np.arange(x.shape[axis])
    taken = np.pad(rows, sides, mode=modes[mode])  # type: ignore[call-overload]
    index = n.constant(taken.astype(np.int64), f"{n.proto.output[0]}-rows-{axis}")
    return emit("gather", x, index, axis=axis)


def _one_hot(n: Node) -> Blob:
    depth, values = n.known(1, "a depth"), n.known(2, "values")
    depth = int(depth.reshape(-1)[0])
    off, on = (v.item() for v in values)
    index = _indices(n, 0, depth)
    hot = emit(
        "one_hot", index, depth=depth, dtype=str(values.dtype), floating_on_value=float(on),
        floating_off_value=float(off), integer_on_value=int(on), integer_off_value=int(off),
    )  # fmt: skip
    rank = len(hot.shape)
    axis = n.attr("axis", -1) % rank
    perm = [*range(rank - 1)]
    perm.insert(axis, rank - 1)
    return transposed(hot, perm)


def _top_k(n: Node) -> Any:
    count = n.ints_of("k", 1) or [1]

    def run(x: Blob) -> Any:
        key = x if n.attr("largest", 1) else emit("negative", x)
        places = emit("top_k", key, k=count[0], sorted=True)
        return emit("dim_gather", x, places, dim=len(x.shape) - 1), as_type(places, "int64")

    return moved_last(n.blob(), n.attr("axis", -1), run)


def _arg_extreme(sign: int) -> Importer:
    def run(n: Node) -> Blob:
        if n.attr("select_last_index", 0):
            n.unsupported("select_last_index=1")
        x = n.blob() if sign > 0 else emit("negative", n.blob())
        rank = len(x.shape)
        axis = n.attr("axis", 0) % rank
        perm = [*(i for i in range(rank) if i != axis), axis]
        found = as_type(emit("argmax", transposed(x, perm)), "int64")
        shape = [1 if i == axis else s for i, s in enumerate(x.shape)]
        if not n.attr("keepdims", 1):
            del shape[axis]
        return reshaped(found, shape)

    return run


def _triangle(n: Node) -> Blob:
    x, diagonal = n.blob(), scalar(n, 1) if n.has(1) else 0
    upper = n.attr("upper", 1)
    attrs: dict[str, Any] = {
        "floating_fill_value": 0.0,
        "integer_fill_value": 0,
        "is_floating_fill_value": True,
    }
    lower = emit("tril", x, diagonal=int(diagonal or 0) - upper, **attrs)
    return emit("broadcast_sub", x, lower) if upper else lower


def _filled(n: Node) -> Blob:
    """Return a constant of a shape that depends on no value."""
    n.unsupported("a shape computed from the inputs of the job")


IMPORTERS: Mapping[str, Importer] = {
    "ArgMax": _arg_extreme(1),
    "ArgMin": _arg_extreme(-1),
    "Concat": _concat,
    "ConstantOfShape": _filled,
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
    "Shape": lambda n: np.array(n.blob().shape[slice(n.attr("start", 0), n.attr("end"))], np.int64),
    "Size": lambda n: np.array(prod(n.blob().shape), np.int64),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "TopK": _top_k,
    "Transpose": _transpose,
    "Trilu": _triangle,
    "Unsqueeze": _unsqueeze,
}
