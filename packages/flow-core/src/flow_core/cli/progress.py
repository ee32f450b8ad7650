"""A progress line on standard error, while a command compiles and measures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str], object]
"""A function that shows what a command does now."""


@contextmanager
def progress() -> Iterator[Progress]:
    """Show a line with a spinner on a terminal; elsewhere, show nothing.

    The line disappears at the end of the ``with`` block.
    """
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("importing the script") as status:
        yield lambda text: status.update(escape(text))


def silent(text: str) -> None:
    """Show nothing."""
