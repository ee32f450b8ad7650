"""Learning-rate schedules and warm-ups of ``flow.optimizer``.

Each schedule and warm-up is a dataclass, whose fields are its arguments and whose base class
validates them.  In the formulas, s is the number of the step, starting at 0.

Args:
    base_lr: learning rate at the beginning.
    steps: length of the decay.
    boundaries: increasing step numbers; a boundary itself belongs to the interval on its left.
    staircase: whether to round s / steps down.
    end_learning_rate: learning rate at the end of the decay.
    power: exponent of the polynomial.
    cycle: whether to replace ``steps`` by its smallest positive multiple of at least s, instead
        of ending the decay after ``steps``.
    warmup: the warm-up that precedes the decay, or None.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, ClassVar

from flow_core.api.arguments import check, check_numbers
from flow_core.api.deprecation import deprecates
from flow_core.frontend.job.train import Schedule
from flow_core.ir.graph import AttrValue

__all__ = [
    "CosineScheduler", "CustomScheduler", "ExponentialScheduler", "InverseTimeScheduler",
    "LinearCosineScheduler", "NaturalExpScheduler", "PiecewiseConstantScheduler",
    "PiecewiseScalingScheduler", "PolynomialSchduler", "PolynomialScheduler", "warmup",
]  # fmt: skip


_WHOLE = "a whole number of at least 1"


def _is_whole(number: float) -> bool:
    """Return whether a finite number has no fraction, as 1e3, but not a learning rate."""
    return float(number).is_integer()


class WarmupConf(ABC):
    """Base class of the warm-ups, which determine the learning rate in the first steps.

    Attributes:
        kind: "constant" or "linear".
    """

    kind: ClassVar[str]

    steps: int

    @abstractmethod
    def _factor(self) -> float:
        """Return the factor at step 0."""

    def __post_init__(self) -> None:
        """Validate the arguments."""
        name, factor, linear = f"warmup.{self.kind}", self._factor(), self.kind == "linear"
        check_numbers(name, steps=self.steps, multiplier=factor)
        low = factor >= 0 if linear else factor > 0
        found = f"steps={self.steps}, multiplier={factor}"
        steps = "a whole number of steps, at least 0"
        allowed = f"{steps}, and a multiplier below 1 and above 0" + (" or 0" if linear else "")
        whole = _is_whole(self.steps) and self.steps >= 0
        check(whole and low and factor < 1, name, found, allowed)

    @property
    def warmup_conf(self) -> tuple[str, int, float]:
        """The literal ``(kind, steps, multiplier)``."""
        return (self.kind, int(self.steps), float(self._factor()))


@dataclass(eq=False, repr=False)
class ConstantWarmup(WarmupConf):
    """A learning rate of ``base_lr * multiplier`` in the first ``steps`` steps.

    Args:
        steps: number of steps.
        multiplier: a factor between 0 and 1.
    """

    kind = "constant"

    steps: int
    multiplier: float

    def _factor(self) -> float:
        return self.multiplier


@dataclass(eq=False, repr=False)
class LinearWarmup(WarmupConf):
    """A learning rate that grows linearly from ``base_lr * start_multiplier`` to ``base_lr``.

    Args:
        steps: number of steps.
        start_multiplier: the factor at step 0, at least 0 and less than 1.
    """

    kind = "linear"

    steps: int
    start_multiplier: float

    def _factor(self) -> float:
        return self.start_multiplier


class warmup:
    """Namespace of the warm-ups of the learning rate.

    >>> rates(flow.optimizer.CosineScheduler(1.0, 100, warmup=flow.optimizer.warmup.linear(4, 0.0)))
    [0.0, 0.25, 0.5, 0.75]
    """

    constant = ConstantWarmup
    linear = LinearWarmup


_LITERALS: Mapping[str, type] = {"steps": int, "cycle": bool, "staircase": bool}
"""Types of the parameters in a decay literal that are not floats."""


class LrScheduler:
    """Base class of the schedules, which define the learning rate as a function of the step number
    s.

    During warm-up, only the warm-up determines the learning rate.  After the warm-up, s still
    counts from the beginning of the training, not from the end of the warm-up.

    Attributes:
        kind: name that the op ``learning_rate_schedule`` uses for the decay.
        base_lr: learning rate before the decay.
        warmup: the warm-up, or None.
        lr_lbn: name of the blob that holds the learning rate, or None.
    """

    kind: ClassVar[str] = ""

    base_lr: float | None
    lr_lbn: str | None = None
    warmup: WarmupConf | None = None

    def __post_init__(self) -> None:
        """Validate the arguments."""
        name, warmup = type(self).__name__, self.warmup
        known = warmup is None or isinstance(warmup, WarmupConf)
        check(known, name, f"warmup={warmup!r:.60}", "flow.optimizer.warmup.*")
        if self.base_lr is not None:
            check_numbers(name, base_lr=self.base_lr)
        self._check_decay(name)

    @property
    def learning_rate_decay_conf(self) -> tuple[AttrValue, ...] | None:
        """The literal ``(kind, *parameters)`` of the decay, in the order of the arguments."""
        typed = ((_LITERALS.get(k, float), v) for k, v in self._parameters().items())
        return (self.kind, *(type_(value) for type_, value in typed))

    @property
    def warmup_conf(self) -> tuple[str, int, float] | None:
        """The literal of the warm-up, or None without one."""
        return None if self.warmup is None else self.warmup.warmup_conf

    def schedule(self) -> Schedule:
        """Return the schedule as literals."""
        decay = self.learning_rate_decay_conf
        return Schedule(float(self.base_lr or 0.0), decay, self.warmup_conf, self.lr_lbn)

    def _parameters(self) -> dict[str, Any]:
        """Return the parameters of the decay: all arguments except ``base_lr`` and ``warmup``."""
        names = (f.name for f in fields(self))  # type: ignore[arg-type]  # subclasses are dataclasses
        return {name: getattr(self, name) for name in names if name not in ("base_lr", "warmup")}

    def _check_decay(self, name: str) -> None:
        """Validate the parameters of the decay."""
        numbers = {k: v for k, v in self._parameters().items() if _LITERALS.get(k) is not bool}
        check_numbers(name, **numbers)
        check(_is_whole(steps := numbers["steps"]) and steps > 0, name, f"steps={steps}", _WHOLE)


@dataclass(eq=False, repr=False)
class CosineScheduler(LrScheduler):
    """``base_lr * ((1 - alpha) * (1 + cos(pi * s / steps)) / 2 + alpha)``, constant after
    ``steps``.

    Args:
        alpha: final learning rate as a fraction of ``base_lr``.

    >>> rates(flow.optimizer.CosineScheduler(1.0, steps=4))
    [1.0, 0.8536, 0.5, 0.1464]
    """

    kind = "cosine"

    base_lr: float
    steps: int
    alpha: float = 0.0
    warmup: WarmupConf | None = None


class CustomScheduler(LrScheduler):
    """The learning rate that the job computes in the blob ``lbn``, a single float32 element.

    Args:
        lbn: the blob's name: that of its op, or ``"<op>/<output>"``.

    >>> @flow.global_function(type="train")
    ... def job(rate: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
    ...     w = flow.get_variable("w", (1,), initializer=flow.zeros_initializer())
    ...     schedule = flow.optimizer.CustomScheduler(rate.logical_blob_name)
    ...     flow.optimizer.SGD(schedule, momentum=0).minimize(-w)
    ...     return w
    >>> [job([rate]).item() for rate in (0.5, 0.25, 0)]
    [0.0, 0.5, 0.75]
    """

    def __init__(self, lbn: str) -> None:
        check(isinstance(lbn, str), "CustomScheduler", f"lbn={lbn!r:.60}", "the name of a blob")
        self.base_lr = None
        self.lr_lbn = lbn

    @property
    def learning_rate_decay_conf(self) -> None:
        """Return None, since the job computes the learning rate."""
        return None


@dataclass(eq=False, repr=False)
class PiecewiseConstantScheduler(LrScheduler):
    """A learning rate of ``values[i]``, where i is the number of boundaries less than s.

    Args:
        values: learning rates, one more than the number of boundaries.
        warmup: the warm-up, or None; its base learning rate is ``values[0]``.

    Raises: InferenceError: the lengths of the lists do not match.

    >>> rates(flow.optimizer.PiecewiseConstantScheduler([2], [1.0, 0.1]))
    [1.0, 1.0, 1.0, 0.1]
    """

    kind = "piecewise_constant"

    boundaries: Sequence[int]
    values: Sequence[float]
    warmup: WarmupConf | None = None

    def __post_init__(self) -> None:
        """Validate the arguments, and set ``base_lr``."""
        _check_pieces(type(self).__name__, "values", self.boundaries, self.values, 1)
        self.base_lr = self.values[0]
        super().__post_init__()

    @property
    def learning_rate_decay_conf(self) -> tuple[AttrValue, ...]:
        """``("piecewise_constant", boundaries, values)``."""
        return (self.kind, tuple(map(int, self.boundaries)), tuple(map(float, self.values)))

    def _check_decay(self, name: str) -> None:
        """Check nothing: `__post_init__` validated all arguments."""


@dataclass(eq=False, repr=False)
class PiecewiseScalingScheduler(LrScheduler):
    """A learning rate of ``base_lr``, and of ``base_lr * scale[i]`` after i + 1 boundaries.

    Args:
        base_lr: learning rate before the first boundary.
        scale: factors on ``base_lr``, one for each boundary; a single number applies to all of
            them.

    Raises: InferenceError: the lengths of the lists do not match.

    >>> rates(flow.optimizer.PiecewiseScalingScheduler(1.0, [2], 0.1))
    [1.0, 1.0, 1.0, 0.1]
    """

    kind = "piecewise_scaling"

    base_lr: float
    boundaries: Sequence[int]
    scale: float | Sequence[float]
    warmup: WarmupConf | None = None

    @property
    def learning_rate_decay_conf(self) -> tuple[AttrValue, ...]:
        """``("piecewise_scaling", boundaries, scales)``."""
        scales: Any = self.scale
        return (self.kind, tuple(map(int, self.boundaries)), tuple(map(float, scales)))

    def _check_decay(self, name: str) -> None:
        """Validate the boundaries, and replace ``scale`` by the list of all factors."""
        single = isinstance(self.scale, Real) and isinstance(self.boundaries, list | tuple)
        scales: Any = [self.scale] * len(self.boundaries) if single else self.scale
        _check_pieces(name, "scales", self.boundaries, scales, 0)
        self.scale = [1, *scales]


def _check_pieces(
    what: str, of_what: str, boundaries: Sequence[int], values: Sequence[float], more: int
) -> None:
    for name, numbers in (("boundaries", boundaries), (of_what, values)):
        listed = hasattr(numbers, "__len__") and not isinstance(numbers, str | Mapping)
        check(listed, what, f"{name} {numbers!r:.60}", "a list of numbers")
        check_numbers(what, **{f"{name}[{i}]": number for i, number in enumerate(numbers)})
    check(all(map(_is_whole, boundaries)), what, f"boundaries {boundaries}", "whole numbers")
    count = len(values)
    check(
        count == len(boundaries) + more,
        what,
        f"{len(boundaries)} boundaries and {count} {of_what}",
        f"{len(boundaries) + more} {of_what}",
    )
    check(list(boundaries) == sorted(boundaries), what, f"boundaries {boundaries}", "growing")


@dataclass(eq=False, repr=False)
class PolynomialScheduler(LrScheduler):
    """``(base_lr - end) * (1 - s / steps) ** power + end``, constant after ``steps``.

    >>> rates(flow.optimizer.PolynomialScheduler(1.0, steps=4, end_learning_rate=0.0))
    [1.0, 0.75, 0.5, 0.25]
    """

    kind = "polynomial"

    base_lr: float
    steps: int
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False
    warmup: WarmupConf | None = None


@deprecates
class PolynomialSchduler(PolynomialScheduler):
    """`PolynomialScheduler` under the misspelt name that older programs use."""

    def __post_init__(self) -> None:
        """Warn that the name is misspelt, and validate the arguments."""
        warnings.warn(
            "oneflow.optimizer.PolynomialSchduler is now PolynomialScheduler",
            DeprecationWarning,
            stacklevel=3,
        )
        super().__post_init__()


@dataclass(eq=False, repr=False)
class LinearCosineScheduler(LrScheduler):
    """``base_lr * ((alpha + 1 - p) * (1 + cos(2 * pi * num_periods * p)) / 2 + beta)``.

    Here p is s / steps, but at most 1.

    Args:
        num_periods: number of cosine periods in ``steps``.
        alpha: added to the linear factor.
        beta: added to the product.

    >>> rates(flow.optimizer.LinearCosineScheduler(1.0, steps=4))
    [1.001, 0.6412, 0.251, 0.0376]
    """

    kind = "linear_cosine"

    base_lr: float
    steps: int
    num_periods: float = 0.5
    alpha: float = 0.0
    beta: float = 0.001
    warmup: WarmupConf | None = None


@dataclass(eq=False, repr=False)
class _RateScheduler(LrScheduler):
    """Base class of the schedules that have a period, a rate per period, and a staircase form."""

    base_lr: float
    steps: int
    decay_rate: float
    staircase: bool = False
    warmup: WarmupConf | None = None


class ExponentialScheduler(_RateScheduler):
    """``base_lr * decay_rate ** (s / steps)``.

    Args:
        steps: number of steps after which the rate is multiplied by ``decay_rate`` once.
        decay_rate: the factor.

    >>> rates(flow.optimizer.ExponentialScheduler(1.0, steps=2, decay_rate=0.5))
    [1.0, 0.7071, 0.5, 0.3536]
    """

    kind = "exponential"


class InverseTimeScheduler(_RateScheduler):
    """``base_lr / (1 + decay_rate * s / steps)``.

    Args:
        steps: length of a period.
        decay_rate: growth of the denominator per period.

    >>> rates(flow.optimizer.InverseTimeScheduler(1.0, steps=1, decay_rate=1.0))
    [1.0, 0.5, 0.3333, 0.25]
    """

    kind = "inverse_time"


class NaturalExpScheduler(_RateScheduler):
    """``base_lr * exp(-decay_rate * s / steps)``.

    Args:
        steps: length of a period.
        decay_rate: decrease of the exponent per period.

    >>> rates(flow.optimizer.NaturalExpScheduler(1.0, steps=1, decay_rate=1.0))
    [1.0, 0.3679, 0.1353, 0.0498]
    """

    kind = "natural_exp"
