"""Titled tables of texts, of which reports consist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap

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
    indent = text[: len(text) - len(text.lstrip(" "))]
    return visible(indent + " ".join(text.split()))


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(_one_line(text), width, subsequent_indent="  ", break_long_words=False)


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


def duration(seconds: float) -> str:
    """Format a duration in the unit that suits it.

    >>> duration(2.5e-6), duration(0.0042), duration(3.5)
    ('2.5 us', '4.20 ms', '3.50 s')
    """
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return micros(seconds) if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def share(part: float, total: float) -> str:
    """Format a part of a total in percent.

    >>> share(1, 8), share(0, 0)
    ('12.5 %', '')
    """
    return f"{100 * part / total:.1f} %" if total else ""


ELLIPSIS = "..."
SHORTEST = 12


def shortened(text: str, width: int) -> str:
    """Return a text of at most ``width`` characters, without the middle of a longer text.

    >>> shortened("encoder/layer_11/attention/matmul", 20)
    'encoder.../matmul'
    >>> shortened("src/models/train.py:120", 18)
    '.../train.py:120'
    """
    if len(text) <= width:
        return text
    left = max(width - len(ELLIPSIS), 0)
    end = text[len(text) - max(left // 2, 1) :] if left else ""
    tail = text.rpartition("/")[2]
    if "/" in text and len(tail) + 1 <= left:
        end = f"/{tail}"
    begin = text[: left - len(end)]
    begin = begin.rpartition("/")[0] if "/" in begin else begin
    return f"{begin}{ELLIPSIS}{end}"[:width]


def fitted(table: Table, width: int) -> Table:
    """Return a table whose lines fit into a width.

    The cells of the widest columns are shortened; the lines of a table of one column are wrapped.

    >>> wide = Table("ops", ("name", "line"), (("a" * 40, "train.py:1"),))
    >>> max(map(len, plain(fitted(wide, 40))))
    40
    """
    if all(len(row) == 1 for row in table.rows):
        lines = (line for (text,) in table.rows for line in _wrapped(text, width - 2))
        return Table(table.title, table.columns, tuple((line,) for line in lines))
    header = [table.columns] if table.columns else []
    cells = [*header, *(tuple(map(_one_line, row)) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip_longest(*cells, fillvalue="")]
    while widths and sum(widths) + 2 * len(widths) > width and max(widths) > SHORTEST:
        widths[widths.index(max(widths))] -= 1
    short = tuple(
        tuple(shortened(cell, w) for cell, w in zip(map(_one_line, row), widths, strict=False))
        for row in table.rows
    )
    return Table(table.title, table.columns, short)
