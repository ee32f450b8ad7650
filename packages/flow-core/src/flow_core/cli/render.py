"""Print tables: with rich on a terminal, as aligned plain text elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Protocol, TypeVar

import click

from flow_core.base.errors import visible
from flow_core.observe.tables import Table, plain


class _Report(Protocol):
    def to_json(self) -> str: ...


_R = TypeVar("_R", bound=_Report)


def show_report(found: _R, tables: Callable[[_R], Iterable[Table]], as_json: bool) -> None:
    """Print a report as JSON, or as tables."""
    if as_json:
        click.echo(found.to_json())
    else:
        show(tables(found))


def show(tables: Iterable[Table]) -> None:
    """Print tables to standard output.

    On a terminal, paths below the working directory are shown relative to it.
    """
    if sys.stdout.isatty():
        _show_rich(tables)
        return
    for table in tables:
        click.echo("\n".join(plain(table)) + "\n")


def width(most: int) -> int:
    """Return the width for which tables are fitted: that of the terminal, if it is smaller."""
    if not sys.stdout.isatty():
        return most
    return max(60, min(most, shutil.get_terminal_size().columns - FRAME))


FRAME = 8
"""The characters that the drawn form of a table is wider than its plain form."""


def _show_rich(tables: Iterable[Table]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    console, working_folder = Console(), os.getcwd() + os.sep
    for table in tables:
        console.print(Text(visible(table.title.replace(working_folder, "")), "bold"))
        rows = [[visible(cell.removeprefix(working_folder)) for cell in row] for row in table.rows]
        drawn = Drawn(box=box.SIMPLE_HEAD, show_header=bool(table.columns), show_edge=False)
        for name, *cells in zip_longest(table.columns, *rows, fillvalue=""):
            short = max(map(len, cells), default=0) <= SHORT
            drawn.add_column(name, overflow="fold", no_wrap=short)
        for row in rows:
            drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        if rows:
            console.print(drawn)
        console.print()


SHORT = 16
"""Columns of at most this many characters are never wrapped."""

_STYLES = {
    "loaded": "green",
    "available": "green",
    "equal": "green",
    "failed": "bold red",
    "wrong rule": "bold red",
    "wrong boxing": "bold red",
    "unavailable": "yellow",
    "rounding": "yellow",
    "disabled": "dim",
    "not allowed": "dim",
}
