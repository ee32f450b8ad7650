"""Learning-rate schedules and warm-up: what ``flow.optimizer`` shows of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import isfinite
from numbers import Real
from typing import Any

from flow_core.api.deprecation import deprecates
from flow_core.base.errors import InferenceError, shown, user_line
from flow_core.frontend.job.train import Schedule
from flow_core.ir.graph import AttrValue

__all__ = [
    "CosineScheduler", "CustomScheduler", "ExponentialScheduler", "InverseTimeScheduler",
    "LinearCosineScheduler", "NaturalExpScheduler", "PiecewiseConstantScheduler",
    "PiecewiseScalingScheduler", "PolynomialSchduler", "PolynomialScheduler", "warmup",
]  # fmt: skip


def check(ok: object, what: str, found: object, allowed: object, hint: str | None = None) -> None:
    """Raises `InferenceError` at the user's line unless ``ok``."""
    if not ok:
        raise InferenceError(what, at=user_line(), found=found, allowed=allowed, hint=hint)


def check_numbers(what: str, **given: object) -> None:
    """Raises `InferenceError` at the user's line unless all are finite numbers."""
    for name, value in given.items():
        check(_is_finite(value), what, f"{name}={shown(value)}", "a finite number")


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, Real) and isfinite(value)
    except OverflowError:  # an integer beyond all floating numbers
        return False


class WarmupConf:
    """Base of the warm-ups: what the learning rate does in the first steps."""

    kind = ""

    def __init__(self, steps: int, multiplier: float) -> None:
        check_numbers(f"warmup.{self.kind}", steps=steps, multiplier=multiplier)
        at_least_0 = "steps >= 0, a multiplier below 1 and above 0"
        low = multiplier >= 0 if self.kind == "linear" else multiplier > 0
        check(
            steps >= 0 and low and multiplier < 1,
            f"warmup.{self.kind}",
            f"steps={steps}, multiplier={multiplier}",
            at_least_0 + (" or 0" if self.kind == "linear" else ""),
        )
        self.steps = steps
        self._multiplier = multiplier

    @property
    def warmup_conf(self) -> tuple[str, int, float]:
        """The literal ``(kind, steps, multiplier)``."""
        return (self.kind, int(self.steps), float(self._multiplier))


class ConstantWarmup(WarmupConf):
    """The learning rate is ``base_lr * multiplier`` in the first ``steps`` steps.

    Args:
        steps: how many steps.
        multiplier: a factor between 0 and 1.
    """

    kind = "constant"

    def __init__(self, steps: int, multiplier: float) -> None:
        super().__init__(steps, multiplier)
        self.multiplier = multiplier


class LinearWarmup(WarmupConf):
    """The learning rate grows from ``base_lr * start_multiplier`` to ``base_lr`` in a line.

    Args:
        steps: how many steps.
        start_multiplier: the factor at step 0, at least 0 and below 1.
    """

    kind = "linear"

    def __init__(self, steps: int, start_multiplier: float) -> None:
        super().__init__(steps, start_multiplier)
        self.start_multiplier = start_multiplier


class warmup:
    """Warm-ups of the learning rate."""

    constant = ConstantWarmup
    linear = LinearWarmup


class LrScheduler:
    """Base of the schedules: how the learning rate moves with the number s of the step.

    During warm-up the learning rate follows the warm-up alone; afterwards s counts from the
    beginning of the training, not from the end of the warm-up.
    """

    def __init__(
        self,
        base_lr: float | None = None,
        lr_lbn: str | None = None,
        warmup: WarmupConf | None = None,
    ) -> None:
        name, known = type(self).__name__, isinstance(warmup, WarmupConf)
        check(warmup is None or known, name, f"warmup={warmup!r:.60}", "flow.optimizer.warmup.*")
        if base_lr is not None:
            check_numbers(name, base_lr=base_lr)
        self.base_lr = base_lr
        self.lr_lbn = lr_lbn
        self.warmup = warmup

    @property
    def learning_rate_decay_conf(self) -> tuple[AttrValue, ...] | None:
        """The literal ``(kind, *params)`` of the decay."""
        raise NotImplementedError

    @property
    def warmup_conf(self) -> tuple[str, int, float] | None:
        """The literal of the warm-up, None without one."""
        return None if self.warmup is None else self.warmup.warmup_conf

    def schedule(self) -> Schedule:
        """The schedule as literals."""
        decay = self.learning_rate_decay_conf
        return Schedule(float(self.base_lr or 0.0), decay, self.warmup_conf, self.lr_lbn)

    def _check_steps(self, steps: int, **others: object) -> None:
        check_numbers(type(self).__name__, steps=steps, **others)
        check(steps > 0, type(self).__name__, f"steps={steps}", "at least 1")


class CosineScheduler(LrScheduler):
    """``base_lr * ((1 - alpha) * (1 + cos(pi * s / steps)) / 2 + alpha)``, constant after steps.

    Args:
        base_lr: learning rate at the beginning.
        steps: length of the decay.
        alpha: the part of ``base_lr`` that is left at its end.
        warmup: what happens before.
    """

    def __init__(
        self, base_lr: float, steps: int, alpha: float = 0.0, warmup: WarmupConf | None = None
    ) -> None:
        super().__init__(base_lr=base_lr, warmup=warmup)
        self._check_steps(steps, alpha=alpha)
        self.steps = steps
        self.alpha = alpha

    @property
    def learning_rate_decay_conf(self) -> tuple[AttrValue, ...]:
        """``("cosine", steps, alpha)``."""
        return ("cosine", int(self.steps), float(self.alpha))


class CustomScheduler(LrScheduler):
    """The learning rate is what the job computes in the blob named ``lbn`` (float32, one element).

    Args:
        lbn: name of an op, or ``"<op>/<output>"``.
    """

    def __init__(self, lbn: str) -> None:
        check(isinstance(lbn, str), "CustomScheduler", f"lbn={lbn!r:.60}", "the name of a blob")
        super().__init__(lr_lbn=lbn)

    @property
    def learning_rate_decay_conf(self) -> None:
        """None: the job computes the learning rate."""
        return None


class PiecewiseConstantScheduler(LrScheduler):
    """``values[i]``, where i is how many of the boundaries are smaller than s.

    Args:
        boundaries: numbers of steps, growing; a step that is a boundary belongs to its left side.
        values: learning rates, one more than boundaries.
        warmup: what happens before; its base learning rate is ``values[0]``.

    Raises:
        InferenceError: the lengths do not fit.
    """

    def __init__(
        self,
        boundaries: Sequence[int],
        values: Sequence[float],
        warmup: WarmupConf | None = None,
    ) -> None:
        _check_pieces("PiecewiseConstantScheduler", "values", boundaries, values, 1)
        super().__init__(base_lr=values[0], warmup=warmup)
        self.boundaries = boundaries
        self.values = values

    @property
    def learning_rate_decay_conf(self) -> tuple[AttrValue, ...]:
        """``("piecewise_constant", boundaries, values)``."""
        values = tuple(map(float, self.values))
        return ("piecewise_constant", tuple(map(int, self.boundaries)), values)


class PiecewiseScalingScheduler(LrScheduler):
    """``base_lr``, and ``base_lr * scale[i]`` after i + 1 boundaries.

    Args:
        base_lr: learning rate before the first boundary.
        boundaries: numbers of steps, growing; a step that is a boundary belongs to its left side.
        scale: factors on ``base_lr``, as many as boundaries; one number stands for all.
        warmup: what happens before.

    Raises:
        InferenceError: the lengths do not fit.
    """

    def __init__(
        self,
        base_lr: float,
        boundaries: Sequence[int],
        scale: float | Sequence[float],
        warmup: WarmupConf | None = None,
    ) -> None:
        super().__init__(base_lr=base_lr, warmup=warmup)
        single = isinstance(scale, Real) and isinstance(boundaries, list | tuple)
        scales: Any = [scale] * len(boundaries) if single else scale
        _check_pieces("PiecewiseScalingScheduler", "scales", boundaries, scales, 0)
        self.boundaries = boundaries
        self.scale = [1, *scales]

    @property
    def learning_rate_decay_conf(self) -> tuple[AttrValue, ...]:
        """``("piecewise_scaling", boundaries, scales)``."""
        scales = tuple(map(float, self.scale))
        return ("piecewise_scaling", tuple(map(int, self.boundaries)), scales)


def _check_pieces(
    what: str, of_what: str, boundaries: Sequence[int], values: Sequence[float], more: int
) -> None:
    for name, numbers in (("boundaries", boundaries), (of_what, values)):
        listed = hasattr(numbers, "__len__") and not isinstance(numbers, str | Mapping)
        check(listed, what, f"{name} {numbers!r:.60}", "a list of numbers")
        check_numbers(what, **{f"{name}[{i}]": number for i, number in enumerate(numbers)})
    count = len(values)
    check(
        count == len(boundaries) + more,
        what,
        f"{len(boundaries)} boundaries and {count} {of_what}",
        f"{len(boundaries) + more} {of_what}",
    )
    check(list(boundaries) == sorted(boundaries), what, f"boundaries {boundaries}", "growing")


class PolynomialScheduler(LrScheduler):
    """``(base_lr - end) * (1 - s / steps) ** power + end``, constant after ``steps``.

    Args:
        base_lr: learning rate at the beginning.
        steps: length of the decay.
        end_learning_rate: learning rate at its end.
        power: power of the polynomial.
        cycle: stretch ``steps`` to its next multiple that is not below s, instead of stopping.
        warmup: what happens before.
    """

    def __init__(
        self,
        base_lr: float,
        steps: int,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        warmup: WarmupConf | None = None,
    ) -> None:
        super().__init__(base_lr=base_lr, warmup=warmup)
        self._check_steps(steps, end_learning_rate=end_learning_rate, power=power)
        self.steps = steps
        self.end_learning_rate = end_learning_rate
        self.power = power
        self.cycle = cycle

    @property
    def learning_rate_decay_conf(self) -> tuple[AttrValue, ...]:
        """``("polynomial", steps, end_learning_rate, power, cycle)``."""
        numbers = (int(self.steps), float(self.end_learning_rate), float(self.power))
        return ("polynomial", *numbers, bool(self.cycle))


@deprecates
class PolynomialSchduler(PolynomialScheduler):
    """`PolynomialScheduler` under the misspelt name that older programs use."""

    def __init__(
        self,
        base_lr: float,
        steps: int,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        warmup: WarmupConf | None = None,
    ) -> None:
        warnings.warn(
            "oneflow.optimizer.PolynomialSchduler is now PolynomialScheduler",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(base_lr, steps, end_learning_rate, power, cycle, warmup)


class LinearCosineScheduler(LrScheduler):
    """``base_lr * ((alpha + 1 - p) * (1 + cos(2 * pi * num_periods * p)) / 2 + beta)``.

    p is s / steps, at most 1.

    Args:
        base_lr: learning rate at the beginning.
        steps: length of the decay.
        num_periods: periods of the cosine in it.
        alpha: added to the linear part.
        beta: added to the product.
        warmup: what happens before.
    """

    def __init__(
        self,
        base_lr: float,
        steps: int,
        num_periods: float = 0.5,
        alpha: float = 0.0,
        beta: float = 0.001,
        warmup: WarmupConf | None = None,
    ) -> None:
        super().__init__(base_lr=base_lr, warmup=warmup)
        self._check_steps(steps, num_periods=num_periods, alpha=alpha, beta=beta)
        self.steps = steps
        self.num_periods = num_periods
        self.alpha = alpha
        self.beta = beta

    @property
    def learning_rate_decay_conf(self) -> tuple[AttrValue, ...]:
        """``("linear_cosine", steps, num_periods, alpha, beta)``."""
        numbers = (self.num_periods, self.alpha, self.beta)
        return ("linear_cosine", int(self.steps), *map(float, numbers))


class _RateScheduler(LrScheduler):
    """The schedules with a period, a rate per period, and perhaps steps instead of a curve."""

    kind = ""

    def __init__(
        self,
        base_lr: float,
        steps: int,
        decay_rate: float,
        staircase: bool = False,
        warmup: WarmupConf | None = None,
    ) -> None:
        super().__init__(base_lr=base_lr, warmup=warmup)
        self._check_steps(steps, decay_rate=decay_rate)
        self.steps = steps
        self.decay_rate = decay_rate
        self.staircase = staircase

    @property
    def learning_rate_decay_conf(self) -> tuple[AttrValue, ...]:
        """``(kind, steps, decay_rate, staircase)``."""
        return (self.kind, int(self.steps), float(self.decay_rate), bool(self.staircase))


class ExponentialScheduler(_RateScheduler):
    """``base_lr * decay_rate ** (s / steps)``.

    Args:
        base_lr: learning rate at the beginning.
        steps: steps per factor of ``decay_rate``.
        decay_rate: the factor.
        staircase: round s / steps down.
        warmup: what happens before.
    """

    kind = "exponential"


class InverseTimeScheduler(_RateScheduler):
    """``base_lr / (1 + decay_rate * s / steps)``.

    Args:
        base_lr: learning rate at the beginning.
        steps: length of a period.
        decay_rate: added to the denominator per period.
        staircase: round s / steps down.
        warmup: what happens before.
    """

    kind = "inverse_time"


class NaturalExpScheduler(_RateScheduler):
    """``base_lr * exp(-decay_rate * s / steps)``.

    Args:
        base_lr: learning rate at the beginning.
        steps: length of a period.
        decay_rate: what the exponent falls by per period.
        staircase: round s / steps down.
        warmup: what happens before.
    """

    kind = "natural_exp"
