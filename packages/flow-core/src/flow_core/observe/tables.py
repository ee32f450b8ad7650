"""Titled tables of texts, of which reports consist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from flow_core.base.errors import visible

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table of texts; a table without column names has no header."""

    title: str
    columns: Row
    rows: tuple[Row, ...]


def plain(table: Table) -> Iterator[str]:
    """Yield the lines of a table as aligned plain text.

    >>> print(*plain(Table("Fruit", ("name", "count"), (("fig", "3"), ("banana", "12")))), sep="|")
    Fruit|  name    count|  fig     3|  banana  12
    """
    yield visible(table.title)
    header = (table.columns,) if table.columns else ()
    rows = [tuple(map(_one_line, row)) for row in (*header, *table.rows)]
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield ("  " + "  ".join(cells)).rstrip()


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))


def joined(tables: Iterable[Table]) -> str:
    """Format several tables as plain text, separated by empty lines.

    >>> print(joined([Table("a", (), (("1",),)), Table("b", (), ())]))
    a
      1
    <BLANKLINE>
    b
    """
    return "\n\n".join("\n".join(plain(table)) for table in tables)


def count_bytes(count: int) -> str:
    """Format a number of bytes.

    >>> count_bytes(640), count_bytes(3 * 2**20)
    ('640 B', '3.00 MiB')
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def micros(seconds: float) -> str:
    """Format a duration in microseconds.

    >>> micros(2.5e-6)
    '2.5 us'
    """
    return f"{seconds * 1e6:.1f} us"
