"""Ops that change variables: the optimizers' update rules, and what is done to gradients first.

Every update takes ``(model, model_diff, learning_rate, ...)``, overwrites the model and its
states, and has no output.  With r = scale * scale_by_tensor * model_diff + l1 * sign(model)
+ l2 * model, the rules are

* ``sgd_update``: model -= lr * (r + weight_decay * model)
* ``momentum_update``: momentum = beta * momentum - lr * r;
  model += momentum - lr * weight_decay * model
* ``adam_update``: m = beta1 * m + (1 - beta1) * r;
  v = beta2 * v + (1 - beta2) * r**2; model -= lr * (m / (sqrt(v) + epsilon) + weight_decay * model)
* ``rmsprop_update``: mean_square = d * mean_square + (1 - d) * r**2;
  model -= lr * (r / sqrt(mean_square + epsilon) + weight_decay * model); the centered form
  keeps mean_gradient alike and takes its square off mean_square under the root
* ``lars_update``: local = lr * lars_coefficient * |model| / (epsilon + |r| [+ weight_decay *
  |model| after the first step]) with |x| the root of the mean square;
  momentum = momentum_beta * momentum - local * (r + weight_decay * model); model += momentum
* ``lamb_update``: m and v as in Adam, beta1_t *= beta1, beta2_t *= beta2,
  a = m / (1 - beta1_t) / sqrt(v / (1 - beta2_t) + epsilon);
  model -= lr * |model| / |a| * (a + weight_decay * model) with |x| the Euclidean norm
  (the factor is 1 where one of them is 0)

Where ``skip_if`` is given and not 0, nothing changes at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from flow_core.base.dtypes import float32, int64
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.rules import falling, floating_like_input, linear, split_all_axes
from flow_core.ops.training.schedules import is_number, sum_sbp
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import B, P, S, Signatures, signature

COMMON: Mapping[str, Any] = {"scale": 1.0, "l1": 0.0, "l2": 0.0, "weight_decay": 0.0}
OPTIONAL = ("scale_by_tensor?", "skip_if?")
MODEL, DIFF, RATE = 0, 1, 2
MANY = 3
"""Beyond so many inputs, combinations of their axes are too many to list."""


@dataclass(frozen=True, slots=True)
class Update:
    """One update rule.

    Attributes:
        type: op type.
        states: names of states of the model's shape.
        attrs: attributes and defaults besides the common ones.
        step: whether the rule reads the number of the step.
        numbers: names of states of one element.
        local: whether element i depends on elements i only, so that splits are valid.
        unit: names of attributes that must lie in [0, 1).
    """

    type: str
    states: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    step: bool = False
    numbers: tuple[str, ...] = ()
    local: bool = True
    unit: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs that are always there."""
        step = ("train_step",) if self.step else ()
        return ("model", "model_diff", "learning_rate", *step, *self.states, *self.numbers)

    @property
    def first_state(self) -> int:
        """Index of the first state among the inputs."""
        return RATE + 1 + self.step

    @property
    def mutates(self) -> tuple[int, ...]:
        """Indices of the inputs that are overwritten."""
        return (MODEL, *range(self.first_state, len(self.inputs)))


_ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
_RMSPROP = {"decay_rate": 0.99, "epsilon": 1e-8}

TABLE: tuple[Update, ...] = (
    Update("sgd_update"),
    Update("momentum_update", ("momentum",), {"beta": 0.9}),
    Update("adam_update", ("m", "v"), _ADAM, unit=("beta1", "beta2")),
    Update("rmsprop_update", ("mean_square",), _RMSPROP, unit=("decay_rate",)),
    Update(
        "centered_rmsprop_update",
        ("mean_square", "mean_gradient"),
        _RMSPROP,
        unit=("decay_rate",),
    ),
    Update(
        "lars_update",
        ("momentum",),
        {"momentum_beta": 0.9, "epsilon": 1e-9, "lars_coefficient": 1e-4},
        step=True,
        local=False,
    ),
    Update(
        "lamb_update",
        ("m", "v"),
        {**_ADAM, "epsilon": 1e-6},
        numbers=("beta1_t", "beta2_t"),
        local=False,
        unit=("beta1", "beta2"),
    ),
)

BY_TYPE: Mapping[str, Update] = {row.type: row for row in TABLE}


def optional_inputs(row: Update, types: tuple[TensorType, ...]) -> tuple[int | None, int | None]:
    """Indices of ``scale_by_tensor`` and ``skip_if`` (the integer one), None where not given."""
    given = range(len(row.inputs), len(types))
    skip = next((i for i in given if not types[i].dtype.is_floating), None)
    scale = next((i for i in given if types[i].dtype.is_floating), None)
    return scale, skip


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
    """The `OpSpec` of one row."""
    return OpSpec(
        type=row.type,
        inputs=(*row.inputs, *OPTIONAL),
        outputs=(),
        infer=_infer(row),
        attrs={**COMMON, **row.attrs},
        sbp=_sbp(row),
        mutates=row.mutates,
        effect=True,
        doc="Changes a variable by its gradient; the module's text has the formula.",
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
    """Linear without l1."""
    return split_all_axes(ctx) if ctx.attrs["l1"] else linear(ctx)


def _regularize_samples(rng: Any) -> Iterator[Sample]:
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


def _square_sum_gradient(g: GradContext) -> tuple[Sym | None, ...]:
    return tuple(x * g.dy * 2 if n else None for x, n in zip(g.inputs, g.needed, strict=True))


def _square_sum_samples(rng: Any) -> Iterator[Sample]:
    for shape in ((7,), (3, 5), ()):
        yield Sample((rng.uniform(-1, 1, shape),))
    yield Sample((rng.uniform(-1, 1, (0, 3)),), gradient=False, note="no elements")


def _number_of_all(ctx: InferContext) -> tuple[TensorType, ...]:
    ctx.check(ctx.inputs, "no inputs", "one or more")
    dtype = ctx.inputs[0].dtype
    if any(t.dtype is not dtype for t in ctx.inputs):
        ctx.fail(", ".join(map(str, ctx.inputs)), "one element type")
    return _number_of(ctx)


def _multi_sum_sbp(ctx: SbpContext) -> Signatures:
    """All inputs split, each over any of its axes; over the same one when there are many."""
    ranks = [len(t.shape) for t in ctx.inputs]
    if len(ranks) > MANY:
        return tuple(signature((S(i),) * len(ranks), (P,)) for i in range(min(ranks)))
    return tuple(signature(tuple(map(S, axes)), (P,)) for axes in product(*map(range, ranks)))


def _multi_square_sum_samples(rng: Any) -> Iterator[Sample]:
    for shapes in (((7,),), ((3, 5), (2,)), ((), (4,), (2, 1, 3))):
        yield Sample(tuple(rng.uniform(-1, 1, shape) for shape in shapes))
    yield Sample((rng.uniform(-1, 1, (0, 3)), np.ones(2)), gradient=False, note="no elements")


def _clip_factor(square_sum: Any, *, clip_norm: float) -> Any:
    return np.minimum(clip_norm / np.sqrt(square_sum), 1.0)


def _infer_factor(ctx: InferContext) -> tuple[TensorType, ...]:
    ctx.check(ctx.attrs["clip_norm"] > 0, f"clip_norm {ctx.attrs['clip_norm']}", "more than 0")
    return floating_like_input(ctx)


def _factor_samples(_: Any) -> Iterator[Sample]:
    for square_sum in (4.0, 0.25, 0.0):
        yield Sample((np.array(square_sum),), {"clip_norm": 0.7}, gradient=False)


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
        infer=_number_of,
        sbp=sum_sbp,
        gradient=_square_sum_gradient,
        reference=lambda x: np.sum(np.square(x)),
        samples=_square_sum_samples,
        doc="The sum of the squares of all elements, a scalar.",
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
        sbp=lambda ctx: falling(ctx, 0)[1:],
        reference=_clip_factor,
        samples=_factor_samples,
        doc="min(1, clip_norm / sqrt(square_sum)): what gradients of that norm are scaled by.",
    ),
)
