"""Definitions that take the place of others: cells of a notebook, jobs of the eager mode."""

from __future__ import annotations

import inspect
from typing import Any


def replaces(new: Any, old: Any, eager: bool) -> bool:
    """Whether a job is another one defined anew, which nobody means to call any more.

    So it is in the eager mode, where programs define a job for every step, and in an interactive
    interpreter, where the definition binds the very name that the old one has: a cell that is run
    again.  A program in a file runs once, so that a second job of a name there is a mistake.

    Args:
        new, old: jobs of one session.
        eager: whether the session is in the eager mode.
    """
    return new.name == old.name and (eager or _is_run_again(new.function, old.function))


def _is_run_again(new: Any, old: Any) -> bool:
    mine, theirs = inspect.unwrap(new), inspect.unwrap(old)
    namespace: dict[str, Any] = getattr(mine, "__globals__", {})
    return (
        namespace is getattr(theirs, "__globals__", None)
        and namespace.get("__name__") == "__main__"
        and "__file__" not in namespace
        and mine.__qualname__ == theirs.__qualname__
        and "<locals>" not in mine.__qualname__
    )
