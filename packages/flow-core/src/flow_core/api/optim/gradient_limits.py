"""Gradient clipping and loss scales of ``flow.optimizer``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from flow_core.api.arguments import check, check_numbers
from flow_core.frontend.job.train import DynamicLossScale


class ClipGradientConf(ABC):
    """Base class of the ways to limit gradients."""

    @property
    @abstractmethod
    def clip_conf(self) -> tuple[str, float]:
        """The literal ``(kind, limit)``."""


@dataclass(eq=False, repr=False)
class ClipByGlobalNorm(ClipGradientConf):
    """Scale all gradients by one factor so that their global norm is at most ``clip_norm``.

    The norm is computed in float64.  If it is infinite, infinite elements become NaN and all others
    0; if it is NaN, all become NaN.  With a dynamic loss scale, such a step changes no variable.

    Args:
        clip_norm: upper bound on the Euclidean norm of the concatenation of all gradients.
    """

    clip_norm: float

    def __post_init__(self) -> None:
        """Validate the norm."""
        norm = self.clip_norm
        check_numbers("by_global_norm", clip_norm=norm)
        check(norm > 0, "by_global_norm", f"clip_norm={norm}", "a positive number")

    @property
    def clip_conf(self) -> tuple[str, float]:
        """``("clip_by_global_norm", clip_norm)``."""
        return ("clip_by_global_norm", float(self.clip_norm))


class grad_clipping:
    """Namespace of the ways to limit gradients.

    >>> clipping = flow.optimizer.grad_clipping.by_global_norm(0.1)
    >>> weights(flow.optimizer.SGD(1.0, grad_clipping=clipping))
    [1.0, 0.9, 0.71]
    """

    by_global_norm = ClipByGlobalNorm


class LossScalePolicy(ABC):
    """Base class of the loss scales, which keep small half-precision gradients from vanishing.

    The loss is multiplied by the scale before the backward pass, and the gradients are divided by
    it afterwards.
    """

    @abstractmethod
    def SetLossScaleFieldsInTrainConf(self, train_conf: object) -> None:
        """Set the corresponding attribute of ``train_conf``."""

    @abstractmethod
    def scale(self) -> float | DynamicLossScale:
        """Return the scale in the form that the training options take."""


@dataclass(eq=False, repr=False)
class StaticLossScalePolicy(LossScalePolicy):
    """A constant loss scale.

    Args:
        loss_scale_factor: the factor.
    """

    loss_scale_factor: float

    def __post_init__(self) -> None:
        """Validate the factor."""
        factor = self.loss_scale_factor
        check_numbers("static_loss_scale", loss_scale_factor=factor)
        check(factor > 0, "static_loss_scale", f"{factor}", "a positive number")

    def SetLossScaleFieldsInTrainConf(self, train_conf: Any) -> None:
        """Set ``train_conf.loss_scale_factor``."""
        train_conf.loss_scale_factor = self.loss_scale_factor

    def scale(self) -> float:
        """Return the factor."""
        return float(self.loss_scale_factor)


@dataclass(eq=False, repr=False)
class DynamicLossScalePolicy(LossScalePolicy):
    """An adaptive loss scale; a step with a gradient that is not finite updates only the scale.

    Args:
        initial_loss_scale: the scale at the first step.
        increment_period: number of consecutive steps with finite gradients after which the scale
            grows.
        multiplier: growth factor; a step with a gradient that is not finite divides the scale by
            this factor, down to at least 1.
    """

    initial_loss_scale: float = 2**30
    increment_period: int = 2000
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        """Validate the numbers."""
        numbers = vars(self)
        check_numbers("dynamic_loss_scale", **numbers)
        check(
            self.initial_loss_scale > 0 and self.increment_period >= 1 and self.multiplier > 1,
            "dynamic_loss_scale",
            ", ".join(f"{name}={value}" for name, value in numbers.items()),
            "a positive scale, a period of at least 1 and a multiplier above 1",
        )

    def SetLossScaleFieldsInTrainConf(self, train_conf: Any) -> None:
        """Set ``train_conf.dynamic_loss_scale_policy``."""
        train_conf.dynamic_loss_scale_policy = self.scale()

    def scale(self) -> DynamicLossScale:
        """Return the policy as literals."""
        return DynamicLossScale(
            float(self.initial_loss_scale), int(self.increment_period), float(self.multiplier)
        )


class loss_scale:
    """Namespace of the loss scales.

    >>> policy = flow.optimizer.loss_scale.static_loss_scale(1024.0)
    >>> weights(flow.optimizer.SGD(0.1, loss_scale_policy=policy))
    [1.0, 0.8, 0.46]
    """

    static_loss_scale = StaticLossScalePolicy
    dynamic_loss_scale = DynamicLossScalePolicy
