"""Reshapes to a constant batch size, in a job that is traced again for another batch size.

The other size may be that of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from flow_core.base.shapes import Shape, num_elements
from flow_core.ir.graph import AttrValue, GraphBuilder


def resized(
    before: GraphBuilder, name: str, attrs: Mapping[str, AttrValue], now: Shape
) -> Mapping[str, AttrValue]:
    """Return the attributes of a ``reshape`` whose shape is the same as in the first trace."""
    op = before.ops.get(name) or before.inner.get(name)
    if op is None or op.type != "reshape" or op.attrs["shape"] != attrs["shape"]:
        return attrs
    return {**attrs, "shape": reshaped(op.attrs["shape"], before.type_of(op.inputs[0]).shape, now)}


def reshaped(wanted: Shape, before: Shape, now: Shape) -> Shape:
    """Adapt the target shape of a reshape to another input shape.

    If one axis of the input has another size, the axis of the target that holds it is scaled alike;
    it becomes -1, so that it is inferred, unless it has the same size. Otherwise, leading sizes
    that are equal to those of the input are replaced by the new ones; if the numbers of elements
    then differ, the first size becomes -1.

    >>> reshaped((100, -1), (100, 28, 28), (7, 28, 28)), reshaped((100, 8), (800,), (56,))
    ((7, -1), (-1, 8))
    >>> reshaped((2, 8, 3), (2, 8, 3), (2, 4, 3)), reshaped((8, -1), (16, 3), (8, 3))
    ((2, 4, 3), (4, -1))
    """
    if before == now:
        return wanted
    axis = _scaled_axis(wanted, before, now)
    if axis is not None:
        old, new = next((a, b) for a, b in zip(before, now, strict=True) if a != b)
        size = resolved(wanted, before)[axis]
        exact = size == old or -1 in wanted
        scaled = size * new // old if exact and wanted[axis] != -1 else -1
        return (*wanted[:axis], scaled, *wanted[axis + 1 :])
    shape = list(wanted)
    for i, (size, old, new) in enumerate(zip(wanted, before, now, strict=False)):
        if size != old:
            break
        shape[i] = new
    fits = -1 in shape or num_elements(shape) == num_elements(now)
    return tuple(shape) if fits else (-1, *wanted[1:])


def resolved(wanted: Shape, before: Shape) -> Shape:
    """Return the target shape of a reshape with the number for -1.

    >>> resolved((2, -1), (4, 3))
    (2, 6)
    """
    rest = num_elements([n for n in wanted if n != -1])
    return tuple(num_elements(before) // max(1, rest) if n == -1 else n for n in wanted)


def _scaled_axis(wanted: Shape, before: Shape, now: Shape) -> int | None:
    """Return the axis of the target that holds the only axis of the input whose size differs.

    As arrays are row-major, this is the axis that begins where the input's axis begins, or that
    merges it with axes before it.
    """
    different = [i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b]
    if len(different) != 1 or len(before) != len(now) or not num_elements(before):
        return None
    (axis,) = different
    old, new, full = before[axis], now[axis], resolved(wanted, before)
    outer = num_elements(before[:axis])
    for i, size in enumerate(full):
        own = num_elements(full[:i])
        merges = outer % own == 0 and own * size % (outer * old) == 0
        if (own == outer or merges) and size * new % old == 0 and (size != 1 or old == 1):
            return i
    return None
