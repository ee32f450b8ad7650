"""Rows of Parquet and Arrow files as records, read with pyarrow (``flow-data[parquet]``).

A column is a field of the record; a row of a column is a number, a text, bytes, or a list of one of
these.  Rows of a group (Parquet's row group, Arrow's record batch) are read together, and the
groups read last are kept.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import accumulate
from typing import Any

from flow_core.base.errors import DataError, described
from flow_data.records.record import Field, Origin, Record, corrupt

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


class _Table:
    """An open file: the first row of each group, and a function that reads a group."""

    def __init__(self, sizes: Sequence[int], group: Callable[[int], Any]) -> None:
        self.starts = [0, *accumulate(sizes)]
        self.group = group


def _parquet(path: str) -> _Table:
    _library(path)
    file = import_module("pyarrow.parquet").ParquetFile(path)
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    return _Table(sizes, file.read_row_group)


def _arrow(path: str) -> _Table:
    library = _library(path)
    file = library.ipc.open_file(library.memory_map(path))
    batches = [file.get_batch(i) for i in range(file.num_record_batches)]
    return _Table([batch.num_rows for batch in batches], batches.__getitem__)


class _TableFiles:
    """Tables as records.

    Args:
        paths: the files.
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
        """Return a row as a record."""
        group, row = place
        table = self._group(part, group)
        origin = self.origin(part, number, place)
        columns = zip(table.schema.names, table.columns, strict=True)
        return Record({name: column[row].as_py() for name, column in columns}, origin, _fields)

    def _group(self, part: int, group: int) -> Any:
        with self._lock:
            found = self._groups.get((part, group))
            if found is None:
                try:
                    found = self._tables[part].group(group)
                except Exception as error:
                    origin = Origin(self.paths[part], -1, self._tables[part].starts[group])
                    raise corrupt(origin, described(error), "readable columns") from error
                self._groups[part, group] = found
                if len(self._groups) > KEPT:
                    self._groups.popitem(last=False)
            self._groups.move_to_end((part, group))
            return found

    def origin(self, part: int, number: int, place: tuple[int, int]) -> Origin:
        """Return the file and the number of a row."""
        return Origin(f"{self.paths[part]}, row {number}", -1, number)


class ParquetFiles(_TableFiles):
    """The rows of Parquet files as records."""

    _open = staticmethod(_parquet)


class ArrowFiles(_TableFiles):
    """The rows of Arrow IPC (Feather) files as records."""

    _open = staticmethod(_arrow)


def _fields(row: Mapping[str, Any]) -> dict[str, Field]:
    """Return the fields of a row; columns of other types are left out."""
    found = {name: _field(value) for name, value in row.items()}
    return {name: field for name, field in found.items() if field is not None}


def _field(value: Any) -> Field | None:
    values = value if isinstance(value, list) else [] if value is None else [value]
    if all(isinstance(v, bytes | str) for v in values) and values:
        return "bytes_list", tuple(v.encode() if isinstance(v, str) else v for v in values)
    if all(isinstance(v, int) for v in values):
        return "int64_list", tuple(map(int, values))
    if all(isinstance(v, int | float) for v in values):
        return "double_list", tuple(map(float, values))
    return None
