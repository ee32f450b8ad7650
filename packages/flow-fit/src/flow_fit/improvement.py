"""Comparison of a metric with its best value so far, and early stopping."""

from __future__ import annotations

from math import isnan
from typing import Literal

from flow_core.base.errors import ConfigError, shown, user_line
from flow_fit.metrics import numbers

Mode = Literal["min", "max"]
"""Whether smaller or larger values are better."""


class Improvement:
    """The best value so far.

    Args:
        mode: "min" if smaller values are better, "max" if larger ones are.
        min_delta: a value is better only if it improves on the best value by more than this number.

    Attributes:
        best: the best value, None before the first one.

    Raises:
        ConfigError: an argument is invalid.
    """

    def __init__(self, mode: Mode = "min", min_delta: float = 0.0) -> None:
        if mode not in ("min", "max") or not min_delta >= 0:
            raise ConfigError(
                type(self).__name__,
                at=user_line(2),
                found=f"mode={shown(mode)}, min_delta={shown(min_delta)}",
                allowed='"min" or "max", and a number of at least 0',
            )
        self._sign = 1 if mode == "max" else -1
        self._delta = min_delta
        self.best: float | None = None

    def improve(self, value: float) -> bool:
        """Return whether a value is better than all before; NaN never is.

        Raises:
            ConfigError: the value is not one number.
        """
        what = f"{type(self).__name__}.update"
        found = numbers(what, value)
        if found.size != 1:
            text = f"an array of shape {found.shape}"
            raise ConfigError(what, at=user_line(2), found=text, allowed="one number")
        number = float(found.reshape(()))
        if isnan(number):
            return False
        if self.best is not None and self._sign * (number - self.best) <= self._delta:
            return False
        self.best = number
        return True


class EarlyStopping(Improvement):
    """Stops a loop when a metric no longer improves.

    Args:
        patience: the number of values without an improvement after which to stop.
        mode: "min" if smaller values are better, "max" if larger ones are.
        min_delta: a value is better only if it improves on the best value by more than this number.

    Attributes:
        best: the best value, None before the first one.
        best_index: how many values came before the best one; None before the first.
        waited: the number of values since the last improvement.

    >>> stop = EarlyStopping(patience=2)
    >>> [stop.update(loss) for loss in (3.0, 2.0, 2.5, 2.1)], stop.best_index
    ([False, False, False, True], 1)
    """

    def __init__(self, patience: int = 3, mode: Mode = "min", min_delta: float = 0.0) -> None:
        super().__init__(mode, min_delta)
        if not isinstance(patience, int) or patience < 1:
            found = f"patience={shown(patience)}"
            raise ConfigError("EarlyStopping", at=user_line(2), found=found, allowed="at least 1")
        self.patience = patience
        self.best_index: int | None = None
        self.waited = 0
        self._count = 0

    def update(self, value: float) -> bool:
        """Add a value, such as the validation loss of an epoch; return whether to stop."""
        if self.improve(value):
            self.best_index, self.waited = self._count, 0
        else:
            self.waited += 1
        self._count += 1
        return self.waited >= self.patience
