"""Planning: a script is run for the job functions that it defines, and nothing else of it.

Where it would run a step, or write what belongs to the session, the script ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flow_core.base.errors import SourceLine, user_line


class ScriptEnd(SystemExit):
    """The end of a script that is planned.

    Attributes:
        what: what the script was about to do.
        at: the script's line.
    """

    def __init__(self, what: str, at: SourceLine | None) -> None:
        super().__init__(0)
        self.what = what
        self.at = at

    def __str__(self) -> str:
        return f"{self.what} at {self.at}"


_active: list[None] = []


def begin() -> None:
    """Plan from now on, until the interpreter ends."""
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
    >>> end_script("saving")  # a program that runs
    """
    begin()
    try:
        yield
    finally:
        _active.pop()


def is_planning() -> bool:
    """Whether a script is planned, and not run."""
    return bool(_active)


def end_script(what: str) -> None:
    """End a script that is planned; in a program that runs, do nothing.

    Args:
        what: what the script is about to do.

    Raises:
        ScriptEnd: a script is planned.
    """
    if _active:
        raise ScriptEnd(what, user_line(2))
