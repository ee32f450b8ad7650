"""Registry of the names that are kept only for older programs."""

from __future__ import annotations

from typing import Any

__all__ = ["deprecates", "is_deprecated"]

_deprecated: set[Any] = set()


def deprecates(function_or_class: object) -> Any:
    """Mark a function or class as deprecated for `is_deprecated`, and return it."""
    _deprecated.add(function_or_class)
    return function_or_class


def is_deprecated(func_or_class: object) -> bool:
    """Return whether a function or class of OneFlow is kept only for older programs.

    Args:
        func_or_class: a function or class.

    Returns: True or False.

    >>> flow.is_deprecated(flow.nn.relu)
    False
    """
    try:
        return getattr(func_or_class, "__wrapped__", func_or_class) in _deprecated
    except TypeError:  # unhashable, so never marked
        return False
