"""Ops that update variables by the rules of `flow_core.ir.update_rules` or transform gradients.

The gradient transforms are penalties, norms and the clipping factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from flow_core.base.dtypes import float32, float64, int64
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ir.update_rules import COMMON, DIFF, MODEL, RATE, TABLE, Update
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.rules import floating_like_input, linear, nonincreasing, split_all_axes
from flow_core.ops.training.schedules import is_number, sum_sbp
from flow_core.ops.training.update_references import update_reference, update_samples
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import B, P, S, Signatures, signature

OPTIONAL = ("scale_by_tensor?", "skip_if?")
MANY = 3
"""Maximum number of inputs for which the SBP rules list all combinations of split axes."""


def _infer(row: Update) -> Callable[[InferContext], tuple[()]]:
    def infer(ctx: InferContext) -> tuple[()]:
        _check_gradient(ctx)
        ctx.check(
            is_number(ctx.inputs[RATE], float32),
            f"learning_rate of type {ctx.inputs[RATE]}",
            "float32[] or float32[1]",
        )
        if row.step:
            ctx.check(
                is_number(ctx.inputs[RATE + 1], int64),
                f"train_step of type {ctx.inputs[RATE + 1]}",
                "int64[] or int64[1]",
            )
        _check_states(ctx, row)
        _check_optional(ctx, row)
        for name in row.unit:
            ctx.check(0 <= ctx.attrs[name] < 1, f"{name} {ctx.attrs[name]}", f"0 <= {name} < 1")
        return ()

    return infer


def _check_gradient(ctx: InferContext) -> None:
    model, diff = ctx.inputs[MODEL], ctx.inputs[DIFF]
    ctx.check(model.dtype.is_floating, f"model of type {model}", "a floating type")
    ctx.check(
        diff.shape == model.shape and diff.dtype.is_floating,
        f"model_diff of type {diff}",
        f"the model's shape, as in {model}",
    )


def _check_states(ctx: InferContext, row: Update) -> None:
    model = ctx.inputs[MODEL]
    allowed = (model.dtype, model.dtype.accumulate)
    for i, name in enumerate((*row.states, *row.numbers), row.first_state):
        state = ctx.inputs[i]
        fits = (
            is_number(state, *allowed)
            if name in row.numbers
            else state.shape == model.shape and state.dtype in allowed
        )
        shape = "one element" if name in row.numbers else str(list(model.shape))
        ctx.check(fits, f"{name} of type {state}", f"{shape} of {' or '.join(map(str, allowed))}")


def _check_optional(ctx: InferContext, row: Update) -> None:
    extra = ctx.inputs[len(row.inputs) :]
    scales = [t for t in extra if t.dtype.is_floating]
    for type_ in extra:
        ctx.check(
            type_.size == 1 and (type_.dtype.is_floating or type_.dtype == int64),
            f"an input of type {type_}",
            "scale_by_tensor (one floating number) or skip_if (one int64)",
        )
    ctx.check(
        len(scales) <= 1 and len(extra) - len(scales) <= 1,
        ", ".join(map(str, extra)),
        "at most one scale_by_tensor and one skip_if",
    )


def _sbp(row: Update) -> Callable[[SbpContext], Signatures]:
    split = {MODEL, DIFF, *range(row.first_state, row.first_state + len(row.states))}

    def rules(ctx: SbpContext) -> Signatures:
        return tuple(
            signature((S(axis) if i in split else B for i in range(len(ctx.inputs))), ())
            for axis in range(len(ctx.inputs[MODEL].shape))
        )

    return rules if row.local else lambda _: ()


def update_spec(row: Update) -> OpSpec:
    """Return the `OpSpec` of one row."""
    return OpSpec(
        type=row.type,
        inputs=(*row.inputs, *OPTIONAL),
        outputs=(),
        infer=_infer(row),
        attrs={**COMMON, **row.attrs},
        sbp=_sbp(row),
        reference=update_reference(row),
        samples=update_samples(row),
        mutates=row.mutates,
        numbers=row.scalars,
        effect=True,
        doc="Update a variable by its gradient; `flow_core.ir.update_rules` has the formula.",
    )


def _same_types(ctx: InferContext) -> tuple[TensorType, ...]:
    ctx.check(
        ctx.inputs[0] == ctx.inputs[1] and ctx.inputs[0].dtype.is_floating,
        f"model {ctx.inputs[0]} and model_diff {ctx.inputs[1]}",
        "one shape and one floating type",
    )
    return (ctx.inputs[0],)


def _regularize(model: Any, diff: Any, *, l1: float, l2: float) -> Any:
    return diff + l1 * np.sign(model) + l2 * model


def _regularize_sbp(ctx: SbpContext) -> Signatures:
    """Split all axes; if ``l1`` is 0, also pass P, since the op is linear."""
    return split_all_axes(ctx) if ctx.attrs["l1"] else linear(ctx)


def _regularize_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((5,), (3, 4), (0, 2)):
        model, diff = rng.uniform(0.2, 2.0, shape), rng.uniform(-1, 1, shape)
        for l1, l2 in ((0.1, 0.2), (0.0, 0.3), (0.4, 0.0)):
            signs = np.where(rng.uniform(size=shape) > 0.5, 1.0, -1.0)
            yield Sample((model * signs, diff), {"l1": l1, "l2": l2}, gradient=False)
    zeros = np.array([0.0, -0.0])
    yield Sample((zeros, zeros), {"l1": 1.0, "l2": 0.0}, gradient=False, note="sign of 0 is 0")


def _number_of(ctx: InferContext) -> tuple[TensorType, ...]:
    (type_,) = floating_like_input(ctx)
    return (tensor_type((), type_.dtype),)


def _infer_square_sum(ctx: InferContext) -> tuple[TensorType, ...]:
    (type_,) = _number_of(ctx)
    return (tensor_type((), float64),) if ctx.attrs["wide"] else (type_,)


def _square_sum_gradient(g: GradContext) -> tuple[Sym | None, ...]:
    x = g.inputs[0]
    dy = g.dy if g.dy.dtype == x.dtype else x.maker.one("cast", g.dy, dtype=x.dtype.name)
    return tuple(x * dy * 2 if n else None for x, n in zip(g.inputs, g.needed, strict=True))


def _square_sum_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((7,), (3, 5), ()):
        for wide in (False, True):
            yield Sample((rng.uniform(-1, 1, shape),), {"wide": wide})
    yield Sample((rng.uniform(-1, 1, (0, 3)),), gradient=False, note="no elements")


def _number_of_all(ctx: InferContext) -> tuple[TensorType, ...]:
    ctx.check(ctx.inputs, "no inputs", "one or more")
    dtype = ctx.inputs[0].dtype
    if any(t.dtype is not dtype for t in ctx.inputs):
        ctx.fail(", ".join(map(str, ctx.inputs)), "one element type")
    return _number_of(ctx)


def _multi_sum_sbp(ctx: SbpContext) -> Signatures:
    """Split each input on any of its axes; if there are more than `MANY` inputs, all on the same
    axis.
    """
    ranks = [len(t.shape) for t in ctx.inputs]
    if len(ranks) > MANY:
        return tuple(signature((S(i),) * len(ranks), (P,)) for i in range(min(ranks)))
    return tuple(signature(tuple(map(S, axes)), (P,)) for axes in product(*map(range, ranks)))


def _multi_square_sum_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shapes in (((7,),), ((3, 5), (2,)), ((), (4,), (2, 1, 3))):
        yield Sample(tuple(rng.uniform(-1, 1, shape) for shape in shapes))
    yield Sample((rng.uniform(-1, 1, (0, 3)), np.ones(2)), gradient=False, note="no elements")


def _clip_factor(square_sum: Any, *, clip_norm: float) -> Any:
    return np.minimum(clip_norm / np.sqrt(square_sum), 1.0)


def _infer_factor(ctx: InferContext) -> tuple[TensorType, ...]:
    ctx.check(ctx.attrs["clip_norm"] > 0, f"clip_norm {ctx.attrs['clip_norm']}", "more than 0")
    return floating_like_input(ctx)


def _factor_samples(_: np.random.Generator) -> Iterator[Sample]:
    for square_sum, clip_norm in ((4.0, 0.7), (0.25, 0.7), (0.0, 0.7), (9.0, 1.5)):
        yield Sample((np.array(square_sum),), {"clip_norm": clip_norm}, gradient=False)


OPS: tuple[OpSpec, ...] = (
    *map(update_spec, TABLE),
    OpSpec(
        type="l1_l2_regularize_gradient",
        inputs=("model", "model_diff"),
        infer=_same_types,
        attrs={"l1": 0.0, "l2": 0.0},
        sbp=_regularize_sbp,
        reference=_regularize,
        samples=_regularize_samples,
        elementwise=True,
        doc="model_diff + l1 * sign(model) + l2 * model, where the sign of 0 is 0.",
    ),
    OpSpec(
        type="square_sum",
        inputs=("x",),
        outputs=("y",),
        infer=_infer_square_sum,
        attrs={"wide": False},
        sbp=sum_sbp,
        gradient=_square_sum_gradient,
        reference=lambda x, wide: np.sum(np.square(x)),
        samples=_square_sum_samples,
        doc="The sum of the squares of all elements, a scalar; in float64 if wide.",
    ),
    OpSpec(
        type="multi_square_sum",
        inputs=("x*",),
        outputs=("y",),
        infer=_number_of_all,
        sbp=_multi_sum_sbp,
        gradient=_square_sum_gradient,
        reference=lambda *xs: sum(np.sum(np.square(x)) for x in xs),
        samples=_multi_square_sum_samples,
        doc="The sum of the squares of all elements of all inputs, a scalar.",
    ),
    OpSpec(
        type="global_norm_clip_factor",
        inputs=("square_sum",),
        infer=_infer_factor,
        attrs={"clip_norm": REQUIRED},
        sbp=lambda ctx: nonincreasing(ctx, 0)[1:],
        reference=_clip_factor,
        samples=_factor_samples,
        doc="min(1, clip_norm / sqrt(square_sum)), the factor of gradients of that norm.",
    ),
)
