"""Checks of arguments; their errors name the line of the program."""

from __future__ import annotations

from math import isfinite
from numbers import Integral, Real
from os import PathLike
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import ConfigError, described, shown
from flow_core.base.host_arrays import host_array


def check(ok: object, what: str, found: str, allowed: str, hint: str | None = None) -> None:
    """Raise `ConfigError` at the line of the program unless a condition holds."""
    if not ok:
        raise ConfigError.at_caller(what, found=found, allowed=allowed, hint=hint)


def check_callable(what: str, name: str, value: object, allowed: str) -> None:
    """Raise `ConfigError` unless an argument can be called."""
    check(callable(value), what, f"{name}={shown(value)}", allowed)


def check_iterable(what: str, name: str, value: object, allowed: str) -> None:
    """Raise `ConfigError` unless an argument can be iterated."""
    fits = hasattr(type(value), "__iter__") or hasattr(type(value), "__getitem__")
    check(fits, what, f"{name}={shown(value)}", allowed)


def check_count(what: str, name: str, value: object, least: int = 1) -> None:
    """Raise `ConfigError` unless an argument is an integer of at least ``least``."""
    fits = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
    allowed = "a positive integer" if least == 1 else f"an integer of at least {least}"
    check(fits, what, f"{name}={shown(value)}", allowed)


def check_path(what: str, name: str, value: object) -> None:
    """Raise `ConfigError` unless an argument is a path."""
    check(isinstance(value, str | PathLike), what, f"{name}={shown(value)}", "a path")


def is_number(value: object) -> bool:
    """Return whether a value is one finite real number.

    >>> [is_number(value) for value in (1, np.float32(2), float("nan"), "1", None)]
    [True, True, False, False, False]
    """
    return isinstance(value, Real | np.bool_) and isfinite(value)


def numbers(what: str, value: object) -> Array:
    """Return numbers as float64.

    Args:
        value: an array, tensor, number or nested list.

    Raises:
        ConfigError: the value is anything else, such as text, None or complex numbers.
    """
    allowed = "real numbers"
    try:
        found = host_array(value)
        if found.dtype.kind not in "SUOMmc":
            return found.astype(np.float64)
    except Exception as error:  # lists of lists of different lengths, and foreign objects
        raise ConfigError.at_caller(what, found=described(error), allowed=allowed) from error
    raise ConfigError.at_caller(what, found=shown(value), allowed=allowed)


def number(what: str, value: Any) -> float:
    """Return one number; raise `ConfigError` if the value is anything else."""
    found = numbers(what, value)
    check(found.size == 1, what, f"an array of shape {found.shape}", "one number")
    return float(found.reshape(()))
