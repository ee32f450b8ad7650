"""Shutdown hooks that run after the last pending step.

A program may end while steps are pending; the session delivers them from `atexit`, which calls in
reverse order.  Objects that are created after the session but that its steps use, such as loader
threads, register here instead of with `atexit`.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

from flow_core.base.forks import in_child

_closers: list[Callable[[], object]] = []


def call_at_shutdown(close: Callable[[], object]) -> None:
    """Register a function to call after all pending steps are delivered, last in first out."""
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
