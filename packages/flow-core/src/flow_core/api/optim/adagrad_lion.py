"""The optimizers Adagrad and Lion, which later programs use; see `optimizer` for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flow_core.api.optim.gradient_limits import ClipGradientConf, LossScalePolicy
from flow_core.api.optim.learning_rates import LrScheduler
from flow_core.api.optim.optimizer import Optimizer, Variables
from flow_core.frontend.job.train import UpdateRule

__all__ = ["Adagrad", "Lion"]


@dataclass(eq=False, repr=False)
class Adagrad(Optimizer):
    """Adagrad: s += g * g; w -= lr * g / (sqrt(s) + epsilon) (Duchi, Hazan and Singer, 2011).

    Args:
        lr_scheduler: the learning-rate schedule, or a number for a constant rate.
        epsilon: positive number that keeps the denominator from vanishing.
        loss_scale_factor: a constant loss scale, or None.
        weight_decay: rate of a decoupled decay: additionally w -= lr * weight_decay * w.
        weight_decay_includes: regular expressions; if given, weight decay applies only to variables
            whose name matches one of them.
        weight_decay_excludes: regular expressions; weight decay does not apply to variables whose
            name matches one of them.
        grad_clipping: a limit on the gradients, or None.
        train_step_lbn: name of a blob that holds the step number, or None.
        loss_scale_policy: a loss scale, or None.
        variables: what to update; see `Variables`.

    Example:
        >>> @flow.global_function(type="train")
        ... def job() -> tp.Numpy:
        ...     w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        ...     flow.optimizer.Adagrad(0.1).minimize(w * w)
        ...     return w
        >>> [round(job().item(), 4) for _ in range(3)]
        [1.0, 0.9, 0.8331]
    """

    lr_scheduler: LrScheduler | float
    epsilon: float = 1e-10
    loss_scale_factor: float | None = None
    weight_decay: float | None = None
    weight_decay_includes: Sequence[str] | str | None = None
    weight_decay_excludes: Sequence[str] | str | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables = None

    hyperparameters = ("epsilon",)

    def rule(self) -> UpdateRule:
        """Return ``adagrad_update``."""
        return UpdateRule("adagrad_update", self._attrs())


@dataclass(eq=False, repr=False)
class Lion(Optimizer):
    """Lion: w -= lr * sign(beta1 * m + (1 - beta1) * g); m = beta2 * m + (1 - beta2) * g.

    All elements of all weights change by lr (Chen et al., 2023, arXiv:2302.06675); the authors take
    a rate that is 3 to 10 times smaller, and a weight decay that is as much larger, than for Adam.

    Args:
        lr_scheduler: the learning-rate schedule, or a number for a constant rate.
        beta1: the share of the average in what is applied.
        beta2: decay of the average.
        loss_scale_factor: a constant loss scale, or None.
        weight_decay: rate of a decoupled decay: additionally w -= lr * weight_decay * w.
        weight_decay_includes: regular expressions; if given, weight decay applies only to variables
            whose name matches one of them.
        weight_decay_excludes: regular expressions; weight decay does not apply to variables whose
            name matches one of them.
        grad_clipping: a limit on the gradients, or None.
        train_step_lbn: name of a blob that holds the step number, or None.
        loss_scale_policy: a loss scale, or None.
        variables: what to update; see `Variables`.

    Example:
        >>> @flow.global_function(type="train")
        ... def job() -> tp.Numpy:
        ...     w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        ...     flow.optimizer.Lion(0.1).minimize(w * w)
        ...     return w
        >>> [round(job().item(), 4) for _ in range(3)]
        [1.0, 0.9, 0.8]
    """

    lr_scheduler: LrScheduler | float
    beta1: float = 0.9
    beta2: float = 0.99
    loss_scale_factor: float | None = None
    weight_decay: float | None = None
    weight_decay_includes: Sequence[str] | str | None = None
    weight_decay_excludes: Sequence[str] | str | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables = None

    hyperparameters = ("beta1", "beta2")

    def rule(self) -> UpdateRule:
        """Return ``lion_update``."""
        return UpdateRule("lion_update", self._attrs())
