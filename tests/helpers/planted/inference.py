"""Inference functions with one mistake each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from flow_core.base.dtypes import as_dtype
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.rules import like_input
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample
from flow_core.testing import InferKit, Kit
from planted import kit_of

Infer = Callable[[InferContext], Sequence[TensorType]]


def _of(*shapes: tuple[int, ...], **attrs: Any) -> Callable[[Any], Any]:
    return lambda rng: [Sample(tuple(rng.uniform(-2, 2, s) for s in shapes), attrs)]


def _like(x: TensorType, shape: Iterable[int]) -> TensorType:
    return tensor_type(tuple(shape), x.dtype)


def _kept(ctx: InferContext) -> tuple[int, TensorType]:
    (x,), axis = ctx.inputs, ctx.attrs["axis"]
    ctx.check(x.dtype.is_floating and -len(x.shape) <= axis < len(x.shape), x)
    return axis % len(x.shape), x


def _without(ctx: InferContext) -> Sequence[TensorType]:
    axis, x = _kept(ctx)
    return (_like(x, x.shape[:axis] + x.shape[axis + 1 :]),)


def _order(ctx: InferContext) -> Sequence[TensorType]:
    (x,) = _without(ctx)
    return (tensor_type(x.shape, as_dtype("int64")),)


def _joined(ctx: InferContext) -> Sequence[TensorType]:
    x, y = ctx.inputs
    ctx.check(x.dtype is y.dtype and x.shape and x.shape[1:] == y.shape[1:] and y.shape, (x, y))
    return (_like(x, (x.shape[0] + y.shape[0], *x.shape[1:])),)


def _product(ctx: InferContext) -> Sequence[TensorType]:
    x, y = ctx.inputs
    ctx.check(len(x.shape) == 2 == len(y.shape) and x.shape[1:] == y.shape[:1], (x, y))
    ctx.check(x.dtype is y.dtype and x.dtype.is_floating, (x, y))
    return (_like(x, (x.shape[0], y.shape[1])),)


def _halves(ctx: InferContext) -> Sequence[TensorType]:
    (x,) = ctx.inputs
    ctx.check(x.shape, x)
    return (_like(x, ((x.shape[0] + 1) // 2, *x.shape[1:])),)


def _both(ctx: InferContext) -> Sequence[TensorType]:
    return (*_without(ctx), *_order(ctx))


TWICE = OpSpec("twice", ("x",), like_input, reference=lambda x: x + x, samples=_of((3, 5)))
TOTAL = OpSpec(
    "total", ("x",), _without, attrs={"axis": REQUIRED}, reference=lambda x, axis: x.sum(axis),
    samples=lambda rng: [*_of((2, 3, 4), axis=1)(rng), *_of((3, 5), axis=-1)(rng)],
)  # fmt: skip
PLACE = replace(TOTAL, type="place", infer=_order, reference=lambda x, axis: x.argmax(axis))
BOTH = replace(
    TOTAL, type="both", infer=_both, outputs=("best", "place"),
    reference=lambda x, axis: (x.max(axis), x.argmax(axis)),
)  # fmt: skip
JOIN = OpSpec(
    "join", ("x", "y"), _joined, reference=lambda x, y: np.concatenate((x, y)),
    samples=_of((2, 3), (4, 3)),
)  # fmt: skip
PRODUCT = OpSpec(
    "product", ("x", "y"), _product, reference=lambda x, y: x @ y, samples=_of((2, 3), (3, 5))
)
HALVES = OpSpec("halves", ("x",), _halves, reference=lambda x: x[::2], samples=_of((4, 3)))


def _typed(name: str, infer: Infer) -> Infer:
    """Return an inference whose results have another element type."""
    return lambda ctx: tuple(tensor_type(t.shape, as_dtype(name)) for t in infer(ctx))


def _shaped(change: Callable[[Any], Any]) -> Infer:
    """Return an inference whose result has the first input's shape, changed."""
    return lambda ctx: (_like(ctx.inputs[0], tuple(change(ctx.inputs[0].shape))),)


def _wide_halves(ctx: InferContext) -> Sequence[TensorType]:
    (x,) = ctx.inputs
    return _typed("float32", like_input)(ctx) if x.dtype.itemsize == 2 else (x,)


def _stateful() -> Infer:
    numbers = count()
    return lambda ctx: (like_input if next(numbers) < 9 else _typed("int8", like_input))(ctx)


def _unpacks(ctx: InferContext) -> Sequence[TensorType]:
    (n, m), (k, p) = (t.shape for t in ctx.inputs)
    ctx.check(m == k, ctx.inputs)
    return (_like(ctx.inputs[0], (n, p)),)


def _positive(ctx: InferContext) -> Sequence[TensorType]:
    axis, x = ctx.attrs["axis"], ctx.inputs[0]
    ctx.check(x.dtype.is_floating and len(x.shape) > 1, x)
    return (_like(x, (n for i, n in enumerate(x.shape) if i != axis)),)


def _raw_axis(ctx: InferContext) -> Sequence[TensorType]:
    x, axis = ctx.inputs[0], ctx.attrs["axis"]
    return (_like(x, np.delete(x.shape, axis).tolist()),)


def _known(ctx: InferContext) -> Sequence[TensorType]:
    (x,) = ctx.inputs
    return (x,) if max(x.shape, default=0) <= 8 else (_like(x, x.shape[::-1]),)


def _one_output(ctx: InferContext) -> Sequence[TensorType]:
    return _without(ctx)


TYPES, SIZES, REFUSES = "types", "shapes_at_other_sizes", "refuses_with_flow_errors"
DEFECTS: Mapping[str, tuple[OpSpec, Infer, str]] = {
    "float64 for float32": (TWICE, _typed("float64", like_input), TYPES),
    "float32 always": (TWICE, _typed("float32", like_input), TYPES),
    "float32 for half types": (TWICE, _wide_halves, TYPES),
    "int32 for numbers": (TWICE, _typed("int32", like_input), TYPES),
    "truth values for numbers": (TWICE, _typed("bool", like_input), TYPES),
    "int32 for int64": (PLACE, _typed("int32", _order), TYPES),
    "numbers for positions": (PLACE, _without, TYPES),
    "the order of outputs": (BOTH, lambda ctx: _both(ctx)[::-1], TYPES),
    "an output too few": (BOTH, _one_output, TYPES),
    "an output too many": (TOTAL, _both, TYPES),
    "reversed axes": (TWICE, _shaped(lambda s: s[::-1]), TYPES),
    "an axis too many": (TWICE, _shaped(lambda s: (*s, 1)), TYPES),
    "no axes": (TWICE, _shaped(lambda s: ()), TYPES),
    "a size too large by one": (TWICE, _shaped(lambda s: (n + 1 for n in s)), TYPES),
    "the sizes of a sample": (TWICE, _shaped(lambda s: (3, 5)), SIZES),
    "right for small sizes": (TWICE, _known, SIZES),
    "a kept axis": (TOTAL, _shaped(lambda s: (*s[:1], 1, *s[2:])), TYPES),
    "always the last axis": (TOTAL, _shaped(lambda s: s[:-1]), TYPES),
    "no negative axes": (TOTAL, _positive, TYPES),
    "the first input's size": (JOIN, _shaped(lambda s: s), TYPES),
    "twice the first input's size": (JOIN, _shaped(lambda s: (2 * s[0], *s[1:])), TYPES),
    "the first row of a product": (PRODUCT, _shaped(lambda s: s), TYPES),
    "halves rounded down": (HALVES, _shaped(lambda s: (s[0] // 2, *s[1:])), SIZES),
    "another result later": (TWICE, _stateful(), TYPES),
    "unpacks any rank": (PRODUCT, _unpacks, REFUSES),
    "an error of numpy for a missing axis": (TOTAL, _raw_axis, REFUSES),
}  # fmt: skip
"""By name: the op, its inference, and the check that finds the mistake."""
RIGHT = (TWICE, TOTAL, PLACE, BOTH, JOIN, PRODUCT, HALVES)


def kit(spec: OpSpec, infer: Infer) -> Kit:
    """Return the kit for an op with an inference function."""
    return kit_of(InferKit, {"flow_register_ops": [replace(spec, infer=infer)]})
