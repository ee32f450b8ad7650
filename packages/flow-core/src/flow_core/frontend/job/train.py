"""Construction of the ops that ``optimizer.minimize(loss)`` adds to a job's graph.

In OneFlow's order, these ops compute the gradients of the sum of each loss (times the loss scale),
divide by the number of loss elements and the loss scale, add regularizers, clip and update.
Divisions and L2 regularizers become attributes of the update ops if no other op needs their result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol

from flow_core.autograd import backward
from flow_core.base.dtypes import DType, float32, int64
from flow_core.base.errors import JobError, SourceLine, nearest
from flow_core.ir.graph import AttrValue, TensorType, Value, tensor_type
from flow_core.ir.update_rules import BY_TYPE
from flow_core.ops.build import Emitter, Maker, Sym
from flow_core.sharding.topology import Placement

SYSTEM = "System-Train"


@dataclass(frozen=True, slots=True)
class TrainVariable:
    """The properties of a job's variable that training needs."""

    name: str
    value: Value  # the output of the ``variable`` op
    type: TensorType
    trainable: bool  # whether the optimizer may change the variable
    regularizer: tuple[Any, ...] | None  # ``("l1_l2", l1, l2)`` or None
    placement: Placement


@dataclass(frozen=True, slots=True)
class State:
    """A state that an update rule keeps per variable; ``single`` if it has one element only."""

    suffix: str
    initial: float = 0.0
    single: bool = False


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """The update op of a job's variables, a row of `flow_core.ir.update_rules`."""

    op: str  # type of the update op
    attrs: Mapping[str, AttrValue] = field(default_factory=dict)  # but scale, l1, l2, weight_decay
    bias_correction: tuple[float, float] | None = None  # (beta1, beta2) of Adam's learning rate

    @property
    def states(self) -> tuple[State, ...]:
        """The states per variable, in the order of the op's inputs.

        States of one element are powers of an attribute, and start as the attribute itself.
        """
        row = BY_TYPE[self.op]
        powers = (
            State(name, self.attrs[name.removesuffix("_t")], single=True) for name in row.numbers
        )
        return (*map(State, row.states), *powers)

    @property
    def uses_step(self) -> bool:
        """Whether the update op takes the step number as its fourth input."""
        return BY_TYPE[self.op].step


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate schedule: the attributes of the op ``learning_rate_schedule``."""

    rate: float = 0.0
    decay: tuple[AttrValue, ...] | None = None  # ``(kind, *params)`` or None
    warmup: tuple[AttrValue, ...] | None = None  # ``(kind, steps, multiplier)`` or None
    blob: str | None = None  # that holds the learning rate, instead of the other attributes


@dataclass(frozen=True, slots=True)
class WeightDecay:
    """Decay of weights whose names match one of ``includes`` and none of ``excludes``.

    >>> WeightDecay(0.1, excludes=("bias$",)).of("dense-bias"), WeightDecay(0.1).of("w")
    (0.0, 0.1)
    """

    rate: float = 0.0
    includes: tuple[str, ...] | None = None
    excludes: tuple[str, ...] | None = None

    def of(self, name: str) -> float:
        """Return the decay for a variable; patterns may match anywhere in the variable's name."""
        if self.includes is not None and not _matches(self.includes, name):
            return 0.0
        return 0.0 if _matches(self.excludes or (), name) else self.rate


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class DynamicLossScale:
    """A loss scale that grows while gradients stay finite, and shrinks otherwise."""

    initial: float = float(2**30)
    increment_period: int = 2000
    multiplier: float = 2.0


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """All options of an optimizer."""

    rule: UpdateRule
    schedule: Schedule
    weight_decay: WeightDecay = WeightDecay()  # by name of the variable
    loss_scale: float | DynamicLossScale | None = None  # constant or dynamic
    clip_norm: float | None = None  # largest global norm of the gradients, None for no limit
    step_blob: str | None = None  # that holds the step number; None for the job's step counter
    variables: tuple[str, ...] | None = None  # which the optimizer updates; None for all
    others: tuple[TrainOptions, ...] = ()  # for further groups of variables, without a loss scale
    note: str = ""  # to log when the job is compiled

    @property
    def groups(self) -> tuple[TrainOptions, ...]:
        return (self, *self.others)

    def options(self) -> TrainOptions:
        """Return these options, which may be used in place of an optimizer."""
        return self


class HasOptions(Protocol):
    """The interface of an optimizer that `build_training` requires."""

    def options(self) -> TrainOptions:
        """Return all options of the optimizer."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient, with the scaling and regularization that are left to the update op."""

    variable: TrainVariable
    value: Value  # without the scaling and regularization
    scale: float = 1.0  # scale, l1 and l2: those of the update op
    l1: float = 0.0
    l2: float = 0.0


@dataclass(frozen=True, slots=True)
class LossScale:
    """The loss scale of a job: a constant factor, or a variable, its scalar and its inverse."""

    factor: float = 1.0
    variable: Value | None = None
    number: Value | None = None
    inverse: Value | None = None


@dataclass(frozen=True, slots=True)
class _Training:
    """The arguments that the steps of `build_training` share."""

    emitter: Emitter
    options: TrainOptions
    placement: Placement
    numbers: Placement
    line: SourceLine | None
    job: str

    def maker(self, placement: Placement, prefix: str) -> Maker:
        return Maker(self.emitter, placement, prefix, self.line)

    def one(self, type_: str, *inputs: Value, **attrs: AttrValue) -> Value:
        """Add a system op and return its first output."""
        return self.at(self.placement, type_, *inputs, **attrs)

    def number(self, type_: str, *inputs: Value, **attrs: AttrValue) -> Value:
        """Add a system op on single numbers and return its first output."""
        return self.at(self.numbers, type_, *inputs, **attrs)

    def at(self, placement: Placement, type_: str, *inputs: Value, **attrs: AttrValue) -> Value:
        name = self.emitter.builder.unique_name(f"{SYSTEM}/{type_}")
        outputs = self.emitter.emit(
            type_, inputs, attrs, placement=placement, name=name, line=self.line
        )
        return outputs[0]

    def type_of(self, value: Value) -> TensorType:
        return self.emitter.builder.type_of(value)


def build_training(
    emitter: Emitter,  # the graph of the forward ops
    *,
    losses: Sequence[Value],  # losses, all of the same shape; the sum of their means is minimized
    optimizer: HasOptions,
    # The variables of the job; only trainable variables are updated.
    variables: Sequence[TrainVariable],
    step: Value,
    placement: Placement,  # the devices of ops that do not belong to one variable
    line: SourceLine | None,
    # The devices of learning rates, step numbers and loss scales; ``placement`` if None.
    numbers: Placement | None = None,
    watched: Sequence[Value] = (),  # further values whose gradients are needed
    # Name of the job, which is part of the names of the states that the job itself has.
    job: str = "",
    # The number of micro-batches in a step; the losses are those of one of them.
    micro_batches: int = 1,
    # Receives the names of the ops whose input is accumulated over the micro-batches.
    sums: list[str] | None = None,
    # The divisor of the gradients; by default, the number of elements of each loss.
    elements: float | None = None,
) -> dict[Value, Value]:
    """Add backward and update ops to a graph.

    Returns:
        For each trainable or watched value on which the losses depend, the gradient of the sum of
        all elements of the losses, times the loss scale.

    Raises:
        JobError: there is no loss, losses differ in type, or no trainable variable has a gradient.
    """
    options = optimizer.options()
    t = _Training(emitter, options, placement, numbers or placement, line, job)
    count = _loss_elements(t, losses) if elements is None else elements
    trained = _trained(t, variables)
    scale = _loss_scale(t)
    seeds = {loss: _seed(t, loss, scale) for loss in losses}
    found = backward(emitter, seeds, [*(v.value for v in trained), *watched])
    factor = 1.0 / (count * micro_batches * scale.factor)
    gradients = [Gradient(v, found[v.value], factor) for v in trained if v.value in found]
    if micro_batches > 1 and sums is not None:
        gradients = [_accumulated(t, g, sums) for g in gradients]
    if not gradients:
        _fail_without_gradients(t, len(trained))
    _apply(t, gradients, step, scale)
    return found


def _apply(t: _Training, gradients: list[Gradient], step: Value, scale: LossScale) -> None:
    """Penalize, clip and apply gradients, unless one of scaled gradients is not finite."""
    skip = _count_not_finite(t, gradients) if scale.variable else None
    penalized = [_penalized(t, g) for g in gradients]
    for group, own in _grouped(t, penalized):
        clipped, scale_by = _clipped(group, own, scale.inverse)
        _update_all(group, clipped, step, scale_by, skip)
    if scale.variable and skip:
        _adapt_loss_scale(t, scale.variable, skip)


def _trained(t: _Training, variables: Sequence[TrainVariable]) -> list[TrainVariable]:
    """Return the trainable variables that a group of the optimizer contains."""
    found = {v.name: v for v in variables if v.trainable}
    named = [name for group in t.options.groups for name in group.variables or ()]
    for name in named:
        if name not in found:
            frozen = any(v.name == name for v in variables)
            what = f"{name!r}, which is not trainable" if frozen else f"no variable {name!r}"
            _fail(t, what, "names of trainable variables", nearest(name, found) or None)
        if named.count(name) > 1:
            _fail(t, f"variable {name!r} twice", "each variable in one group")
    if any(group.variables is None for group in t.options.groups):
        return [*found.values()]
    return [found[name] for name in found if name in named]


def _grouped(
    t: _Training, gradients: Sequence[Gradient]
) -> Iterator[tuple[_Training, list[Gradient]]]:
    """Yield the gradients of each group of variables, with the options of the group."""
    for options in t.options.groups:
        own = options.variables
        chosen = [g for g in gradients if own is None or g.variable.name in own]
        if chosen:
            yield replace(t, options=options), chosen


def _update_all(
    t: _Training,
    gradients: Sequence[Gradient],
    step: Value,
    scale_by: Value | None,
    skip: Value | None,
) -> None:
    """Add the learning rate, and the update of each variable that has a gradient."""
    rate, now = _learning_rate(t, step)
    for gradient in gradients:
        _update(t, gradient, rate, now, scale_by, skip)


def _accumulated(t: _Training, g: Gradient, sums: list[str]) -> Gradient:
    """Mark the point at which a gradient is accumulated over the micro-batches."""
    name = t.emitter.builder.unique_name(f"{g.variable.name}/accumulated")
    (value,) = t.emitter.emit(
        "identity", [g.value], placement=g.variable.placement, name=name, line=t.line
    )
    sums.append(name)
    return replace(g, value=value)


def _fail(t: _Training, found: object, allowed: object, hint: str | None = None) -> NoReturn:
    raise JobError("minimize", at=t.line, found=found, allowed=allowed, hint=hint)


def _fail_without_gradients(t: _Training, trainable: int) -> NoReturn:
    """Raise the error for a job without gradients of trainable variables."""
    _fail(
        t,
        f"{trainable} trainable variables that no loss depends on",
        "at least one",
        "argmax, comparisons and casts to whole numbers, for example, have no gradient"
        if trainable
        else "make one: flow.get_variable, or a layer with trainable=True",
    )


def _loss_elements(t: _Training, losses: Sequence[Value]) -> int:
    types = dict.fromkeys(map(t.type_of, losses))
    if len(types) != 1:
        _fail(
            t,
            "losses of types " + " and ".join(map(str, types)) if types else "no loss",
            "one or more losses of one shape and element type",
            "take the mean of each: flow.math.reduce_mean(loss)" if types else None,
        )
    if len(set(losses)) != len(losses):
        _fail(t, "one loss twice", "each loss once", "multiply it: 2 * loss")
    return max(1, next(iter(types)).size)


def _loss_scale(t: _Training) -> LossScale:
    policy = t.options.loss_scale
    if policy is None:
        return LossScale()
    if not isinstance(policy, DynamicLossScale):
        return LossScale(float(policy))
    variable = _number_variable(t, "LossScale", "float32", policy.initial)
    number = t.number("reshape", variable, shape=())
    return LossScale(1.0, variable, number, t.number("reciprocal", number))


def _dynamic_name(t: _Training, name: str) -> str:
    return "-".join(filter(None, (f"{SYSTEM}-DynamicLossScale", t.job, name)))


def _number_variable(t: _Training, name: str, dtype: str, initial: float) -> Value:
    """Return a state of the dynamic loss scale: one number, in OneFlow's shape (1,)."""
    full = _dynamic_name(t, name)
    if full in t.emitter.builder.ops:
        return Value(full, 0)
    attrs = {
        "shape": (1,),
        "dtype": dtype,
        "initializer": ("constant", initial),
        "trainable": False,
    }
    (value,) = t.emitter.emit("variable", (), attrs, placement=t.numbers, name=full, line=t.line)
    return value


def _seed(t: _Training, loss: Value, scale: LossScale) -> Value:
    """Return the initial gradient of a loss, all of whose elements are the loss scale."""
    op, type_ = t.emitter.builder.ops[loss.op], t.type_of(loss)
    maker = t.maker(op.placement, f"{op.name}/grad")
    factor = scale.factor if type_.dtype.is_floating else int(scale.factor)
    ones = maker.one("constant", value=factor, dtype=type_.dtype.name, shape=type_.shape)
    if scale.number is None:
        return ones.value
    return (ones * _cast(maker, scale.number, type_)).value


def _cast(maker: Maker, value: Value, like: TensorType) -> Sym:
    sym = Sym(maker, value)
    return sym if sym.dtype == like.dtype else maker.one("cast", sym, dtype=like.dtype.name)


def _count_not_finite(t: _Training, gradients: Sequence[Gradient]) -> Value:
    counts = [t.at(g.variable.placement, "count_not_finite", g.value) for g in gradients]
    return counts[0] if len(counts) == 1 else t.one("add_n", *counts)


def _penalized(t: _Training, g: Gradient) -> Gradient:
    """Return a gradient with the regularization factors of its variable."""
    if g.variable.regularizer is None:
        return g
    kind, *factors = g.variable.regularizer
    if kind != "l1_l2" or len(factors) != 2:
        _fail(t, f"regularizer {g.variable.regularizer!r} of {g.variable.name!r}", "l1_l2, l1, l2")
    return Gradient(g.variable, g.value, g.scale, *map(float, factors))


def _clipped(
    t: _Training, gradients: list[Gradient], inverse: Value | None
) -> tuple[list[Gradient], Value | None]:
    """Clip the gradients; return them, and the scalar by which the updates must scale them.

    The norm for clipping is computed from the fully scaled and regularized gradients.
    """
    if t.options.clip_norm is None:
        return gradients, inverse
    finished = [_finished(t, g, inverse) for g in gradients]
    squares = [_square_sum(t, g) for g in finished]
    total = squares[0] if len(squares) == 1 else t.one("add_n", *squares)
    factor = t.number("global_norm_clip_factor", total, clip_norm=t.options.clip_norm)
    return finished, t.number("cast", factor, dtype="float32")


def _finished(t: _Training, g: Gradient, inverse: Value | None) -> Gradient:
    """Return a gradient with scales and regularization applied, in the accumulation type."""
    maker = t.maker(g.variable.placement, f"{g.variable.name}/clip")
    wide = tensor_type((), g.variable.type.dtype.accumulate)
    value = _cast(maker, g.value, wide)
    if g.scale != 1.0:
        value = value * g.scale
    if inverse is not None:
        value = value * _cast(maker, inverse, wide)
    if g.l1 or g.l2:
        model = _cast(maker, g.variable.value, wide)
        value = maker.one("l1_l2_regularize_gradient", model, value, l1=g.l1, l2=g.l2)
    return Gradient(g.variable, value.value)


def _square_sum(t: _Training, g: Gradient) -> Value:
    """Return the sum of a gradient's squares, in float64: those of 1e20 overflow float32."""
    maker = t.maker(g.variable.placement, f"{g.variable.name}/clip")
    return maker.one("square_sum", Sym(maker, g.value), wide=True).value


def _learning_rate(t: _Training, step: Value) -> tuple[Value, Value]:
    """Return the learning rate and the step number for the update ops."""
    options = t.options
    now = step if options.step_blob is None else _named(t, options.step_blob, int64)
    schedule = options.schedule
    rate = _scheduled(t, now) if schedule.blob is None else _named(t, schedule.blob, float32)
    if options.rule.bias_correction is None:
        return rate, now
    beta1, beta2 = options.rule.bias_correction
    betas = {"beta1": beta1, "beta2": beta2}
    return t.number("adam_bias_correction_learning_rate", rate, now, **betas), now


def _scheduled(t: _Training, step: Value) -> Value:
    schedule = t.options.schedule
    attrs = {
        "learning_rate": schedule.rate,
        "learning_rate_decay": schedule.decay,
        "warmup_conf": schedule.warmup,
    }
    return t.number("learning_rate_schedule", step, **attrs)


def _named(t: _Training, blob: str, dtype: DType) -> Value:
    """Return the value of a blob, given an op's name or OneFlow's notation ``<op>/<output>``."""
    ops = t.emitter.builder.ops
    op = blob if blob in ops else blob.rpartition("/")[0]
    if op not in ops:
        _fail(t, f"no blob {blob!r}", "the name of a blob of this job", nearest(blob, ops) or None)
    type_ = t.type_of(Value(op, 0))
    if type_.size != 1 or type_.dtype != dtype:
        _fail(t, f"blob {blob!r} of type {type_}", f"one {dtype} number")
    return Value(op, 0)


def _update(
    t: _Training,
    g: Gradient,
    rate: Value,
    step: Value,
    scale_by: Value | None,
    skip: Value | None,
) -> None:
    """Add the optimizer's states for a variable, and the variable's update op."""
    rule, variable = t.options.rule, g.variable
    states = [_state(t, variable, state) for state in rule.states]
    optional = [value for value in (scale_by, skip) if value is not None]
    attrs = {
        **rule.attrs,
        "scale": g.scale,
        "l1": g.l1,
        "l2": g.l2,
        "weight_decay": t.options.weight_decay.of(variable.name),
    }
    t.emitter.emit(
        rule.op,
        [variable.value, g.value, rate, *([step] if rule.uses_step else []), *states, *optional],
        attrs,
        placement=variable.placement,
        name=t.emitter.builder.unique_name(f"{variable.name}_optimizer"),
        line=t.line,
    )


def _state(t: _Training, variable: TrainVariable, state: State) -> Value:
    """Add a state with the variable's distribution; its type is float32 for half precision."""
    ops, name = t.emitter.builder.ops, f"{variable.name}-{state.suffix}"
    if name in ops:
        return ops[name].output()
    attrs = {
        "shape": (1,) if state.single else variable.type.shape,
        "dtype": variable.type.dtype.accumulate.name,
        "initializer": ("constant", state.initial),
        "trainable": False,
    }
    (value,) = t.emitter.emit(
        "variable",
        (),
        attrs,
        placement=variable.placement,
        name=name,
        line=t.line,
        sbp=() if state.single else ops[variable.value.op].sbp,
    )
    return value


def _adapt_loss_scale(t: _Training, scale: Value, skip: Value) -> None:
    policy = t.options.loss_scale
    if isinstance(policy, DynamicLossScale):
        good_steps = _number_variable(t, "GoodStepCounter", "int64", 0)
        t.emitter.emit(
            "dynamic_loss_scale_schedule",
            [skip, scale, good_steps],
            {"increment_period": policy.increment_period, "multiplier": policy.multiplier},
            placement=t.numbers,
            name=t.emitter.builder.unique_name(_dynamic_name(t, "Schedule")),
            line=t.line,
        )
