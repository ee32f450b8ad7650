"""Requested distributions: ``flow.distribute``."""

from __future__ import annotations

from dataclasses import dataclass

from flow_core.api.deprecation import deprecates
from flow_core.base.errors import InferenceError, user_line
from flow_core.frontend.config.scope import Entering, consistent_view, current_scope, mirrored_view

__all__ = [
    "assert_is_valid_distribute",
    "auto",
    "broadcast",
    "consistent_strategy",
    "consistent_strategy_enabled",
    "mirrored_strategy",
    "mirrored_strategy_enabled",
    "split",
]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A requested distribution.

    Attributes:
        kind: "split", "broadcast" or "auto".
        axis: the axis of a split, None otherwise.
    """

    kind: str
    axis: int | None = None


def split(axis: int) -> Distribution:
    """Request a split over the devices along an axis."""
    if not isinstance(axis, int):
        raise InferenceError(
            "distribute.split", at=user_line(2), found=repr(axis), allowed="an integer axis"
        )
    return Distribution("split", axis)


def broadcast() -> Distribution:
    """Request the whole blob on each device."""
    return Distribution("broadcast")


def auto() -> Distribution:
    """Leave the distribution to the compiler."""
    return Distribution("auto")


def assert_is_valid_distribute(distribute: object) -> None:
    """Raise `InferenceError` unless the argument is a `split`, `broadcast` or `auto`."""
    if not isinstance(distribute, Distribution):
        raise InferenceError(
            "use of a distribution",
            at=user_line(2),
            found=f"{distribute!r:.60}",
            allowed="flow.distribute.split(axis), broadcast() or auto()",
        )


@deprecates
def consistent_strategy() -> Entering:
    """Older name of ``flow.scope.consistent_view``."""
    return consistent_view()


@deprecates
def mirrored_strategy() -> Entering:
    """Older name of ``flow.scope.mirrored_view``."""
    return mirrored_view()


@deprecates
def consistent_strategy_enabled() -> bool:
    """Whether the current view is consistent."""
    return not current_scope().mirrored


@deprecates
def mirrored_strategy_enabled() -> bool:
    """Whether the current view is mirrored."""
    return current_scope().mirrored
