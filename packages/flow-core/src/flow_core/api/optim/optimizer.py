"""Optimizers; `learning_rates` has the schedules, `gradient_limits` clipping and loss scales.

``flow.optimizer.SGD(scheduler, momentum=0.9).minimize(loss)`` inside a job function of type
"train" makes the job update its variables at every call.  What is minimized is the mean of the
loss's elements; several losses count as the sum of their means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from numbers import Real

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
    check,
    check_numbers,
    warmup,
)
from flow_core.frontend.job.train import (
    State,
    TrainOptions,
    UpdateRule,
    WeightDecay,
)
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.job_build import current_job

__all__ = [
    "LAMB", "LARS", "SGD", "SGDW", "Adam", "AdamW", "CosineScheduler", "CustomScheduler",
    "ExponentialScheduler", "InverseTimeScheduler", "LazyAdam", "LinearCosineScheduler",
    "NaturalExpScheduler", "PiecewiseConstantScheduler", "PiecewiseScalingScheduler",
    "PolynomialSchduler", "PolynomialScheduler", "RMSProp", "grad_clipping", "loss_scale",
    "warmup",
]  # fmt: skip

Names = Sequence[str] | str | None


class Optimizer:
    """Base of the optimizers.

    Args:
        lr_scheduler: how the learning rate moves; a number for a constant rate.
        loss_scale_factor: short for ``loss_scale_policy=loss_scale.static_loss_scale(...)``.
        grad_clipping: limit of the gradients.
        train_step_lbn: name of a blob that holds the number of the step; the job's own by default.
        loss_scale_policy: loss scale for half-precision training.

    Raises:
        InferenceError: a loss scale is given twice.
    """

    weight_decay: float | None = None
    weight_decay_includes: Sequence[str] | None = None
    weight_decay_excludes: Sequence[str] | None = None

    def __init__(
        self,
        lr_scheduler: LrScheduler | float,
        loss_scale_factor: float | None = None,
        grad_clipping: ClipGradientConf | None = None,
        train_step_lbn: str | None = None,
        loss_scale_policy: LossScalePolicy | None = None,
    ) -> None:
        name = type(self).__name__
        self.lr_scheduler = _scheduler(name, lr_scheduler)
        limit = grad_clipping is None or isinstance(grad_clipping, ClipGradientConf)
        found = f"grad_clipping {grad_clipping!r:.60}"
        check(limit, name, found, "flow.optimizer.grad_clipping.by_global_norm(limit)")
        policy = loss_scale_policy is None or isinstance(loss_scale_policy, LossScalePolicy)
        found = f"loss_scale_policy {loss_scale_policy!r:.60}"
        check(policy, name, found, "one of flow.optimizer.loss_scale, called")
        if loss_scale_factor is not None:
            check(loss_scale_policy is None, name, "two loss scales", "one of them")
            loss_scale_policy = StaticLossScalePolicy(loss_scale_factor)
        self.loss_scale_policy = loss_scale_policy
        self.grad_clipping = grad_clipping
        self.train_step_lbn = train_step_lbn

    def rule(self) -> UpdateRule:
        """The update rule."""
        raise NotImplementedError

    def options(self) -> TrainOptions:
        """Everything that the optimizer says about training, as literals."""
        policy, clipping = self.loss_scale_policy, self.grad_clipping
        return TrainOptions(
            rule=self.rule(),
            schedule=self.lr_scheduler.schedule(),
            weight_decay=self._weight_decay(),
            loss_scale=None if policy is None else policy.scale(),
            clip_norm=None if clipping is None else clipping.clip_conf[1],
            step_blob=self.train_step_lbn,
        )

    def minimize(self, loss: BlobDef | Sequence[BlobDef]) -> None:
        """Makes the job under definition minimize a loss at every call.

        Args:
            loss: one floating blob, or several of one type; the mean of its elements counts.

        Raises:
            JobError: outside of a job of type "train", or for something that is no loss.
        """
        losses = list(loss) if isinstance(loss, list | tuple) else [loss]
        current_job("minimize").train(optimizer=self, losses=losses)

    def _set_weight_decay(self, rate: float | None, includes: Names, excludes: Names) -> None:
        check(
            includes is None or excludes is None,
            type(self).__name__,
            "weight_decay_includes and weight_decay_excludes",
            "one of them",
        )
        if rate is not None:
            check_numbers(type(self).__name__, weight_decay=rate)
        self.weight_decay = rate
        self.weight_decay_includes = self._patterns("weight_decay_includes", includes)
        self.weight_decay_excludes = self._patterns("weight_decay_excludes", excludes)

    def _patterns(self, what: str, names: Names) -> Sequence[str] | None:
        """Regular expressions as a list."""
        found = [names] if isinstance(names, str) else names
        known = found is None or (isinstance(found, list | tuple) and all(map(_compiles, found)))
        allowed = "regular expressions of Python's re: a text, or a list of them"
        check(known, type(self).__name__, f"{what}={names!r:.60}", allowed)
        return found

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
    """The schedule that an optimizer is given, or that of a constant rate."""
    if isinstance(given, LrScheduler):
        return given
    allowed = "a number for a constant rate, or a scheduler of flow.optimizer"
    number = isinstance(given, Real) and not isinstance(given, bool)
    check(number, name, f"lr_scheduler {given!r:.60}", allowed)
    check_numbers(name, lr_scheduler=given)
    return PiecewiseConstantScheduler([], [given])


def _compiles(pattern: object) -> bool:
    try:
        return isinstance(pattern, str) and bool(re.compile(pattern))
    except re.error:
        return False


def _momentum_rule(momentum: float) -> UpdateRule:
    if momentum == 0:
        return UpdateRule("sgd_update")
    return UpdateRule("momentum_update", {"beta": float(momentum)}, (State("momentum"),))


class SGD(Optimizer):
    """Stochastic gradient descent: m = momentum * m - lr * g; w += m.

    Args:
        lr_scheduler: how the learning rate moves; a number for a constant rate.
        loss_scale_factor: constant loss scale.
        momentum: momentum factor; 0 for none.
        grad_clipping: limit of the gradients.
        train_step_lbn: name of a blob that holds the number of the step.
        loss_scale_policy: loss scale.
    """

    def __init__(
        self,
        lr_scheduler: LrScheduler | float,
        loss_scale_factor: float | None = None,
        momentum: float = 0.9,
        grad_clipping: ClipGradientConf | None = None,
        train_step_lbn: str | None = None,
        loss_scale_policy: LossScalePolicy | None = None,
    ) -> None:
        super().__init__(
            lr_scheduler, loss_scale_factor, grad_clipping, train_step_lbn, loss_scale_policy
        )
        check_numbers(type(self).__name__, momentum=momentum)
        self.momentum = momentum

    def rule(self) -> UpdateRule:
        """``sgd_update`` or ``momentum_update``."""
        return _momentum_rule(self.momentum)


class SGDW(Optimizer):
    """`SGD` with decoupled weight decay: w -= lr * weight_decay * w besides.

    Args:
        lr_scheduler: how the learning rate moves; a number for a constant rate.
        loss_scale_factor: constant loss scale.
        momentum: momentum factor; 0 for none.
        weight_decay: decay of the weights.
        weight_decay_includes: regular expressions; only variables that match one decay.
        weight_decay_excludes: regular expressions; variables that match one do not decay.
        grad_clipping: limit of the gradients.
        train_step_lbn: name of a blob that holds the number of the step.
        loss_scale_policy: loss scale.
    """

    def __init__(
        self,
        lr_scheduler: LrScheduler | float,
        loss_scale_factor: float | None = None,
        momentum: float = 0.9,
        weight_decay: float | None = None,
        weight_decay_includes: Sequence[str] | str | None = None,
        weight_decay_excludes: Sequence[str] | str | None = None,
        grad_clipping: ClipGradientConf | None = None,
        train_step_lbn: str | None = None,
        loss_scale_policy: LossScalePolicy | None = None,
    ) -> None:
        super().__init__(
            lr_scheduler, loss_scale_factor, grad_clipping, train_step_lbn, loss_scale_policy
        )
        check_numbers(type(self).__name__, momentum=momentum)
        self.momentum = momentum
        self._set_weight_decay(weight_decay, weight_decay_includes, weight_decay_excludes)

    def rule(self) -> UpdateRule:
        """``sgd_update`` or ``momentum_update``."""
        return _momentum_rule(self.momentum)


_MOMENTS = (State("m"), State("v"))


def _adam_attrs(beta1: float, beta2: float, epsilon: float) -> Mapping[str, float]:
    return {"beta1": float(beta1), "beta2": float(beta2), "epsilon": float(epsilon)}


class Adam(Optimizer):
    """Adam: m, v = averages of g and g * g; w -= lr * m / (sqrt(v) + epsilon).

    Args:
        lr_scheduler: how the learning rate moves; a number for a constant rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: keeps the denominator from vanishing.
        do_bias_correction: whether lr is multiplied by sqrt(1 - beta2**t) / (1 - beta1**t).
        loss_scale_factor: constant loss scale.
        grad_clipping: limit of the gradients.
        train_step_lbn: name of a blob that holds the number of the step.
        loss_scale_policy: loss scale.
    """

    def __init__(
        self,
        lr_scheduler: LrScheduler | float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        do_bias_correction: bool = False,
        loss_scale_factor: float | None = None,
        grad_clipping: ClipGradientConf | None = None,
        train_step_lbn: str | None = None,
        loss_scale_policy: LossScalePolicy | None = None,
    ) -> None:
        super().__init__(
            lr_scheduler, loss_scale_factor, grad_clipping, train_step_lbn, loss_scale_policy
        )
        check_numbers(type(self).__name__, beta1=beta1, beta2=beta2, epsilon=epsilon)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.do_bias_correction = do_bias_correction

    def rule(self) -> UpdateRule:
        """``adam_update``."""
        betas = (float(self.beta1), float(self.beta2)) if self.do_bias_correction else None
        attrs = _adam_attrs(self.beta1, self.beta2, self.epsilon)
        return UpdateRule("adam_update", attrs, _MOMENTS, bias_correction=betas)


class AdamW(Adam):
    """`Adam` with decoupled weight decay: w -= lr * weight_decay * w besides.

    Args:
        lr_scheduler: how the learning rate moves; a number for a constant rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: keeps the denominator from vanishing.
        do_bias_correction: whether lr is multiplied by sqrt(1 - beta2**t) / (1 - beta1**t).
        loss_scale_factor: constant loss scale.
        weight_decay: decay of the weights.
        weight_decay_includes: regular expressions; only variables that match one decay.
        weight_decay_excludes: regular expressions; variables that match one do not decay.
        grad_clipping: limit of the gradients.
        train_step_lbn: name of a blob that holds the number of the step.
        loss_scale_policy: loss scale.
    """

    def __init__(
        self,
        lr_scheduler: LrScheduler | float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        do_bias_correction: bool = False,
        loss_scale_factor: float | None = None,
        weight_decay: float | None = None,
        weight_decay_includes: Sequence[str] | str | None = None,
        weight_decay_excludes: Sequence[str] | str | None = None,
        grad_clipping: ClipGradientConf | None = None,
        train_step_lbn: str | None = None,
        loss_scale_policy: LossScalePolicy | None = None,
    ) -> None:
        super().__init__(
            lr_scheduler,
            beta1,
            beta2,
            epsilon,
            do_bias_correction,
            loss_scale_factor,
            grad_clipping,
            train_step_lbn,
            loss_scale_policy,
        )
        self._set_weight_decay(weight_decay, weight_decay_includes, weight_decay_excludes)


class LazyAdam(Adam):
    """`Adam` with bias correction; on dense gradients, the only ones here, it is the same.

    Args:
        lr_scheduler: how the learning rate moves; a number for a constant rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: keeps the denominator from vanishing.
        loss_scale_factor: constant loss scale.
        grad_clipping: limit of the gradients.
        train_step_lbn: name of a blob that holds the number of the step.
        loss_scale_policy: loss scale.
    """

    def __init__(
        self,
        lr_scheduler: LrScheduler | float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        loss_scale_factor: float | None = None,
        grad_clipping: ClipGradientConf | None = None,
        train_step_lbn: str | None = None,
        loss_scale_policy: LossScalePolicy | None = None,
    ) -> None:
        super().__init__(
            lr_scheduler,
            beta1,
            beta2,
            epsilon,
            True,
            loss_scale_factor,
            grad_clipping,
            train_step_lbn,
            loss_scale_policy,
        )


class RMSProp(Optimizer):
    """RMSProp: s = decay_rate * s + (1 - decay_rate) * g * g; w -= lr * g / sqrt(s + epsilon).

    Args:
        lr_scheduler: how the learning rate moves; a number for a constant rate.
        decay_rate: decay of the averages.
        epsilon: keeps the denominator from vanishing.
        centered: use the variance of the gradient instead of its second moment.
        loss_scale_factor: constant loss scale.
        grad_clipping: limit of the gradients.
        train_step_lbn: name of a blob that holds the number of the step.
        loss_scale_policy: loss scale.
    """

    def __init__(
        self,
        lr_scheduler: LrScheduler | float,
        decay_rate: float = 0.99,
        epsilon: float = 1e-8,
        centered: bool = False,
        loss_scale_factor: float | None = None,
        grad_clipping: ClipGradientConf | None = None,
        train_step_lbn: str | None = None,
        loss_scale_policy: LossScalePolicy | None = None,
    ) -> None:
        super().__init__(
            lr_scheduler, loss_scale_factor, grad_clipping, train_step_lbn, loss_scale_policy
        )
        check_numbers("RMSProp", decay_rate=decay_rate, epsilon=epsilon)
        self.decay_rate = decay_rate
        self.epsilon = epsilon
        self.centered = centered

    def rule(self) -> UpdateRule:
        """``rmsprop_update`` or ``centered_rmsprop_update``."""
        attrs = {"decay_rate": float(self.decay_rate), "epsilon": float(self.epsilon)}
        states = (State("mean_square"), State("mean_gradient"))
        if self.centered:
            return UpdateRule("centered_rmsprop_update", attrs, states)
        return UpdateRule("rmsprop_update", attrs, states[:1])


class LARS(Optimizer):
    """Layer-wise adaptive rates: local = lr * lars_coefficient * |w| / (epsilon + |g|).

    m = momentum_beta * m - local * g; w += m, with |x| the root of the mean square.

    Args:
        lr_scheduler: how the learning rate moves; a number for a constant rate.
        momentum_beta: momentum factor.
        epsilon: keeps the denominator from vanishing.
        lars_coefficient: how much of its own size a layer may change per step.
        loss_scale_factor: constant loss scale.
        grad_clipping: limit of the gradients.
        train_step_lbn: name of a blob that holds the number of the step.
        loss_scale_policy: loss scale.
    """

    def __init__(
        self,
        lr_scheduler: LrScheduler | float,
        momentum_beta: float = 0.9,
        epsilon: float = 1e-9,
        lars_coefficient: float = 0.0001,
        loss_scale_factor: float | None = None,
        grad_clipping: ClipGradientConf | None = None,
        train_step_lbn: str | None = None,
        loss_scale_policy: LossScalePolicy | None = None,
    ) -> None:
        super().__init__(
            lr_scheduler, loss_scale_factor, grad_clipping, train_step_lbn, loss_scale_policy
        )
        numbers = {"momentum_beta": momentum_beta, "lars_coefficient": lars_coefficient}
        check_numbers("LARS", epsilon=epsilon, **numbers)
        self.momentum_beta = momentum_beta
        self.epsilon = epsilon
        self.lars_coefficient = lars_coefficient

    def rule(self) -> UpdateRule:
        """``lars_update``."""
        attrs = {
            "momentum_beta": float(self.momentum_beta),
            "epsilon": float(self.epsilon),
            "lars_coefficient": float(self.lars_coefficient),
        }
        return UpdateRule("lars_update", attrs, (State("momentum"),), uses_step=True)


class LAMB(Optimizer):
    """Layer-wise adaptive moments: Adam's change, scaled to the norm of the weights.

    Args:
        lr_scheduler: how the learning rate moves; a number for a constant rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: keeps the denominator from vanishing.
        loss_scale_factor: constant loss scale.
        grad_clipping: limit of the gradients.
        train_step_lbn: name of a blob that holds the number of the step.
        loss_scale_policy: loss scale.
    """

    def __init__(
        self,
        lr_scheduler: LrScheduler | float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        loss_scale_factor: float | None = None,
        grad_clipping: ClipGradientConf | None = None,
        train_step_lbn: str | None = None,
        loss_scale_policy: LossScalePolicy | None = None,
    ) -> None:
        super().__init__(
            lr_scheduler, loss_scale_factor, grad_clipping, train_step_lbn, loss_scale_policy
        )
        check_numbers(type(self).__name__, beta1=beta1, beta2=beta2, epsilon=epsilon)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    def rule(self) -> UpdateRule:
        """``lamb_update``."""
        powers = (
            State("beta1_t", float(self.beta1), single=True),
            State("beta2_t", float(self.beta2), single=True),
        )
        attrs = _adam_attrs(self.beta1, self.beta2, self.epsilon)
        return UpdateRule("lamb_update", attrs, (*_MOMENTS, *powers))
