"""Shutdown hooks that run after the last pending step.

A program may end while steps are pending.  The session delivers these steps in an `atexit` handler,
and `atexit` calls handlers in reverse order of registration.  Therefore, objects that are created
after the session but used by its steps, such as loader threads, register here and not with
`atexit`.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

from flow_core.base.forks import in_child

_closers: list[Callable[[], object]] = []


def call_at_shutdown(close: Callable[[], object]) -> None:
    """Register a function to call after the delivery of all pending steps, last in, first out."""
    _closers.append(close)


def cancel_at_shutdown(close: Callable[[], object]) -> None:
    """Unregister a shutdown hook."""
    if close in _closers:
        _closers.remove(close)


def run_shutdown_calls() -> None:
    """Run all hooks, each once."""
    while _closers:
        _closers.pop()()


in_child(_closers.clear)  # the hooks close objects of the parent
# The session imports this module, so its own handler is registered later and runs first.
atexit.register(run_shutdown_calls)
