"""Gradient clipping and loss scales: what ``flow.optimizer`` shows of them."""

from __future__ import annotations

from typing import Any

from flow_core.api.optim.learning_rates import check, check_numbers
from flow_core.frontend.job.train import DynamicLossScale


class ClipGradientConf:
    """Base of the ways to limit gradients."""

    @property
    def clip_conf(self) -> tuple[str, float]:
        """The literal ``(kind, limit)``."""
        raise NotImplementedError


class ClipByGlobalNorm(ClipGradientConf):
    """Scales all gradients alike so that their global norm is at most ``clip_norm``.

    Args:
        clip_norm: the largest Euclidean norm of all gradients taken together.
    """

    def __init__(self, clip_norm: float) -> None:
        check_numbers("by_global_norm", clip_norm=clip_norm)
        check(clip_norm > 0, "by_global_norm", f"clip_norm={clip_norm}", "a positive number")
        self.clip_norm = clip_norm

    @property
    def clip_conf(self) -> tuple[str, float]:
        """``("clip_by_global_norm", clip_norm)``."""
        return ("clip_by_global_norm", float(self.clip_norm))


class grad_clipping:
    """Ways to limit gradients."""

    by_global_norm = ClipByGlobalNorm


class LossScalePolicy:
    """Base of the loss scales, which keep small gradients of half-precision types from vanishing.

    The loss is multiplied before the backward pass, the gradients are divided after it.
    """

    def SetLossScaleFieldsInTrainConf(self, train_conf: object) -> None:
        """Sets the attribute of ``train_conf`` that says the same."""
        raise NotImplementedError

    def scale(self) -> float | DynamicLossScale:
        """The scale as training takes it."""
        raise NotImplementedError


class StaticLossScalePolicy(LossScalePolicy):
    """A constant loss scale.

    Args:
        loss_scale_factor: the factor.
    """

    def __init__(self, loss_scale_factor: float) -> None:
        check_numbers("static_loss_scale", loss_scale_factor=loss_scale_factor)
        check(
            loss_scale_factor > 0, "static_loss_scale", f"{loss_scale_factor}", "a positive number"
        )
        self.loss_scale_factor = loss_scale_factor

    def SetLossScaleFieldsInTrainConf(self, train_conf: Any) -> None:
        """Sets ``train_conf.loss_scale_factor``."""
        train_conf.loss_scale_factor = self.loss_scale_factor

    def scale(self) -> float:
        """The factor."""
        return float(self.loss_scale_factor)


class DynamicLossScalePolicy(LossScalePolicy):
    """A loss scale that adapts; steps whose gradients are not all finite change nothing else.

    Args:
        initial_loss_scale: the factor at the beginning.
        increment_period: good steps in a row after which the factor grows.
        multiplier: what it grows by, and what a bad step divides it by (down to 1).
    """

    def __init__(
        self,
        initial_loss_scale: float = 2**30,
        increment_period: int = 2000,
        multiplier: float = 2.0,
    ) -> None:
        check_numbers(
            "dynamic_loss_scale",
            initial_loss_scale=initial_loss_scale,
            increment_period=increment_period,
            multiplier=multiplier,
        )
        check(
            initial_loss_scale > 0 and increment_period >= 1 and multiplier > 1,
            "dynamic_loss_scale",
            f"initial_loss_scale={initial_loss_scale}, increment_period={increment_period}, "
            f"multiplier={multiplier}",
            "a positive scale, a period of at least 1 and a multiplier above 1",
        )
        self.initial_loss_scale = initial_loss_scale
        self.increment_period = increment_period
        self.multiplier = multiplier

    def SetLossScaleFieldsInTrainConf(self, train_conf: Any) -> None:
        """Sets ``train_conf.dynamic_loss_scale_policy``."""
        train_conf.dynamic_loss_scale_policy = self.scale()

    def scale(self) -> DynamicLossScale:
        """The policy as literals."""
        return DynamicLossScale(
            float(self.initial_loss_scale), int(self.increment_period), float(self.multiplier)
        )


class loss_scale:
    """Loss scales."""

    static_loss_scale = StaticLossScalePolicy
    dynamic_loss_scale = DynamicLossScalePolicy
