"""Scopes for views, placements and names: ``flow.scope``."""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.frontend.config.scope import (
    Entering,
    consistent_view,
    current_scope,
    mirrored_view,
    name_scope,
    placement,
    scope_config,
)

config = scope_config

__all__ = [
    "config",
    "consistent_view",
    "consistent_view_enabled",
    "current_scope",
    "device_prior_placement",
    "fixed_placement",
    "mirrored_view",
    "mirrored_view_enabled",
    "namespace",
    "placement",
]


def namespace(name: str) -> Entering:
    """Prefix the names of all ops and variables that a ``with`` block defines."""
    return name_scope(name)


def consistent_view_enabled() -> bool:
    """Return whether the current view is consistent."""
    return not current_scope().mirrored


def mirrored_view_enabled() -> bool:
    """Return whether the current view is mirrored."""
    return current_scope().mirrored


def fixed_placement(device_tag: str, machine_device_ids: str | Sequence[str]) -> Entering:
    """Set the placement of ops in a ``with`` block; older name of `placement`."""
    return placement(device_tag, machine_device_ids)


def device_prior_placement(device_tag: str, machine_device_ids: str | Sequence[str]) -> Entering:
    """Set the placement of ops in a ``with`` block; older name of `placement`."""
    return placement(device_tag, machine_device_ids)
