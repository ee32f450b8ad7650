"""Reshapes to a constant batch size, in a job that is traced again for another batch size."""

from __future__ import annotations

from collections.abc import Mapping

from flow_core.base.shapes import Shape, num_elements
from flow_core.ir.graph import AttrValue, GraphBuilder


def resized(
    before: GraphBuilder, name: str, attrs: Mapping[str, AttrValue], now: Shape
) -> Mapping[str, AttrValue]:
    """Return the attributes of a ``reshape`` whose shape is the same as in the first trace.

    Args:
        before: the first trace.
        name: full name of the op.
        attrs: its attributes.
        now: the shape of its input.
    """
    op = before.ops.get(name)
    if op is None or op.type != "reshape" or op.attrs["shape"] != attrs["shape"]:
        return attrs
    return {**attrs, "shape": reshaped(op.attrs["shape"], before.type_of(op.inputs[0]).shape, now)}


def reshaped(wanted: Shape, before: Shape, now: Shape) -> Shape:
    """Adapt the target shape of a reshape to another input shape.

    Leading sizes that are equal to those of the input are replaced by the new ones. If the numbers
    of elements then differ, the first size becomes -1, so that it is inferred.

    >>> reshaped((100, -1), (100, 28, 28), (7, 28, 28)), reshaped((100, 8), (800,), (56,))
    ((7, -1), (-1, 8))
    """
    if before == now:
        return wanted
    shape = list(wanted)
    for i, (size, old, new) in enumerate(zip(wanted, before, now, strict=False)):
        if size != old:
            break
        shape[i] = new
    fits = -1 in shape or num_elements(shape) == num_elements(now)
    return tuple(shape) if fits else (-1, *wanted[1:])
