"""The end of the interpreter: what steps use is closed after the last pending step.

A program may end while steps that it asked for are still to come; the session delivers them from
`atexit`, which calls in reverse order.  Whatever was made after the session, and would be closed
before it, such as threads that make batches, is told of here instead.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

from flow_core.base.forks import in_child

_closers: list[Callable[[], object]] = []


def call_at_shutdown(close: Callable[[], object]) -> None:
    """Has a function called when all pending steps have been delivered, the latest one first."""
    _closers.append(close)


def cancel_at_shutdown(close: Callable[[], object]) -> None:
    """Forgets a function that was to be called."""
    if close in _closers:
        _closers.remove(close)


def run_shutdown_calls() -> None:
    """Calls the functions, each once."""
    while _closers:
        _closers.pop()()


in_child(_closers.clear)  # what they close is the parent's
atexit.register(
    run_shutdown_calls
)  # the session imports this module, and registers itself after it
