"""Job definitions that replace earlier definitions, in notebooks and in eager mode."""

from __future__ import annotations

import inspect
from typing import Any


def replaces(new: Any, old: Any, eager: bool) -> bool:
    """Return whether a job redefines an older job, which is then dropped.

    This is the case in eager mode, where programs define a job for every step, and in interactive
    interpreters, when a cell is run again and binds the same name.  In a script, which runs each
    definition once, a second job of the same name is an error.
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
