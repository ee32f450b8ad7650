"""Comparison of a metric with its best value so far, and early stopping."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any, ClassVar, Literal

from flow_core.base.errors import nearest, shown
from flow_fit.arguments import check, check_count, is_number, number

Mode = Literal["min", "max"]
"""Whether smaller or larger values are better."""


class Improvement:
    """The best value of a metric so far; a callback of `fit`.

    Args:
        mode: "min" if smaller values are better, "max" if larger ones are.
        min_delta: a value is better only if it improves on the best value by more than this number.
        metric: the name of the metric among the numbers of an epoch, for `fit`.

    Raises:
        ConfigError: an argument is invalid.
    """

    STATE: ClassVar[tuple[str, ...]] = ("best",)
    """The attributes that change, which `fit` saves."""

    def __init__(self, mode: Mode = "min", min_delta: float = 0.0, *, metric: str = "loss") -> None:
        fits = isinstance(mode, str) and mode in ("min", "max")
        found = f"mode={shown(mode)}, min_delta={shown(min_delta)}"
        allowed = '"min" or "max", and a number of at least 0'
        fits = fits and is_number(min_delta) and min_delta >= 0
        check(fits, type(self).__name__, found, allowed)
        named = isinstance(metric, str)
        check(named, type(self).__name__, f"metric={shown(metric)}", "the name of a number")
        self._sign = 1 if mode == "max" else -1
        self._delta = min_delta
        self.metric = metric
        self.best: float | None = None  # the best value, None before the first one

    def __repr__(self) -> str:
        state = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.STATE)
        return f"{type(self).__name__}(metric={self.metric!r}, {state})"

    def __call__(self, numbers: Mapping[str, float]) -> bool:
        """Update with the numbers of an epoch; return whether training should end.

        Raises:
            ConfigError: the numbers do not have the metric.
        """
        check(
            self.metric in numbers,
            type(self).__name__,
            f"no metric {self.metric!r}",
            f"a number of the epoch: {', '.join(numbers)}",
            nearest(self.metric, numbers) or "return it from the function evaluate",
        )
        return self.update(numbers[self.metric]) and self.ends

    ends: ClassVar[bool] = False
    """Whether training ends when `update` returns True."""

    def update(self, value: float) -> bool:
        """Compare a value with the best one; return whether it is better."""
        return self.improve(value)

    def state(self) -> dict[str, Any]:
        """Return what changes, as values that JSON can hold."""
        return {name: getattr(self, name) for name in self.STATE}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set what `state` returned."""
        for name in self.STATE:
            setattr(self, name, state[name])

    def improve(self, value: float) -> bool:
        """Return whether a value is better than all before; NaN never is.

        Raises:
            ConfigError: the value is not one number.
        """
        found = number(f"{type(self).__name__}.update", value)
        if isnan(found):
            return False
        if self.best is not None and self._sign * (found - self.best) <= self._delta:
            return False
        self.best = found
        return True


class EarlyStopping(Improvement):
    """Stops a loop when a metric no longer improves.

    Args:
        patience: the number of values without an improvement after which to stop.
        mode: "min" if smaller values are better, "max" if larger ones are.
        min_delta: a value is better only if it improves on the best value by more than this number.
        metric: the name of the metric among the numbers of an epoch, for `fit`.

    Attributes:
        best: the best value, None before the first one.
        best_index: how many values came before the best one; None before the first.
        waited: the number of values since the last improvement.

    >>> stop = EarlyStopping(patience=2)
    >>> [stop.update(loss) for loss in (3.0, 2.0, 2.5, 2.1)], stop.best_index
    ([False, False, False, True], 1)
    """

    STATE = ("best", "best_index", "waited", "count")
    ends = True

    def __init__(
        self, patience: int = 3, mode: Mode = "min", min_delta: float = 0.0, *, metric: str = "loss"
    ) -> None:
        super().__init__(mode, min_delta, metric=metric)
        check_count("EarlyStopping", "patience", patience)
        self.patience = int(patience)
        self.best_index: int | None = None
        self.waited = 0
        self.count = 0

    def update(self, value: float) -> bool:
        """Add a value, such as the validation loss of an epoch; return whether to stop."""
        if self.improve(value):
            self.best_index, self.waited = self.count, 0
        else:
            self.waited += 1
        self.count += 1
        return self.waited >= self.patience


class ReduceOnPlateau(Improvement):
    """A learning rate that is reduced when a metric no longer improves.

    Feed ``rate`` to the train job in each step, and use it there by its name:
    ``flow.optimizer.SGD(flow.optimizer.CustomScheduler(rate.logical_blob_name))``.

    Args:
        rate: the learning rate at first.
        factor: what the rate is multiplied by, between 0 and 1.
        patience: the number of values without an improvement after which to reduce the rate.
        min_rate: the smallest rate.
        mode: "min" if smaller values are better, "max" if larger ones are.
        min_delta: a value is better only if it improves on the best value by more than this number.
        metric: the name of the metric among the numbers of an epoch, for `fit`.

    Attributes:
        rate: the learning rate.
        best: the best value, None before the first one.
        waited: the number of values since the last improvement or reduction.

    Raises:
        ConfigError: an argument is invalid.

    >>> plateau = ReduceOnPlateau(0.1, factor=0.5, patience=2)
    >>> [plateau.update(loss) and plateau.rate for loss in (3.0, 3.5, 3.1, 2.0)]
    [False, False, 0.05, False]
    """

    STATE = ("rate", "best", "waited")

    def __init__(
        self,
        rate: float,
        factor: float = 0.1,
        patience: int = 10,
        min_rate: float = 0.0,
        mode: Mode = "min",
        min_delta: float = 0.0,
        *,
        metric: str = "loss",
    ) -> None:
        super().__init__(mode, min_delta, metric=metric)
        fits = all(map(is_number, (rate, factor, min_rate)))
        check(
            fits and rate > 0 and 0 < factor < 1 and 0 <= min_rate <= rate,
            "ReduceOnPlateau",
            f"rate={shown(rate)}, factor={shown(factor)}, min_rate={shown(min_rate)}",
            "a positive rate, a factor between 0 and 1, and min_rate from 0 to rate",
        )
        check_count("ReduceOnPlateau", "patience", patience)
        self.patience = int(patience)
        self.rate, self.factor, self.min_rate = float(rate), factor, float(min_rate)
        self.waited = 0

    def update(self, value: float) -> bool:
        """Add a value, such as the validation loss of an epoch; return whether the rate fell."""
        self.waited = 0 if self.improve(value) else self.waited + 1
        if self.waited < self.patience or self.rate <= self.min_rate:
            return False
        self.rate, self.waited = max(self.rate * self.factor, self.min_rate), 0
        return True
