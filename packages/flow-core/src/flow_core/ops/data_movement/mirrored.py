"""Casts between the two views, which convert a logical value to one value per device or back.

``cast_to_mirrored`` returns the parts of a logical value that the devices hold as separate values;
``cast_from_mirrored`` builds a logical value from such parts.  Both ops have the SBP of the logical
value as an attribute and cost nothing: compilation replaces their outputs by their inputs.  Only a
single-device plan, which simulates all devices for a comparison, executes these ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import GraphError
from flow_core.base.shapes import Shape
from flow_core.ir.graph import tensor_type
from flow_core.ops.build import GradContext, Maker, Sym
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.plugins.specs import REQUIRED, InferContext, Sample
from flow_core.sharding.sbp import (
    Broadcast,
    NdSbp,
    Partial,
    Sbp,
    Split,
    coordinates,
    format_nd_sbp,
    gradient_dual,
    local_region,
    parse_nd_sbp,
    region_shape,
)


def local_shapes(shape: Shape, sbp: NdSbp, hierarchy: tuple[int, ...]) -> list[Shape]:
    """Return the shape of each device's part.

    >>> local_shapes((5, 2), (Split(0),), (2,))
    [(3, 2), (2, 2)]
    """
    return [
        region_shape(local_region(shape, sbp, hierarchy, rank)) for rank in range(prod(hierarchy))
    ]


def _sbp(ctx: InferContext, shape: Shape) -> NdSbp:
    """Return the SBP of the logical value, after checking that it fits the value's shape."""
    try:
        sbp = parse_nd_sbp(ctx.attrs["sbp"])
    except GraphError as error:
        ctx.fail(error.found, error.allowed)
    hierarchy = ctx.attrs["hierarchy"]
    ctx.check(
        len(sbp) == len(hierarchy),
        f"{ctx.attrs['sbp']} for the hierarchy {hierarchy}",
        "one entry per hierarchy dimension",
    )
    for entry in sbp:
        fits = not isinstance(entry, Split) or 0 <= entry.axis < len(shape)
        ctx.check(fits, f"{entry} of shape {shape}", f"axes below {len(shape)}")
        ctx.check(entry != Partial("max") and entry != Partial("min"), str(entry), "S(axis), B, P")
    return sbp


def _dual(g: GradContext) -> dict[str, object]:
    """Return the attributes of the gradient op: the same devices and splits, with B and P
    exchanged.
    """
    sbp = tuple(map(gradient_dual, parse_nd_sbp(g.attrs["sbp"])))
    return {"sbp": format_nd_sbp(sbp), "hierarchy": g.attrs["hierarchy"]}


def _zeros(g: GradContext, index: int) -> Sym:
    """Return a zero gradient for an unused part, on the part's device."""
    one = Maker(g.maker.emitter, g.op.placement.only(index), g.maker.prefix, g.maker.line).one
    type_ = g.outputs[index].type
    return one("constant", value=0.0, dtype=type_.dtype.name, shape=type_.shape)


def parts_per_device(
    shape: Shape, sbp: str, hierarchy: tuple[int, ...], kind: type[Sbp]
) -> Iterator[tuple[bool, Any]]:
    """Yield for each device whether it is the first on all dimensions of a kind, and its window."""
    nd = parse_nd_sbp(sbp)
    for rank in range(prod(hierarchy)):
        where = coordinates(rank, hierarchy)
        first = not any(c and isinstance(s, kind) for c, s in zip(where, nd, strict=True))
        yield first, tuple(slice(*bounds) for bounds in local_region(shape, nd, hierarchy, rank))


class CastToMirrored(OpDef):
    """The parts of a logical value, one per device."""

    schema = "cast_to_mirrored(in) -> out*"
    attrs = {"sbp": REQUIRED, "hierarchy": REQUIRED}
    per_device = "outputs"

    def infer(self, ctx: InferContext) -> Types:
        (x,) = ctx.inputs
        shapes = local_shapes(x.shape, _sbp(ctx, x.shape), ctx.attrs["hierarchy"])
        empty = next((i for i, s in enumerate(shapes) if 0 in s and 0 not in x.shape), None)
        ctx.check(
            empty is None,
            f"shape {x.shape} as {ctx.attrs['sbp']} over {len(shapes)} devices",
            "at least one element for each device",
        )
        return tuple(tensor_type(shape, x.dtype) for shape in shapes)

    def gradient(self, g: GradContext) -> Gradients:
        parts = [grad or _zeros(g, i) for i, grad in enumerate(g.grads)]
        return (g.one("cast_from_mirrored", *parts, shape=g.x.shape, **_dual(g)),)

    def reference(self, x: Array, *, sbp: str, hierarchy: tuple[int, ...]) -> tuple[Array, ...]:
        """Return the parts; of a partial sum, all but the first device have zeros."""
        parts = parts_per_device(x.shape, sbp, hierarchy, Partial)
        return tuple(
            x[window].copy() if first else np.zeros_like(x[window]) for first, window in parts
        )

    def samples(self, rng: Rng) -> Samples:
        for sbp, hierarchy in (("S(0)", (2,)), ("B", (3,)), ("P", (2,)), ("(S(0), S(1))", (2, 2))):
            yield Sample((rng.normal(size=(5, 4)),), {"sbp": sbp, "hierarchy": hierarchy})


class CastFromMirrored(OpDef):
    """The logical value composed of the devices' parts."""

    schema = "cast_from_mirrored(in*) -> out"
    attrs = {"sbp": REQUIRED, "hierarchy": REQUIRED, "shape": REQUIRED}
    per_device = "inputs"
    gradient = staticmethod(lambda g: g.all("cast_to_mirrored", g.dy, **_dual(g)))

    def infer(self, ctx: InferContext) -> Types:
        shape, dtype = tuple(ctx.attrs["shape"]), ctx.inputs[0].dtype
        wanted = local_shapes(shape, _sbp(ctx, shape), ctx.attrs["hierarchy"])
        ctx.check(
            ctx.inputs == tuple(tensor_type(s, dtype) for s in wanted),
            f"parts {', '.join(map(str, ctx.inputs))} of shape {shape} as {ctx.attrs['sbp']}",
            f"shapes {', '.join(map(str, wanted))} of one element type",
        )
        return (tensor_type(shape, dtype),)

    def reference(self, *xs: Array, shape: Shape, sbp: str, hierarchy: tuple[int, ...]) -> Array:
        """Return the sum of the parts, with equal copies counted once."""
        out = np.zeros(shape, xs[0].dtype)
        parts = parts_per_device(shape, sbp, hierarchy, Broadcast)
        for x, (first, window) in zip(xs, parts, strict=True):
            out[window] += x if first else 0
        return out

    def samples(self, rng: Rng) -> Samples:
        whole = CastToMirrored()
        for sample in whole.samples(rng):
            parts = whole.reference(*sample.inputs, **sample.attrs)
            yield Sample(parts, {**sample.attrs, "shape": sample.inputs[0].shape})


OPS = specs(CastToMirrored, CastFromMirrored)
