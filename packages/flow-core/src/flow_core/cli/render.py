"""Tables for people: drawn by rich on a terminal, aligned plain text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from flow_core.observe.tables import Table, plain


def show(tables: Iterable[Table]) -> None:
    """Prints tables to standard output."""
    if sys.stdout.isatty():
        _show_rich(tables)
        return
    for table in tables:
        click.echo("\n".join(plain(table)) + "\n")


def _show_rich(tables: Iterable[Table]) -> None:
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    console = Console()
    for table in tables:
        drawn = Drawn(
            *table.columns,
            title=table.title,
            title_justify="left",
            show_header=bool(table.columns),
        )
        for row in table.rows:
            drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        console.print(drawn)


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
