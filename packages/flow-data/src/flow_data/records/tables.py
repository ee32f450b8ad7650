"""Rows of Parquet and Arrow files as records, read with pyarrow (``flow-data[parquet]``).

A column is a field of the record; a row of a column is a number, a text, bytes, a list or nested
lists of one of these, or a struct.  Rows of a group (Parquet's row group, Arrow's record batch) are
read together, and the groups read last are kept.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from importlib import import_module
from itertools import accumulate, chain
from typing import Any

import numpy as np

from flow_core.base.errors import DataError, described
from flow_data.records.arrow import ArrowFile
from flow_data.records.parquet import ParquetFile
from flow_data.records.record import REFUSED, Field, Origin, Record, corrupt

KEPT = 4
"""How many groups of rows a data set keeps in memory."""


def _library(path: str) -> Any:
    try:
        return import_module("pyarrow")
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise DataError(
            f"reading {path}", found="pyarrow is not installed", hint="install flow-data[parquet]"
        ) from None


Group = Sequence[tuple[str, Any]]
"""The columns of some rows by name; a text instead of the values if these are not read."""


class _Table:
    """An open file: the first row of each group, and a function that reads a group."""

    def __init__(self, sizes: Sequence[int], group: Callable[[int], Group]) -> None:
        self.starts = [0, *accumulate(sizes)]
        self.group = group


def _parquet(path: str) -> _Table:
    file = ParquetFile(path, _library(path))
    return _Table(file.rows, file.read)


def _arrow(path: str) -> _Table:
    library = _library(path)
    file = ArrowFile(path, library)
    return _Table([batch.rows for batch in file.batches], file.read)


class _TableFiles:
    """Tables as records.

    Args:
        skip: no effect, because a damaged group is an error of each of its rows.
    """

    _open: Callable[[str], _Table]

    def __init__(self, paths: Sequence[str], skip: bool = False) -> None:
        self.paths = tuple(paths)
        self.broken: list[str] = []
        self._tables = [self._opened(path) for path in paths]
        self._groups: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self._lock = threading.Lock()

    def _opened(self, path: str) -> _Table:
        try:
            return type(self)._open(path)
        except DataError:
            raise
        except Exception as error:  # pyarrow raises errors of many classes
            raise DataError(
                f"opening {path}", found=described(error), allowed="a table of named columns"
            ) from error

    def place(self, part: int, number: int) -> tuple[int, int] | None:
        """Return the group of a row, and the row in the group."""
        starts = self._tables[part].starts
        if number >= starts[-1]:
            return None
        group = bisect_right(starts, number) - 1
        return group, number - starts[group]

    def read(self, part: int, number: int, place: tuple[int, int]) -> Record:
        group, row = place
        table = self._group(part, group)
        origin = self.origin(part, number, place)
        return Record(_Row(table, row), origin, _fields)

    def _group(self, part: int, group: int) -> Group:
        with self._lock:
            found = self._groups.get((part, group))
            if found is None:
                try:
                    found = self._tables[part].group(group)
                    _check_rows(found, self._tables[part].starts, group)
                except Exception as error:
                    first = self._tables[part].starts[group]
                    origin = Origin(f"{self.paths[part]}, rows from {first}", -1, first)
                    raise corrupt(origin, described(error), "readable columns") from error
                self._groups[part, group] = found
                if len(self._groups) > KEPT:
                    self._groups.popitem(last=False)
            self._groups.move_to_end((part, group))
            return found

    def origin(self, part: int, number: int, place: tuple[int, int]) -> Origin:
        return Origin(f"{self.paths[part]}, row {number}", -1, number)


class ParquetFiles(_TableFiles):
    """The rows of Parquet files as records."""

    _open = staticmethod(_parquet)


class ArrowFiles(_TableFiles):
    """The rows of Arrow IPC files (Feather) and streams as records."""

    _open = staticmethod(_arrow)


def _check_rows(found: Group, starts: Sequence[int], group: int) -> None:
    rows = starts[group + 1] - starts[group]
    short = [name for name, column in found if not isinstance(column, str) and len(column) != rows]
    if short:
        raise ValueError(f"another number of rows than {rows} in {short[0]!r}")


class Refused(str):
    """Why the values of a column are not read."""

    __slots__ = ()


class _Row:
    """A row of a group, whose values are converted when a field is read."""

    def __init__(self, group: Group, number: int) -> None:
        self._group = group
        self._number = number

    def __len__(self) -> int:
        return len(self._group)

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the value of each column; a `Refused` if it is not read."""
        for name, column in self._group:
            if isinstance(column, str):
                yield name, Refused(f"a column of type {column}")
            else:
                yield name, column[self._number].as_py()


def _fields(row: _Row) -> dict[str, Field]:
    """Return the fields of a row, with those of the parts of structs."""
    found: dict[str, Field] = {}
    for name, value in row.values():
        for key, field in _named(name, value):
            found[key] = (REFUSED, f"two columns of the name {key!r}") if key in found else field
    return found


def _named(name: str, value: Any) -> Iterator[tuple[str, Field]]:
    """Yield the field of a value; for a struct, also a field ``name.part`` for each part.

    A struct with a part ``bytes``, such as an image of Hugging Face's data sets, has this part's
    value.
    """
    if not isinstance(value, dict):
        yield name, _field(value)
        return
    own: Field = (REFUSED, f"a struct of {', '.join(map(repr, value)) or 'no parts'}; name a part")
    if "bytes" in value:
        data = value["bytes"]
        own = _field(data) if data is not None else (REFUSED, "a struct without bytes")
    yield name, own
    for part, inner in value.items():
        yield from _named(f"{name}.{part}", inner)


def _field(value: Any) -> Field:
    if isinstance(value, Refused):
        return REFUSED, str(value)
    values = list(value) if isinstance(value, list) else [] if value is None else [value]
    while values and all(isinstance(v, list) for v in values):
        if len({len(v) for v in values}) > 1:
            return REFUSED, "nested lists of different lengths"
        values = list(chain.from_iterable(values))
    if any(v is None for v in values):
        return REFUSED, "a list in which a value is missing"
    for kind, types, convert in _KINDS:
        if all(isinstance(v, types) for v in values):
            return kind, tuple(map(convert, values))
    return REFUSED, f"values of type {type(values[0]).__name__}"


_KINDS: tuple[tuple[str, Any, Callable[[Any], Any]], ...] = (
    ("int64_list", int, int),
    ("bytes_list", bytes, bytes),
    ("text_list", str, str.encode),
    ("double_list", int | float | np.floating | Decimal, float),
)
