"""Scopes for views, placements and names: ``flow.scope``.

Args:
    device_tag: a device type, such as "cpu" or "gpu".
    machine_device_ids: machine and device numbers, such as ``"0:0"``, ``"0:0-3"`` or
        ``["0:0-1", "1:0-1"]``.

Returns: A context manager.
"""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.frontend.config.scope import (
    Entering,
    consistent_view,
    current_scope,
    mirrored_view,
    name_scope,
    placement,
    reuse_variables,
    scope_config,
)

config = scope_config

__all__ = [
    "config", "consistent_view", "consistent_view_enabled", "current_scope",
    "device_prior_placement", "fixed_placement", "mirrored_view", "mirrored_view_enabled",
    "namespace", "placement", "reuse_variables",
]  # fmt: skip


def namespace(name: str) -> Entering:
    """Prefix the names of all ops and variables that a ``with`` block defines.

    Args:
        name: the prefix.

    >>> @flow.global_function()
    ... def job() -> tp.Numpy:
    ...     with flow.scope.namespace("block"):
    ...         return flow.get_variable("w", (1,), initializer=flow.ones_initializer())
    >>> _ = job()
    >>> list(flow.get_all_variables())
    ['block-w']
    """
    return name_scope(name)


def consistent_view_enabled() -> bool:
    """Return whether the current view is consistent.

    Returns: True or False.

    >>> _ = run(lambda x: print(flow.scope.consistent_view_enabled()) or x, [1, 2])
    True
    """
    return not current_scope().mirrored


def mirrored_view_enabled() -> bool:
    """Return whether the current view is mirrored.

    Returns: True or False.

    >>> _ = run(lambda x: print(flow.scope.mirrored_view_enabled()) or x, [1, 2])
    False
    """
    return current_scope().mirrored


def fixed_placement(device_tag: str, machine_device_ids: str | Sequence[str]) -> Entering:
    """Set the placement of ops in a ``with`` block; older name of `placement`.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
    ...     with flow.fixed_placement("cpu", "0:0"):
    ...         return 2 * x
    >>> job([1, 2])
    array([2., 4.], dtype=float32)
    """
    return placement(device_tag, machine_device_ids)


def device_prior_placement(device_tag: str, machine_device_ids: str | Sequence[str]) -> Entering:
    """Set the placement of ops in a ``with`` block; older name of `placement`.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
    ...     with flow.device_prior_placement("cpu", "0:0"):
    ...         return 2 * x
    >>> job([1, 2])
    array([2., 4.], dtype=float32)
    """
    return placement(device_tag, machine_device_ids)
