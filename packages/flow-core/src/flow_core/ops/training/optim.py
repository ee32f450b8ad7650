"""Ops that update variables by the rules of `flow_core.ir.update_rules` or transform gradients.

The gradient transforms are penalties, norms and the clipping factor.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import float32, float64, int64
from flow_core.ir.graph import tensor_type
from flow_core.ir.update_rules import COMMON, DIFF, MODEL, RATE, TABLE, Update
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import floating_like_input, linear, nonincreasing, split_all_axes
from flow_core.ops.training.schedules import is_number, sum_sbp
from flow_core.ops.training.update_references import update_reference, update_samples
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import B, P, S, Signatures, signature

MANY = 3
"""Maximum number of inputs for which the SBP rules list all combinations of split axes."""


class UpdateDef(OpDef):
    """An op for each row of `flow_core.ir.update_rules`."""

    outputs = ()
    effect = True
    doc = "Update a variable by its gradient; `flow_core.ir.update_rules` has the formula."

    def __init__(self, row: Update) -> None:
        self.row = row
        self.type, self.mutates, self.numbers = row.type, row.mutates, row.scalars
        self.inputs = (*row.inputs, "scale_by_tensor?", "skip_if?")
        self.attrs: Attributes = {**COMMON, **row.attrs}
        self.reference, self.samples = update_reference(row), update_samples(row)

    def infer(self, ctx: InferContext) -> Types:
        row, rate = self.row, ctx.inputs[RATE]
        model, diff = ctx.inputs[MODEL], ctx.inputs[DIFF]
        ctx.check(model.dtype.is_floating, f"model of type {model}", "a floating type")
        fits = diff.shape == model.shape and diff.dtype.is_floating
        allowed = f"the model's shape, as in {model}"
        ctx.check(fits, f"model_diff of type {diff}", allowed)
        fits, allowed = is_number(rate, float32), "float32[] or float32[1]"
        ctx.check(fits, f"learning_rate of type {rate}", allowed)
        if row.step:
            step = ctx.inputs[RATE + 1]
            ctx.check(is_number(step, int64), f"train_step of type {step}", "int64[] or int64[1]")
        check_states(ctx, row, row.first_state)
        self._check_optional(ctx)
        for name in row.unit:
            ctx.check(0 <= ctx.attrs[name] < 1, f"{name} {ctx.attrs[name]}", f"0 <= {name} < 1")
        return ()

    def _check_optional(self, ctx: InferContext) -> None:
        extra = ctx.inputs[len(self.row.inputs) :]
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

    def sbp(self, ctx: SbpContext) -> Signatures:
        row, rank = self.row, len(ctx.inputs[MODEL].shape)
        split = {MODEL, DIFF, *range(row.first_state, row.first_state + len(row.states))}
        return tuple(
            signature((S(axis) if i in split else B for i in range(len(ctx.inputs))), ())
            for axis in range(rank if row.local else 0)
        )


def check_states(ctx: InferContext, row: Update, first: int) -> None:
    """Check the types of the states, which are the inputs from the index ``first`` on."""
    model = ctx.inputs[MODEL]
    allowed = (model.dtype, model.dtype.accumulate)
    for i, name in enumerate((*row.states, *row.numbers), first):
        state = ctx.inputs[i]
        fits = (
            is_number(state, *allowed)
            if name in row.numbers
            else state.shape == model.shape and state.dtype in allowed
        )
        shape = "one element" if name in row.numbers else str(list(model.shape))
        ctx.check(fits, f"{name} of type {state}", f"{shape} of {' or '.join(map(str, allowed))}")


class L1L2RegularizeGradient(OpDef):
    """model_diff + l1 * sign(model) + l2 * model, where the sign of 0 is 0."""

    schema = "l1_l2_regularize_gradient(model, model_diff) -> out"
    attrs = {"l1": 0.0, "l2": 0.0}
    elementwise = True

    def infer(self, ctx: InferContext) -> Types:
        ctx.check(
            ctx.inputs[0] == ctx.inputs[1] and ctx.inputs[0].dtype.is_floating,
            f"model {ctx.inputs[0]} and model_diff {ctx.inputs[1]}",
            "one shape and one floating type",
        )
        return (ctx.inputs[0],)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split all axes; if ``l1`` is 0, also pass P, since the op is linear."""
        return split_all_axes(ctx) if ctx.attrs["l1"] else linear(ctx)

    def reference(self, model: Any, diff: Any, *, l1: float, l2: float) -> Any:
        return diff + l1 * np.sign(model) + l2 * model

    def samples(self, rng: Rng) -> Samples:
        for shape in ((5,), (3, 4), (0, 2)):
            model, diff = rng.uniform(0.2, 2.0, shape), rng.uniform(-1, 1, shape)
            for l1, l2 in ((0.1, 0.2), (0.0, 0.3), (0.4, 0.0)):
                signs = np.where(rng.uniform(size=shape) > 0.5, 1.0, -1.0)
                yield Sample((model * signs, diff), {"l1": l1, "l2": l2}, gradient=False)
        zeros = np.array([0.0, -0.0])
        yield Sample((zeros, zeros), {"l1": 1.0, "l2": 0.0}, gradient=False, note="sign of 0 is 0")


def _number_of(ctx: InferContext) -> Types:
    (type_,) = floating_like_input(ctx)
    return (tensor_type((), type_.dtype),)


class SquareSum(OpDef):
    """The sum of the squares of all elements, a scalar; in float64 if wide."""

    schema = "square_sum(x) -> y"
    attrs = {"wide": False}
    sbp = staticmethod(sum_sbp)

    def infer(self, ctx: InferContext) -> Types:
        (type_,) = _number_of(ctx)
        return (tensor_type((), float64),) if ctx.attrs["wide"] else (type_,)

    def gradient(self, g: GradContext) -> Gradients:
        x = g.inputs[0]
        dy = g.dy if g.dy.dtype == x.dtype else x.maker.one("cast", g.dy, dtype=x.dtype.name)
        return tuple(x * dy * 2 if n else None for x, n in zip(g.inputs, g.needed, strict=True))

    def reference(self, x: Array, *, wide: bool) -> Any:
        return np.sum(np.square(x))

    def samples(self, rng: Rng) -> Samples:
        for shape in ((7,), (3, 5), ()):
            for wide in (False, True):
                yield Sample((rng.uniform(-1, 1, shape),), {"wide": wide})
        yield Sample((rng.uniform(-1, 1, (0, 3)),), gradient=False, note="no elements")


class MultiSquareSum(SquareSum):
    """The sum of the squares of all elements of all inputs, a scalar."""

    schema = "multi_square_sum(x*) -> y"
    attrs = {}

    def infer(self, ctx: InferContext) -> Types:
        ctx.check(ctx.inputs, "no inputs", "one or more")
        dtype = ctx.inputs[0].dtype
        if any(t.dtype is not dtype for t in ctx.inputs):
            ctx.fail(", ".join(map(str, ctx.inputs)), "one element type")
        return _number_of(ctx)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split each input on any of its axes; if there are more than `MANY` inputs, all on the
        same axis.
        """
        ranks = [len(t.shape) for t in ctx.inputs]
        if len(ranks) > MANY:
            return tuple(signature((S(i),) * len(ranks), (P,)) for i in range(min(ranks)))
        return tuple(signature(tuple(map(S, axes)), (P,)) for axes in product(*map(range, ranks)))

    def reference(self, *xs: Array, **_: Any) -> Any:
        return sum(np.sum(np.square(x)) for x in xs)

    def samples(self, rng: Rng) -> Samples:
        for shapes in (((7,),), ((3, 5), (2,)), ((), (4,), (2, 1, 3))):
            yield Sample(tuple(rng.uniform(-1, 1, shape) for shape in shapes))
        yield Sample((rng.uniform(-1, 1, (0, 3)), np.ones(2)), gradient=False, note="no elements")


class GlobalNormClipFactor(OpDef):
    """min(1, clip_norm / sqrt(square_sum)), the factor of gradients of that norm."""

    schema = "global_norm_clip_factor(square_sum) -> out"
    attrs = {"clip_norm": REQUIRED}

    def infer(self, ctx: InferContext) -> Types:
        ctx.check(ctx.attrs["clip_norm"] > 0, f"clip_norm {ctx.attrs['clip_norm']}", "more than 0")
        return floating_like_input(ctx)

    def sbp(self, ctx: SbpContext) -> Signatures:
        return nonincreasing(ctx, 0)[1:]

    def reference(self, square_sum: Any, *, clip_norm: float) -> Any:
        return np.minimum(clip_norm / np.sqrt(square_sum), 1.0)

    def samples(self, rng: Rng) -> Samples:
        for square_sum, clip_norm in ((4.0, 0.7), (0.25, 0.7), (0.0, 0.7), (9.0, 1.5)):
            yield Sample((np.array(square_sum),), {"clip_norm": clip_norm}, gradient=False)


OPS = specs(
    *map(UpdateDef, TABLE), L1L2RegularizeGradient, SquareSum, MultiSquareSum, GlobalNormClipFactor
)
