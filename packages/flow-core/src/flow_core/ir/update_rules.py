"""The update rules of the optimizers: inputs, attributes and formulas for all backends.

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
  keeps mean_gradient likewise and subtracts its square from mean_square under the root
* ``adagrad_update``: sum_of_squares += r**2;
  model -= lr * (r / (sqrt(sum_of_squares) + epsilon) + weight_decay * model)
* ``lion_update``: change = sign(beta1 * m + (1 - beta1) * r); m = beta2 * m + (1 - beta2) * r;
  model -= lr * (change + weight_decay * model)
* ``lars_update``: local = lr * lars_coefficient * |model| / (epsilon + |r| [+ weight_decay *
  |model| after the first step]) with |x| the root of the mean square, and local = lr *
  zero_ratio if |model| or |r| is 0 and zero_ratio is not;
  momentum = momentum_beta * momentum - local * (r + weight_decay * model); model += momentum
* ``lamb_update``: m and v as in Adam, beta1_t *= beta1, beta2_t *= beta2,
  a = m / (1 - beta1_t) / sqrt(v / (1 - beta2_t) + epsilon);
  model -= lr * |model| / |a| * (a + weight_decay * model) with |x| the Euclidean norm
  (the factor is 1 unless both are positive)

If ``skip_if`` is not 0, nothing changes.  If a coefficient l1, l2 or weight_decay is 0, backends
may omit its term; infinities and NaNs of the model then do not spread through that term.

Backends take the names, order and number of states and attributes from `TABLE`.  Each backend
orders the arithmetic for its hardware (tiles of numpy calls, fused loops, GPU threads), so the
results of two backends are equal only up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flow_core.ir.graph import TensorType

COMMON: Mapping[str, float] = {"scale": 1.0, "l1": 0.0, "l2": 0.0, "weight_decay": 0.0}
"""Attributes of every update, with their defaults."""
MODEL, DIFF, RATE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Update:
    """One update rule.

    Attributes:
        type: op type.
        states: names of the states with the model's shape.
        attrs: the attributes that are not in `COMMON`, with their defaults.
        step: whether the rule reads the step number.
        numbers: names of the states with one element.
        local: whether each element depends only on the elements at the same index, so that the
            update can be split.
        unit: names of attributes that must be in [0, 1).
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

    def values(self, attrs: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the values of the rule's own attributes, in the order of `attrs`."""
        return tuple(float(attrs[name]) for name in self.attrs)


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
    Update("adagrad_update", ("sum_of_squares",), {"epsilon": 1e-10}),
    Update("lion_update", ("m",), {"beta1": 0.9, "beta2": 0.99}, unit=("beta1", "beta2")),
    Update(
        "lars_update",
        ("momentum",),
        {"momentum_beta": 0.9, "epsilon": 1e-9, "lars_coefficient": 1e-4, "zero_ratio": 1.0},
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
