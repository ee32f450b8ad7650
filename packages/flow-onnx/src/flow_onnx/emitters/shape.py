"""Emitters of reshapes, broadcasts, slices, concatenations and splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise

from flow_core.base.shapes import Shape, slice_range
from flow_onnx.emission import Emission

Emitter = Callable[[Emission], str | tuple[str, ...]]


FAR = 2**31
"""An index beyond the end of any axis."""


def _as_output(e: Emission) -> str:
    return e.as_output(e.x, e.shape)


def _passed(e: Emission) -> tuple[str, ...]:
    """Return the inputs unchanged."""
    return e.inputs


def _to_and_from_mirrored(e: Emission) -> tuple[str, ...]:
    if len(e.inputs) != 1 or len(e.outputs) != 1:
        e.unsupported("the mirrored view of several devices")
    return e.inputs


# ------------------------------------------------------------------------------ broadcasts


def missing_axes(x: Shape, out: Shape, axes: tuple[int, ...]) -> list[int]:
    """Return the axes of ``out`` that ``x`` lacks: ``axes`` if these match, else leading axes.

    >>> missing_axes((4, 3), (4, 5, 3), (1,)), missing_axes((3,), (4, 3), ())
    ([1], [0])
    """
    dropped = sorted({axis % len(out) for axis in axes})
    if len(x) < len(out) and x == tuple(n for i, n in enumerate(out) if i not in dropped):
        return dropped
    return list(range(len(out) - len(x)))


def _broadcast(e: Emission) -> str:
    """Emit a broadcast; sizes that do not change are passed as 1, so that they can be open."""
    out = e.outputs[0].shape
    missing = missing_axes(e.shape, out, tuple(e.op.attrs.get("broadcast_axes", ())))
    x, sizes = e.x, list(e.shape)
    for axis in missing:
        sizes.insert(axis, 1)
    if missing:
        x = unsqueeze(e, x, missing)
    repeated = frozenset(i for i, (n, m) in enumerate(zip(out, sizes, strict=True)) if n != m)
    if len(e.inputs) == 2 and e.open and e.open[0] & repeated:
        return e.node("Expand", x, e.node("Shape", e.inputs[1]))
    return e.node("Expand", x, e.ints([n if i in repeated else 1 for i, n in enumerate(out)]))


def unsqueeze(e: Emission, x: str, axes: list[int]) -> str:
    """Insert axes of size 1 into ``x``; ``Unsqueeze`` has the axes as an input since opset 13."""
    return e.node_with_axes("Unsqueeze", x, axes, 13)


# ------------------------------------------------------------------------------ parts


def sliced_axes(e: Emission) -> dict[int, range]:
    """Return the ranges of the axes that a slice does not take completely."""
    if e.attr("window") is not None:
        e.unsupported("a device's part of a slice")
    columns = zip(e.shape, *(e.attr(k) for k in ("start", "stop", "step")), strict=True)
    taken = [slice_range(*column) for column in columns]
    return {i: r for i, r in enumerate(taken) if r != range(e.shape[i])}


def _slice(e: Emission) -> str:
    taken = sliced_axes(e)
    if not taken:
        return e.node("Identity", e.x)
    starts, ends = zip(*(_ends(e.shape[axis], r) for axis, r in taken.items()), strict=True)
    return e.slice(e.x, list(taken), starts, ends, [r.step for r in taken.values()])


def _ends(size: int, taken: range) -> tuple[int, int]:
    """Return start and end of a slice; bounds at the axis's ends are valid for every axis size."""
    start = -1 if taken.step < 0 and taken.start == size - 1 else taken.start
    if taken.stop < 0:
        return start, -FAR
    return start, FAR if taken.stop == size else taken.stop


def _replaced(e: Emission, x: str, update: str, taken: list[tuple[int, range]]) -> str:
    """Replace a slice of ``x`` by ``update``, with one recursive call per axis.

    Each call updates the slice along one axis, then restores the order of the indices.
    """
    if not taken:
        return e.node("Identity", update)
    (axis, part), *rest = taken
    inner = e.node("Gather", x, e.ints(part), axis=axis) if rest else x
    new, size = _replaced(e, inner, update, rest), e.shape[axis]
    order = list(range(size))
    for i, place in enumerate(part):
        order[place] = size + i
    return e.node("Gather", e.node("Concat", x, new, axis=axis), e.ints(order), axis=axis)


def _split(e: Emission) -> tuple[str, ...]:
    axis = e.attr("axis") % e.rank
    sizes = [kind.shape[axis] for kind in e.outputs]
    if any(axis in axes for axes in e.open):
        e.unsupported("an open size is split")
    if sum(sizes) != e.shape[axis]:
        return _cut_apart(e, axis, sizes)
    if e.opset >= 13:
        return tuple(e.nodes("Split", e.x, e.ints(sizes), outputs=len(sizes), axis=axis))
    return tuple(e.nodes("Split", e.x, outputs=len(sizes), axis=axis, split=sizes))


def _cut_apart(e: Emission, axis: int, sizes: list[int]) -> tuple[str, ...]:
    ends = pairwise(accumulate(sizes, initial=0))
    return tuple(e.slice(e.x, [axis], [start], [stop]) for start, stop in ends)


EMITTERS: Mapping[str, Emitter] = {
    **dict.fromkeys(("reshape", "reshape_like", "flatten", "squeeze", "expand_dims"), _as_output),
    **dict.fromkeys(("identity", "amp_white_identity", "cast_to_static_shape"), _passed),
    **dict.fromkeys(("parallel_cast", "copy", "tuple_identity"), _passed),
    "cast_to_mirrored": _to_and_from_mirrored,
    "cast_from_mirrored": _to_and_from_mirrored,
    "transpose": lambda e: e.node("Transpose", e.x, perm=list(e.attr("perm"))),
    "broadcast_to": _broadcast,
    "broadcast_like": _broadcast,
    "slice": _slice,
    "logical_slice": _slice,
    "slice_update": lambda e: _replaced(e, e.x, e.inputs[1], list(sliced_axes(e).items())),
    "concat": lambda e: e.node("Concat", *e.inputs, axis=e.attr("axis") % e.rank),
    "split": _split,
    "split_like": _split,
}
