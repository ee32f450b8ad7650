"""Rules that convert core ops to NHWC, for the layout tables of backends."""

from __future__ import annotations

from flow_core.ir.graph import Op, Value
from flow_core.passes.rewriting.layouts import LAST, TO_LAST, Layouts, wide_type
from flow_core.passes.rewriting.rewriter import like_op

CHANNELS = TO_LAST.index(1)
POOLS = ("max_pool_2d", "avg_pool_2d")


def pool(work: Layouts, op: Op) -> bool:
    """Convert window pooling or its gradient, all of whose inputs are activations."""
    if not work.is_first(op, 0):
        return False
    inputs = tuple(work.wide(v, op) for v in op.inputs)
    (y,) = work.outputs(op)
    new = like_op(op, op.type, op.attrs.with_(data_format=LAST), inputs)
    work.replace(op, new, (wide_type(y),))
    return True


def norm(work: Layouts, op: Op) -> bool:
    """Convert normalization (activations: input 0) or its gradient (activations: inputs 0, 1)."""
    wide = 2 if op.type.endswith("_grad") else 1
    if op.attrs["axis"] not in (1, -3) or not work.movable(op, 0):
        return False
    inputs = [work.wide(v, op) if i < wide else v for i, v in enumerate(op.inputs)]
    y, *vectors = work.outputs(op)
    new = like_op(op, op.type, op.attrs.with_(axis=CHANNELS), inputs)
    work.replace(op, new, (wide_type(y), *vectors))
    return True


def bias_add(work: Layouts, op: Op) -> bool:
    """Convert the addition of a bias per channel."""
    x, bias = op.inputs
    if x not in work.moved or op.attrs["axis"] % 4 != 1:
        return False
    (y,) = work.outputs(op)
    new = like_op(op, op.type, op.attrs.with_(axis=CHANNELS), (work.nhwc[x], bias))
    work.replace(op, new, (wide_type(y),))
    return True


def reduce(work: Layouts, op: Op) -> bool:
    """Convert a reduction that keeps at most the axes N and C, in this order."""
    (x,), axes = op.inputs, op.attrs["axis"]
    if not isinstance(axes, tuple) or op.attrs["keepdims"]:
        return False
    kept = [a for a in range(4) if a not in {b % 4 for b in axes}]
    if not set(kept) <= {0, 1}:
        return False
    moved = tuple(sorted(TO_LAST.index(a % 4) for a in axes))
    new = like_op(op, op.type, op.attrs.with_(axis=moved), (work.nhwc[x],))
    work.rewriter.replace(op, new)
    return True


def broadcast_like(work: Layouts, op: Op) -> bool:
    """Convert the gradient of a reduction over H and W."""
    (y,) = work.outputs(op)
    x, wide = op.inputs
    axes = op.attrs["broadcast_axes"]
    if wide not in work.moved or set(axes) != {2, 3} or len(work.rewriter.type_of(x).shape) > 2:
        return False
    attrs = op.attrs.with_(broadcast_axes=(1, 2))
    work.replace(op, like_op(op, op.type, attrs, (x, work.nhwc[wide])), (wide_type(y),))
    return True


def one_grid(work: Layouts, op: Op) -> bool:
    """Convert quantization to one grid, or from it."""
    x, *grid = op.inputs
    if op.attrs["axis"] is not None:
        return False
    (y,) = work.outputs(op)
    work.replace(op, op.with_inputs((work.nhwc[x], *grid)), (wide_type(y),))
    return True


def concat(work: Layouts, op: Op) -> bool:
    """Convert a concatenation; inputs in NCHW are reordered."""
    return _along_axis(work, op, tuple(op.inputs))


def split(work: Layouts, op: Op) -> bool:
    """Convert a split along one axis."""
    return _along_axis(work, op, tuple(op.inputs[:1]))


def _along_axis(work: Layouts, op: Op, activations: tuple[Value, ...]) -> bool:
    if not work.movable(op, *range(len(activations))):
        return False
    axis = TO_LAST.index(op.attrs["axis"] % 4)
    inputs = [work.wide(v, op) for v in activations]
    new = like_op(op, op.type, op.attrs.with_(axis=axis), (*inputs, *op.inputs[len(inputs) :]))
    types = work.outputs(op)
    work.replace(op, new, tuple(map(wide_type, types)), len(types))
    return True
