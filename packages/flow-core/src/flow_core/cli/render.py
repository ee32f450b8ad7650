"""Tables for people: drawn by rich on a terminal, aligned plain text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import click


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def show(tables: Iterable[Table]) -> None:
    """Prints tables to standard output."""
    if sys.stdout.isatty():
        _show_rich(tables)
        return
    for table in tables:
        click.echo("\n".join(plain(table)) + "\n")


def plain(table: Table) -> Iterator[str]:
    """The lines of a table without any drawing.

    >>> print(*plain(Table("Fruit", ("name", "count"), (("fig", "3"), ("banana", "12")))), sep="|")
    Fruit|  name    count|  fig     3|  banana  12
    """
    yield table.title
    rows = [tuple(map(_one_line, row)) for row in (table.columns, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _show_rich(tables: Iterable[Table]) -> None:
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    console = Console()
    for table in tables:
        drawn = Drawn(*table.columns, title=table.title, title_justify="left")
        for row in table.rows:
            drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        console.print(drawn)


_STYLES = {
    "loaded": "green",
    "available": "green",
    "failed": "bold red",
    "unavailable": "yellow",
    "disabled": "dim",
    "not allowed": "dim",
}
