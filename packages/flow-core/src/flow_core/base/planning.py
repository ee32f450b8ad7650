"""Planning: run a script only to collect the job functions that it defines.

The script ends where it would run a step or modify the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flow_core.base.errors import SourceLine, user_line


class ScriptEnd(SystemExit):
    """Ends a script during planning."""

    def __init__(self, what: str, at: SourceLine | None) -> None:
        super().__init__(0)
        self.what = what  # the action that the script was about to take
        self.at = at

    def __str__(self) -> str:
        return f"{self.what} at {self.at}"


_active: list[None] = []


def begin() -> None:
    """Start planning, which lasts until the interpreter ends."""
    _active.append(None)


@contextmanager
def planning() -> Iterator[None]:
    """Plan in a ``with`` block.

    >>> with planning():
    ...     try:
    ...         end_script("saving")
    ...     except ScriptEnd as end:
    ...         print(end.what)
    saving
    >>> end_script("saving")  # no planning
    """
    begin()
    try:
        yield
    finally:
        _active.pop()


def is_planning() -> bool:
    """Return whether the script runs only for planning."""
    return bool(_active)


def end_script(what: str) -> None:
    """End the script during planning; otherwise do nothing.

    Raises:
        ScriptEnd: planning is active.
    """
    if _active:
        raise ScriptEnd(what, user_line(2))
