"""The update rules of the optimizers: inputs, attributes and formulas for all backends.

Every update takes ``(model, model_diff, learning_rate, ...)``, overwrites the model and its
states, and has no output.  A formula assigns their new values, from those before: the numbers
``rate``, ``size`` (of the model), ``train_step``, and the attributes; the arrays ``model``, the
states, and ``r`` = scale * scale_by_tensor * model_diff + l2 * model + l1 * sign(model).  The
reference, the numpy kernels, the C loops of flow-onednn and the CUDA kernels of flow-cuda are
made from the formulas.  Numbers are in double precision, and each coefficient is rounded once, so
that a rate of 6 times a scale of 1/6 is 1.  C and CUDA may contract products and sums, and they
add weight decay to the old model, where numpy multiplies the model by 1 - rate * weight_decay.

If ``skip_if`` is not 0, nothing changes.  If a coefficient l1, l2 or weight_decay is 0, backends
may omit its term; infinities and NaNs of the model then do not spread through that term.

Backends take the names, order and number of states and attributes from `TABLE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.formulas import (
    Number,
    Scalar,
    Statement,
    Trace,
    is_positive,
    is_zero,
    positive,
    ratio,
    sign,
    sqrt,
    square,
    where,
)
from flow_core.ir.graph import AttrValue, TensorType

COMMON: Mapping[str, float] = {"scale": 1.0, "l1": 0.0, "l2": 0.0, "weight_decay": 0.0}
"""Attributes of every update, with their defaults."""
MODEL, DIFF, RATE = 0, 1, 2

Value: TypeAlias = Any
"""An array or symbolic elements, a number or a symbolic one."""
Step: TypeAlias = "Trace | _Values"
"""The argument of a formula."""


@dataclass(frozen=True, slots=True)
class Update:
    """One update rule.

    Attributes:
        formula: the function that assigns the new model and states.
        states: names of the states with the model's shape.
        attrs: the attributes that are not in `COMMON`, with their defaults.
        step: whether the rule reads the step number.
        numbers: names of the states with one element.
        local: whether each element depends only on the elements at the same index, so that the
            update can be split.
        unit: names of attributes that must be in [0, 1).
    """

    type: str
    formula: Callable[[Step], None]
    states: tuple[str, ...] = ()
    attrs: Mapping[str, float] = field(default_factory=dict)
    step: bool = False
    numbers: tuple[str, ...] = ()
    local: bool = True
    unit: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the required inputs."""
        step = ("train_step",) if self.step else ()
        return ("model", "model_diff", "learning_rate", *step, *self.states, *self.numbers)

    @property
    def first_state(self) -> int:
        """Index of the first state among the inputs."""
        return RATE + 1 + self.step

    @property
    def scalars(self) -> tuple[int, ...]:
        """Indices of the inputs that are numbers: rate, step, scale and whether to skip."""
        return (*range(RATE, self.first_state), len(self.inputs), len(self.inputs) + 1)

    @property
    def mutates(self) -> tuple[int, ...]:
        """Indices of the inputs that are overwritten."""
        return (MODEL, *range(self.first_state, len(self.inputs)))

    def values(self, attrs: Mapping[str, AttrValue]) -> tuple[float, ...]:
        """Return the values of the rule's own attributes, in the order of `attrs`."""
        return tuple(float(attrs[name]) for name in self.attrs)


def regularized(u: Step, gradient: Value) -> Value:
    """Return ``r``, the scaled gradient with the penalties whose coefficients are not 0."""
    r = u.scale * gradient
    if u.l2:
        r += u.l2 * u.model
    if u.l1:
        r += u.l1 * sign(u.model)
    return r


def traced(row: Update, numbers: Mapping[str, Scalar], stored: bool = False) -> Sequence[Statement]:
    """Return the statements of a rule.

    Args:
        numbers: values of ``scale`` and of attributes, where they are known.
        stored: whether ``r`` is an array, which the first statement assigns.
    """
    names = ("scale", *COMMON, *row.attrs, *row.numbers, "rate", "size", "train_step")
    u = Trace(("model", "model_diff", *row.states), {**{k: Number(k) for k in names}, **numbers})
    r = regularized(u, u.model_diff)
    if stored:
        u.r = r
    else:
        vars(u)["r"] = r
    row.formula(u)
    return u.statements


def computed(row: Update, **values: Value) -> tuple[Value, ...]:
    """Return the new model and states of a rule, from arrays and Python numbers."""
    u = _Values(**values)
    u.r = regularized(u, u.model_diff)
    row.formula(u)
    return tuple(getattr(u, name) for name in ("model", *row.states, *row.numbers))


class _Values(SimpleNamespace):
    def norm(self, x: Array) -> float:
        """Return the square root of the sum of squares."""
        return math.sqrt(np.sum(x * x))


def _kept(u: Step, rate: Value) -> Value:
    """Return the model after weight decay; an infinite rate changes nothing if there is none."""
    return (1.0 - where(u.weight_decay, rate * u.weight_decay, 0.0)) * u.model


def _sgd(u: Step) -> None:
    u.model = _kept(u, u.rate) - u.rate * u.r


def _momentum(u: Step) -> None:
    u.momentum = u.beta * u.momentum - u.rate * u.r
    u.model = _kept(u, u.rate) + u.momentum


def _average(decay: Value, average: Value, value: Value) -> Value:
    return decay * average + (1.0 - decay) * value


def _average_square(decay: Value, average: Value, value: Value) -> Value:
    return decay * average + square(sqrt(1.0 - decay) * value)


def _moments(u: Step) -> None:
    u.m, u.v = _average(u.beta1, u.m, u.r), _average_square(u.beta2, u.v, u.r)


def _adam(u: Step) -> None:
    _moments(u)
    u.model = _kept(u, u.rate) - u.rate * (u.m / (sqrt(u.v) + u.epsilon))


def _rmsprop(u: Step) -> None:
    u.mean_square = _average_square(u.decay_rate, u.mean_square, u.r)
    u.model = _kept(u, u.rate) - u.rate * (u.r / sqrt(u.mean_square + u.epsilon))


def _centered_rmsprop(u: Step) -> None:
    u.mean_square = _average_square(u.decay_rate, u.mean_square, u.r)
    u.mean_gradient = _average(u.decay_rate, u.mean_gradient, u.r)
    # a variance is never negative, but its rounded value can be
    variance = positive(u.mean_square - square(u.mean_gradient))
    u.model = _kept(u, u.rate) - u.rate * (u.r / sqrt(variance + u.epsilon))


def _adagrad(u: Step) -> None:
    u.sum_of_squares = u.sum_of_squares + square(u.r)
    u.model = _kept(u, u.rate) - u.rate * (u.r / (sqrt(u.sum_of_squares) + u.epsilon))


def _lion(u: Step) -> None:
    u.model = _kept(u, u.rate) - u.rate * sign(_average(u.beta1, u.m, u.r))
    u.m = _average(u.beta2, u.m, u.r)


def _lars(u: Step) -> None:
    """Scale the rate by the roots of the mean squares of the model and of its gradient."""
    root = sqrt(u.size)
    size, length = u.norm(u.model) / root, u.norm(u.r) / root
    below = u.epsilon + length + where(u.train_step, u.weight_decay * size, 0.0)
    plain = (1.0 - is_zero(u.zero_ratio)) * (is_zero(size) + is_zero(length))
    scaled = ratio(u.lars_coefficient * size, below)
    u.local = u.rate * where(plain, u.zero_ratio, scaled)
    momentum = u.momentum_beta * u.momentum - u.local * u.r
    u.momentum = momentum - u.local * u.weight_decay * u.model if u.weight_decay else momentum
    u.model = u.model + u.momentum


def _lamb(u: Step) -> None:
    """Scale the corrected update of Adam to the norm of the model, if both norms are positive."""
    _moments(u)
    u.beta1_t, u.beta2_t = u.beta1_t * u.beta1, u.beta2_t * u.beta2
    v = 1.0 / (1.0 - u.beta2_t) * u.v
    u.change = 1.0 / (1.0 - u.beta1_t) * (u.m / sqrt(v + u.epsilon))
    size, length = u.norm(u.model), u.norm(u.change)
    both = is_positive(size) * is_positive(length)
    u.local = u.rate * where(both, ratio(size, length), 1.0)
    u.model = (1.0 - u.local * u.weight_decay) * u.model - u.local * u.change


_ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
_RMSPROP = {"decay_rate": 0.99, "epsilon": 1e-8}
_BETAS = ("beta1", "beta2")

TABLE: tuple[Update, ...] = (
    Update("sgd_update", _sgd),
    Update("momentum_update", _momentum, ("momentum",), {"beta": 0.9}),
    Update("adam_update", _adam, ("m", "v"), _ADAM, unit=_BETAS),
    Update("rmsprop_update", _rmsprop, ("mean_square",), _RMSPROP, unit=("decay_rate",)),
    Update(
        "centered_rmsprop_update",
        _centered_rmsprop,
        ("mean_square", "mean_gradient"),
        _RMSPROP,
        unit=("decay_rate",),
    ),
    Update("adagrad_update", _adagrad, ("sum_of_squares",), {"epsilon": 1e-10}),
    Update("lion_update", _lion, ("m",), {"beta1": 0.9, "beta2": 0.99}, unit=_BETAS),
    Update(
        "lars_update",
        _lars,
        ("momentum",),
        {"momentum_beta": 0.9, "epsilon": 1e-9, "lars_coefficient": 1e-4, "zero_ratio": 1.0},
        step=True,
        local=False,
    ),
    Update(
        "lamb_update",
        _lamb,
        ("m", "v"),
        {**_ADAM, "epsilon": 1e-6},
        numbers=("beta1_t", "beta2_t"),
        local=False,
        unit=_BETAS,
    ),
)

BY_TYPE: Mapping[str, Update] = {row.type: row for row in TABLE}

INDEXED_PREFIX = "indexed_slices_"
"""Prefix of the ops that update only the rows of a table that were looked up."""
INDEXED = ("sgd_update", "momentum_update", "adam_update")
"""Rules with an indexed-slices form."""


def optional_inputs(row: Update, types: Sequence[TensorType]) -> tuple[int | None, int | None]:
    """Return the indices of ``scale_by_tensor`` and ``skip_if`` (an integer), None where absent."""
    optional = range(len(row.inputs), len(types))
    skip = next((i for i in optional if not types[i].dtype.is_floating), None)
    scale = next((i for i in optional if types[i].dtype.is_floating), None)
    return scale, skip
