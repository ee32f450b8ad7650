"""Optimizers.  See `learning_rates` for schedules, `gradient_limits` for clipping and loss scales.

``flow.optimizer.SGD(scheduler, momentum=0.9).minimize(loss)`` inside a job function of type
"train" makes the job update its variables at every call.  The objective is the mean of the
loss's elements, or the sum of the means of several losses.

Each optimizer is a dataclass, whose fields are its arguments; `Optimizer` validates them.

Args:
    lr_scheduler: the learning-rate schedule, or a number for a constant rate.
    loss_scale_factor: a constant loss scale, or None.
    grad_clipping: a limit on the gradients, or None.
    train_step_lbn: name of a blob that holds the step number, or None.
    loss_scale_policy: a loss scale, or None.
    variables: what to update; see `Variables`.
    momentum: momentum factor; 0 disables momentum.
    beta1: decay of the first moment.
    beta2: decay of the second moment.
    epsilon: positive number that keeps the denominator from vanishing.
    do_bias_correction: whether to multiply lr by sqrt(1 - beta2**t) / (1 - beta1**t), as other
        frameworks do; None is False with a note when the job is compiled.
    weight_decay: weight decay rate.
    weight_decay_includes: regular expressions; if given, weight decay applies only to variables
        whose name matches one of them.
    weight_decay_excludes: regular expressions; weight decay does not apply to variables whose
        name matches one of them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from flow_core.api.arguments import check, check_numbers
from flow_core.api.optim.gradient_limits import (
    ClipGradientConf,
    LossScalePolicy,
    StaticLossScalePolicy,
    grad_clipping,
    loss_scale,
)
from flow_core.api.optim.learning_rates import (
    CosineScheduler,
    CustomScheduler,
    ExponentialScheduler,
    InverseTimeScheduler,
    LinearCosineScheduler,
    LrScheduler,
    NaturalExpScheduler,
    PiecewiseConstantScheduler,
    PiecewiseScalingScheduler,
    PolynomialSchduler,
    PolynomialScheduler,
    warmup,
)
from flow_core.frontend.job.train import TrainOptions, UpdateRule, WeightDecay
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.foreign_attributes import OPTIMIZER, missing_attribute
from flow_core.frontend.trace.job_build import current_job
from flow_core.ir.update_rules import BY_TYPE

__all__ = [
    "LAMB", "LARS", "SGD", "SGDW", "Adagrad", "Adam", "AdamW", "CosineScheduler", "CustomScheduler",
    "ExponentialScheduler", "InverseTimeScheduler", "LazyAdam", "LinearCosineScheduler", "Lion",
    "NaturalExpScheduler", "PiecewiseConstantScheduler", "PiecewiseScalingScheduler",
    "PolynomialSchduler", "PolynomialScheduler", "RMSProp", "grad_clipping", "loss_scale",
    "warmup",
]  # fmt: skip


Variables: TypeAlias = Sequence[str | Blob] | Callable[[], Sequence[str | Blob] | None] | None
"""The variables that an optimizer updates: their full names or blobs, or a function that returns
these when the job is traced; None for all trainable variables of the job."""


class Optimizer(ABC):
    """Base class of the optimizers, which validates the arguments that they share.

    Raises: InferenceError: an argument is not valid, or two loss scales are given.
    """

    lr_scheduler: LrScheduler | float
    loss_scale_factor: float | None
    grad_clipping: ClipGradientConf | None
    train_step_lbn: str | None
    loss_scale_policy: LossScalePolicy | None
    variables: Variables
    weight_decay: float | None = None
    weight_decay_includes: Sequence[str] | str | None = None
    weight_decay_excludes: Sequence[str] | str | None = None

    def __post_init__(self) -> None:
        """Validate the arguments, and expand their short forms to objects."""
        name = type(self).__name__
        self.lr_scheduler = _scheduler(name, self.lr_scheduler)
        self._check_gradient_options(name)
        if self.loss_scale_factor is not None:
            check(self.loss_scale_policy is None, name, "two loss scales", "one of them")
            self.loss_scale_policy = StaticLossScalePolicy(self.loss_scale_factor)
        check_numbers(name, **self._hyperparameters())
        self._check_weight_decay(name)

    @property
    @abstractmethod
    def update(self) -> str:
        """Type of the update op, whose own attributes are fields, which must be finite numbers."""

    def rule(self) -> UpdateRule:
        """Return the update rule."""
        return UpdateRule(self.update, self._attrs())

    def options(self) -> TrainOptions:
        """Return all training options as literals."""
        policy, clipping = self.loss_scale_policy, self.grad_clipping
        return TrainOptions(
            rule=self.rule(),
            schedule=_scheduler(type(self).__name__, self.lr_scheduler).schedule(),
            weight_decay=self._weight_decay(),
            loss_scale=None if policy is None else policy.scale(),
            clip_norm=None if clipping is None else clipping.clip_conf[1],
            step_blob=self.train_step_lbn,
            variables=_names(type(self).__name__, self.variables),
            note=self.note(),
        )

    if not TYPE_CHECKING:  # type checkers report unknown attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_attribute(self, "an optimizer", name, OPTIMIZER)

    def note(self) -> str:
        """Return what to log about the arguments when a job is compiled; usually nothing."""
        return ""

    def minimize(self, loss: Blob | Sequence[Blob]) -> None:
        """Make the job being traced minimize a loss at every call.

        Args:
            loss: one floating-point blob, or several of the same type; the objective is the mean of
                the elements.

        Raises:
            JobError: the call is outside a job of type "train", or ``loss`` is not a loss.
        """
        losses = list(loss) if isinstance(loss, list | tuple) else [loss]
        current_job("minimize").train(optimizer=self.options(), losses=losses)

    def _hyperparameters(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in BY_TYPE[self.update].attrs}

    def _attrs(self) -> dict[str, float]:
        """Return the hyperparameters as attributes of an update op."""
        return {name: float(value) for name, value in self._hyperparameters().items()}

    def _check_gradient_options(self, name: str) -> None:
        clipping, policy = self.grad_clipping, self.loss_scale_policy
        known = clipping is None or isinstance(clipping, ClipGradientConf)
        found = f"grad_clipping {clipping!r:.60}"
        check(known, name, found, "flow.optimizer.grad_clipping.by_global_norm(limit)")
        known = policy is None or isinstance(policy, LossScalePolicy)
        found = f"loss_scale_policy {policy!r:.60}"
        check(known, name, found, "one of flow.optimizer.loss_scale, called")

    def _check_weight_decay(self, name: str) -> None:
        includes, excludes = self.weight_decay_includes, self.weight_decay_excludes
        found = "weight_decay_includes and weight_decay_excludes"
        check(includes is None or excludes is None, name, found, "one of them")
        if self.weight_decay is not None:
            check_numbers(name, weight_decay=self.weight_decay)
        self.weight_decay_includes = _patterns(name, "weight_decay_includes", includes)
        self.weight_decay_excludes = _patterns(name, "weight_decay_excludes", excludes)

    def _weight_decay(self) -> WeightDecay:
        if self.weight_decay is None:
            return WeightDecay()
        includes, excludes = self.weight_decay_includes, self.weight_decay_excludes
        return WeightDecay(
            float(self.weight_decay),
            None if includes is None else tuple(includes),
            None if excludes is None else tuple(excludes),
        )


def _scheduler(name: str, given: LrScheduler | float) -> LrScheduler:
    """Return the given schedule, or for a number the schedule with that constant rate."""
    if isinstance(given, LrScheduler):
        return given
    allowed = "a number for a constant rate, or a scheduler of flow.optimizer"
    number = isinstance(given, Real) and not isinstance(given, bool)
    check(number, name, f"lr_scheduler {given!r:.60}", allowed)
    check_numbers(name, lr_scheduler=given)
    return PiecewiseConstantScheduler([], [given])


def _names(name: str, given: Variables) -> tuple[str, ...] | None:
    """Return the names of variables, given as names, blobs or a function that returns these."""
    found = given() if callable(given) else given
    if found is None:
        return None
    texts = [v.op_name if isinstance(v, BlobDef) else v for v in _listed(found)]
    known = isinstance(found, list | tuple) and all(isinstance(v, str) for v in texts)
    check(known, name, f"variables={found!r:.60}", "a list of names, or blobs, of variables")
    return tuple(texts)


def _listed(found: object) -> Sequence[Any]:
    return found if isinstance(found, list | tuple) else ()


def _patterns(name: str, what: str, given: Sequence[str] | str | None) -> Sequence[str] | None:
    """Return regular expressions as a list."""
    found = [given] if isinstance(given, str) else given
    known = found is None or (isinstance(found, list | tuple) and all(map(_compiles, found)))
    allowed = "regular expressions of Python's re: a text, or a list of them"
    check(known, name, f"{what}={given!r:.60}", allowed)
    return found


def _compiles(pattern: object) -> bool:
    try:
        return isinstance(pattern, str) and bool(re.compile(pattern))
    except re.error:
        return False


class _Momentum(Optimizer):
    """Base class of the optimizers whose update rule is ``sgd_update`` or ``momentum_update``."""

    update = "sgd_update"

    momentum: float

    def _hyperparameters(self) -> dict[str, float]:
        return {"momentum": self.momentum}

    def rule(self) -> UpdateRule:
        """Return ``sgd_update`` without momentum, otherwise ``momentum_update``."""
        if self.momentum == 0:
            return UpdateRule(self.update)
        return UpdateRule("momentum_update", {"beta": float(self.momentum)})


@dataclass(eq=False, repr=False)
class SGD(_Momentum):
    """Stochastic gradient descent: m = momentum * m - lr * g; w += m.

    >>> @flow.global_function(type="train")
    ... def job() -> tp.Numpy:
    ...     w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
    ...     flow.optimizer.SGD(0.1).minimize(w * w)
    ...     return w
    >>> [round(job().item(), 4) for _ in range(3)]
    [1.0, 0.8, 0.46]
    """

    lr_scheduler: LrScheduler | float
    loss_scale_factor: float | None = None
    momentum: float = 0.9
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables = None


@dataclass(eq=False, repr=False)
class SGDW(_Momentum):
    """`SGD` with decoupled weight decay: additionally w -= lr * weight_decay * w.

    >>> weights(flow.optimizer.SGDW(0.1, weight_decay=0.01))
    [1.0, 0.799, 0.4584]
    """

    lr_scheduler: LrScheduler | float
    loss_scale_factor: float | None = None
    momentum: float = 0.9
    weight_decay: float | None = None
    weight_decay_includes: Sequence[str] | str | None = None
    weight_decay_excludes: Sequence[str] | str | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables = None


@dataclass(eq=False, repr=False)
class _Moments(Optimizer):
    """The fields of the optimizers with two moments, neither corrected by choice nor decayed."""

    lr_scheduler: LrScheduler | float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    loss_scale_factor: float | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables = None


class _Adam(Optimizer):
    """Base class of the optimizers whose update rule is ``adam_update``."""

    update = "adam_update"

    beta1: float
    beta2: float
    do_bias_correction: bool | None

    def rule(self) -> UpdateRule:
        """Return ``adam_update``."""
        betas = (float(self.beta1), float(self.beta2)) if self.do_bias_correction else None
        return UpdateRule(self.update, self._attrs(), bias_correction=betas)

    def note(self) -> str:
        """Return that no bias correction was chosen, unless the program chose."""
        if self.do_bias_correction is not None:
            return ""
        longer = (1 - self.beta1) / (1 - self.beta2) ** 0.5
        return (
            f"{type(self).__name__} without bias correction, OneFlow's default: the first step is "
            f"{longer:.2g} times as long as in other frameworks; choose with do_bias_correction"
        )


@dataclass(eq=False, repr=False)
class Adam(_Adam):
    """Adam: m, v = averages of g and g * g; w -= lr * m / (sqrt(v) + epsilon).

    >>> weights(flow.optimizer.Adam(0.1, do_bias_correction=True))
    [1.0, 0.9, 0.8004]
    """

    lr_scheduler: LrScheduler | float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    do_bias_correction: bool | None = None
    loss_scale_factor: float | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables = None


@dataclass(eq=False, repr=False)
class AdamW(_Adam):
    """`Adam` with decoupled weight decay: additionally w -= lr * weight_decay * w.

    >>> weights(flow.optimizer.AdamW(0.1, do_bias_correction=True, weight_decay=0.01))
    [1.0, 0.8997, 0.7999]
    """

    lr_scheduler: LrScheduler | float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    do_bias_correction: bool | None = None
    loss_scale_factor: float | None = None
    weight_decay: float | None = None
    weight_decay_includes: Sequence[str] | str | None = None
    weight_decay_excludes: Sequence[str] | str | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables = None


@dataclass(eq=False, repr=False)
class LazyAdam(_Adam, _Moments):
    """`Adam` with bias correction; for dense gradients, the same as `Adam`.

    >>> weights(flow.optimizer.LazyAdam(0.1))
    [1.0, 0.9, 0.8004]
    """

    do_bias_correction: bool = field(default=True, init=False)


@dataclass(eq=False, repr=False)
class RMSProp(Optimizer):
    """RMSProp: s = decay_rate * s + (1 - decay_rate) * g * g; w -= lr * g / sqrt(s + epsilon).

    Args:
        decay_rate: decay of the averages.
        centered: whether to use the variance of the gradient instead of its second moment.

    >>> weights(flow.optimizer.RMSProp(0.1))
    [1.0, 0.0, -0.0]
    """

    lr_scheduler: LrScheduler | float
    decay_rate: float = 0.99
    epsilon: float = 1e-8
    centered: bool = False
    loss_scale_factor: float | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables = None

    update = "rmsprop_update"

    def rule(self) -> UpdateRule:
        """Return ``rmsprop_update`` or ``centered_rmsprop_update``."""
        op = "centered_rmsprop_update" if self.centered else self.update
        return UpdateRule(op, self._attrs())


@dataclass(eq=False, repr=False)
class LARS(Optimizer):
    """Layer-wise adaptive rates: local = lr * lars_coefficient * |w| / (epsilon + |g|).

    The update is m = momentum_beta * m - local * g; w += m.  Here |x| is the root of the mean
    square.  If |w| or |g| is 0, local = lr * zero_ratio, as in later versions of OneFlow.

    Args:
        momentum_beta: momentum factor.
        lars_coefficient: maximum relative change of a layer's weights per step.
        zero_ratio: the rate of variables that are zero, such as new biases, relative to lr; 0 for
            the behavior of OneFlow 0.3.4, where such variables never change.

    >>> weights(flow.optimizer.LARS(0.1))
    [1.0, 1.0, 1.0]
    """

    lr_scheduler: LrScheduler | float
    momentum_beta: float = 0.9
    epsilon: float = 1e-9
    lars_coefficient: float = 0.0001
    loss_scale_factor: float | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables = None
    zero_ratio: float = 1.0

    update = "lars_update"


@dataclass(eq=False, repr=False)
class LAMB(_Moments):
    """Layer-wise adaptive moments: the update of `Adam`, scaled to the norm of the weights.

    >>> weights(flow.optimizer.LAMB(0.1))
    [1.0, 0.9, 0.81]
    """

    epsilon: float = 1e-6

    update = "lamb_update"


@dataclass(eq=False, repr=False, kw_only=True)
class _Decayed(Optimizer):
    """The fields that optimizers of later programs share, which are keyword arguments."""

    loss_scale_factor: float | None = None
    weight_decay: float | None = None
    weight_decay_includes: Sequence[str] | str | None = None
    weight_decay_excludes: Sequence[str] | str | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables = None


@dataclass(eq=False, repr=False)
class Adagrad(_Decayed):
    """Adagrad: s += g * g; w -= lr * g / (sqrt(s) + epsilon) (Duchi, Hazan and Singer, 2011).

    >>> weights(flow.optimizer.Adagrad(0.1))
    [1.0, 0.9, 0.8331]
    """

    lr_scheduler: LrScheduler | float
    epsilon: float = 1e-10

    update = "adagrad_update"


@dataclass(eq=False, repr=False)
class Lion(_Decayed):
    """Lion: w -= lr * sign(beta1 * m + (1 - beta1) * g); m = beta2 * m + (1 - beta2) * g.

    All elements of all weights change by lr (Chen et al., 2023, arXiv:2302.06675); the authors take
    a rate that is 3 to 10 times smaller, and a weight decay that is as much larger, than for Adam.

    Args:
        beta1: the share of the average in what is applied.
        beta2: decay of the average.

    >>> weights(flow.optimizer.Lion(0.1))
    [1.0, 0.9, 0.8]
    """

    lr_scheduler: LrScheduler | float
    beta1: float = 0.9
    beta2: float = 0.99

    update = "lion_update"
