"""Elementwise ops and fused groups: each is one C loop, which is compiled per broadcast pattern."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from flow_core.authoring.backends import Launch, elementwise_batchable
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec, TensorType
from flow_onednn.native import compiler
from flow_onednn.native.calls import call
from flow_onednn.native.expressions import C_TYPES, CDEF, SCALARS, TABLE, Loop, Step, write
from flow_onednn.primitives import address, row_major
from flow_onednn.recipes import PRIORITY

Shape = tuple[int, ...]
FLOATS = {"float32", "bfloat16"}


def steps_of(query: KernelQuery) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Return the members of a group, and the positions of those whose results are stored.

    A single op is a group of one member.
    """
    if query.op != "fused":
        return (Step(query.op, tuple(-1 - k for k in range(len(query.inputs)))),), (0,)
    body: Any = query.attrs["body"]
    outputs: Any = query.attrs["outputs"]
    return tuple(Step(op, refs) for op, refs, *_ in body), tuple(outputs)


def scalars_of(query: KernelQuery) -> list[float]:
    """Return the scalar arguments of the members of a group, in order."""
    body: Any = query.attrs["body"] if query.op == "fused" else ((query.op, (), query.attrs),)
    members = ((op, dict(attrs)) for op, _, attrs, *_ in body)
    return [float(attrs[name]) for op, attrs in members for name in SCALARS.get(op, ())]


def _results(query: KernelQuery) -> Iterator[tuple[str, Shape]]:
    """Yield element type and shape of the results of all members, stored or not."""
    if query.op == "fused":
        body: Any = query.attrs["body"]
        yield from ((dtype, shape) for *_, shape, dtype in body)
    yield from ((t.dtype.name, t.shape) for t in query.outputs)


def accepts(query: KernelQuery) -> bool:
    """Return whether ops and input types are supported and all results are floats of one shape."""
    steps, _ = steps_of(query)
    if not all(s.op in TABLE for s in steps) or not compiler.available():
        return False
    if not {dtype for dtype, _ in _results(query)} <= FLOATS:
        return False
    shapes = {shape for _, shape in _results(query)}
    if len(shapes) != 1 or not prod(*shapes):
        return False
    (space,) = shapes
    return all(_readable(query, steps, k, t, space) for k, t in enumerate(query.inputs))


_READS_WHOLE = {"cast": (0,), "dropout": (1,), "dropout_grad": (1,)}
"""Positions of arguments that need not have a floating-point type."""


def _readable(
    query: KernelQuery, steps: Sequence[Step], k: int, type_: TensorType, space: Shape
) -> bool:
    if type_.dtype.name not in C_TYPES or not _broadcasts(
        _broadcast_shape(query, k, type_.shape), space
    ):
        return False
    readers = ((s.op, i) for s in steps for i, ref in enumerate(s.refs) if ref == -1 - k)
    return type_.dtype.name in FLOATS or all(i in _READS_WHOLE.get(op, ()) for op, i in readers)


def _broadcast_shape(query: KernelQuery, k: int, shape: Shape) -> Shape:
    """Return the shape with which an input is broadcast; a bias gets trailing axes of size 1."""
    if query.op == "bias_add" and k == 1:
        rank = len(query.outputs[0].shape)
        axis: Any = query.attrs["axis"]
        return (*shape, *(1,) * (rank - 1 - axis % rank))
    return shape


def _broadcasts(shape: Shape, space: Shape) -> bool:
    if prod(shape) == 1:
        return True
    pairs = zip(reversed(shape), reversed(space), strict=False)
    return len(shape) <= len(space) and all(n in (1, m) for n, m in pairs)


def patterns(shapes: Sequence[Shape], space: Shape) -> tuple[Shape, tuple[tuple[bool, ...], ...]]:
    """Collapse adjacent axes along which the same inputs vary.

    Returns:
        The collapsed sizes, and for each input whether it varies along each collapsed axis.

    >>> patterns([(4, 3, 5), (5,)], (4, 3, 5))
    ((12, 5), ((True, True), (False, True)))
    >>> patterns([(4, 3), (1,)], (4, 3))
    ((12,), ((True,), (False,)))
    """
    wide = [(1,) * (len(space) - len(s)) + (s if prod(s) > 1 else (1,) * len(s)) for s in shapes]
    wide = [w[-len(space) :] if space else () for w in wide]
    sizes: list[int] = []
    columns: list[tuple[bool, ...]] = []
    for axis, size in enumerate(space):
        if size == 1:
            continue
        column = tuple(w[axis] > 1 for w in wide)
        if columns and columns[-1] == column:
            sizes[-1] *= size
        else:
            sizes.append(size)
            columns.append(column)
    if not sizes:
        return (1,), tuple((False,) for _ in shapes)
    return tuple(sizes), tuple(zip(*columns, strict=True)) if shapes else ()


def bind(ctx: BindContext) -> Launch:
    """Return the launch of a group; an input array can repeat an element with stride 0."""
    steps, outputs = steps_of(ctx.query)
    space = ctx.outputs[0].shape
    shapes = [
        _broadcast_shape(ctx.query, k, x.shape)
        if any(x.strides) or x.size == 1
        else (1,) * len(space)
        for k, x in enumerate(ctx.inputs)
    ]
    sizes, varies = patterns(shapes, space)
    types, results = (
        tuple(C_TYPES[t.dtype.name] for t in side) for side in (ctx.query.inputs, ctx.query.outputs)
    )
    scalars = scalars_of(ctx.query)
    run = compiler.compiled(write(Loop(steps, outputs, types, results, varies), scalars), CDEF).run
    strides = [s for row in varies for s in _strides(sizes, row)[:-1]]
    make = compiler.ffi(compiler.CDEF)
    arguments = (
        make.cast("void *", run),
        make.new("long[]", list(sizes)),
        make.new("long[]", strides),
        make.new("float[]", scalars),
        make.new("void *[]", [make.cast("void *", address(x)) for x in ctx.inputs]),
        make.new("void *[]", [make.cast("void *", address(x)) for x in ctx.outputs]),
    )
    return call("run_loop", *arguments)


def _strides(sizes: Shape, varies: Sequence[bool]) -> Shape:
    """Return the strides of an input in elements; they are 0 along the axes of a broadcast."""
    own = row_major([n if v else 1 for n, v in zip(sizes, varies, strict=True)])
    return tuple(s if v else 0 for s, v in zip(own, varies, strict=True))


KERNELS: tuple[KernelSpec, ...] = tuple(
    KernelSpec(
        op,
        "cpu",
        bind,
        accepts,
        PRIORITY,
        name=f"c.{op}",
        batchable=None if op == "fused" else elementwise_batchable,
    )
    for op in ("fused", *TABLE)
)
