"""Helpers of all parts of the API: validation of arguments, and names of a function's ops."""

from __future__ import annotations

from math import isfinite
from numbers import Integral, Real
from typing import Any, Protocol

from flow_core.base.errors import ConfigError, InferenceError, shown
from flow_core.base.shapes import normal_axis
from flow_core.frontend.trace.blob import Blob
from flow_core.sharding.topology import MOST_DEVICES


class Check(Protocol):
    """A function that raises `InferenceError` at the user's line unless ``ok`` is true."""

    def __call__(
        self, ok: object, function: str, found: object, allowed: object, hint: str | None = None
    ) -> None:
        """Check one condition on the arguments of a function."""


def checker(prefix: str) -> Check:
    """Return a `Check` whose errors name the function ``<prefix><function>``."""

    def check(
        ok: object, function: str, found: object, allowed: object, hint: str | None = None
    ) -> None:
        if not ok:
            attempted = f"{prefix}{function}"
            raise InferenceError.at_caller(attempted, found=found, allowed=allowed, hint=hint)

    return check


check = checker("")


def check_numbers(what: str, **given: Any) -> None:
    """Raise `InferenceError` at the user's line unless all values are finite numbers."""
    for name, value in given.items():
        check(_is_finite(value), what, f"{name}={shown(value)}", "a finite number")


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, Real) and isfinite(value)
    except OverflowError:  # an integer beyond the range of floating point
        return False


def checked_count(attempted: str, value: int, least: int = 1, most: int = MOST_DEVICES) -> int:
    """Return a number of devices, rows or the like; raise `ConfigError` at the user's line unless
    it is an integer within bounds.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= value <= most:
        allowed = f"an integer from {least} to {most:,}"
        raise ConfigError.at_caller(attempted, found=shown(value), allowed=allowed)
    return int(value)


def checked_axis(check: Check, function: str, x: Blob, axis: Any) -> int:
    """Return an axis of ``x`` as a non-negative number; fail at the user's line if it is out of
    range.
    """
    rank = len(x.shape)
    fits = hasattr(axis, "__index__") and -rank <= axis < rank
    check(fits, function, f"axis {axis!r} for shape {x.shape}", f"-{rank} to {rank - 1}")
    return normal_axis(axis, rank)


def inner(name: str | None, step: str) -> str | None:
    """Return the name of an op within a function: None, for a unique name, if the function has
    none.

    >>> inner("act", "tanh"), inner(None, "tanh")
    ('act_tanh', None)
    """
    return None if name is None else f"{name}_{step}"
