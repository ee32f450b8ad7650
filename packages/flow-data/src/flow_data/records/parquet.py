"""Read row groups of Parquet files with bounds.

Parquet repeats values by number: a page of some bytes may stand for any number of values, and a
compressed page for gigabytes.  pyarrow allocates what a file declares, so the headers of all pages
of a row group are read first, and the size of the decoded columns is bounded from them.  Columns
of bytes that repeat long values stay encoded by a dictionary.

Source of the format: Apache Parquet's ``parquet.thrift`` and "Encodings", version 2.11; Apache
Thrift's "Compact protocol encoding".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar, Union

from flow_data.records.opened import OpenFile

_MOST = 1 << 30
"""The maximum size of a decoded row group in bytes, unless the file itself is large."""
_EXPANSION = 4
"""The maximum ratio of the decoded size of a row group to the bytes of a larger file."""
_HEADER, _LONGEST_HEADER = 1 << 10, 1 << 24
"""Bytes that are read for a page header at first, and at most."""

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_BYTES = "BYTE_ARRAY"
_PER_VALUE = 16
"""Bytes for the offset, the levels, and the bit of presence of a value, or its conversion."""
_PREFIXED = 7
"""DELTA_BYTE_ARRAY: bytes that begin like the value before, which can repeat long values."""


@dataclass(frozen=True)
class _Chunk:
    """A column of a row group."""

    name: str  # the path of the column in the schema
    size: int  # bytes of all its pages after decompression
    values: int
    distinct: int  # the number of values in its dictionaries
    width: int | None  # bytes of a value; None for values of different lengths
    prefixed: bool  # whether values may begin like the value before
    nested: bool  # whether a row may have several values

    @property
    def repeated(self) -> int:
        """The most bytes of the values if each of them is stored."""
        return self.values * (self.size if self.width is None else self.width)

    def decoded(self, most: int) -> int:
        """Return the most bytes that the column takes; columns above ``most`` use dictionaries."""
        small = self.width is not None or self.repeated <= most
        count = self.values + self.distinct
        return (self.repeated if small else self.size) + count * _PER_VALUE


class ParquetFile:
    """A Parquet file.

    Attributes:
        rows: the number of rows of each row group.

    Raises:
        OSError: the path does not name a regular file, or the file cannot be opened.
    """

    def __init__(self, path: str, library: ModuleType) -> None:
        self._library = library
        self._opened = OpenFile(path)  # pyarrow would wait for the writer of a pipe
        self._size = self._opened.size
        self._parquet = import_module("pyarrow.parquet")
        # The path may name another file later, a pipe too.  pyarrow opens the checked one by this.
        self._path = f"/dev/fd/{self._opened.descriptor}" if os.path.exists("/dev/fd") else path
        self._file = self._parquet.ParquetFile(self._path)
        groups = range(self._file.num_row_groups)
        self.rows = [self._file.metadata.row_group(i).num_rows for i in groups]
        self._groups: list[_Value] = []

    def read(self, number: int) -> list[tuple[str, Any]]:
        """Return the columns of a row group; a text instead of one whose type is not read.

        Raises:
            ValueError: the headers of the pages are malformed, or the columns may be too large.
        """
        most = max(_MOST, _EXPANSION * self._size)
        chunks = list(self._chunks(number))
        total = sum(chunk.decoded(most) for chunk in chunks)
        if total > most:
            raise ValueError(_too_large(number, total, most))
        wide = [c for c in chunks if c.width is None and c.repeated > most]
        table = self._table(number, wide, most)
        return [
            (name, _plain(column, self._library))
            for name, column in zip(table.schema.names, table.columns, strict=True)
        ]

    def _table(self, number: int, wide: Sequence[_Chunk], most: int) -> Any:
        """Read a row group; ``wide`` are the columns whose values might be too large as a whole."""
        repeated = [c.name for c in wide if not c.prefixed]
        file = self._file
        if repeated:
            file = self._parquet.ParquetFile(self._path, read_dictionary=repeated)
        prefixed = [c for c in wide if c.prefixed]
        if not prefixed:
            return file.read_row_group(number)
        if any(c.nested for c in prefixed):
            raise ValueError(_too_large(number, max(c.repeated for c in prefixed), most))
        rows = max(1, most // max(c.size for c in prefixed))
        batches, taken = [], 0
        for batch in file.iter_batches(rows, row_groups=[number]):
            batches.append(batch)
            taken += batch.nbytes
            if taken > most:
                raise ValueError(_too_large(number, taken, most))
        return self._library.Table.from_batches(batches, file.schema_arrow)

    def _chunks(self, number: int) -> Iterator[_Chunk]:
        schema, chunks = self._file.metadata.schema, self._columns(number)
        kinds = [field.type for field in self._file.schema_arrow]
        lists = [each for kind in kinds for each in _fixed_lists(kind, self._library)]
        if len(lists) != len(chunks):
            raise ValueError(f"{len(lists)} columns in the schema, {len(chunks)} in the file")
        for index, (length, varies) in enumerate(lists):
            chunk, column = _part(_part(chunks, index, dict), _META, dict), schema.column(index)
            size, values, distinct = self._sizes(chunk)
            values = max(values, length * (values if varies else self.rows[number]))
            kind = column.physical_type
            width = None if kind == _BYTES else _WIDTHS.get(kind, max(0, column.length))
            prefixed = _PREFIXED in _part(chunk, _ENCODINGS, list)
            nested = column.max_repetition_level > 0
            yield _Chunk(column.path, size, values, distinct, width, prefixed, nested)

    def _columns(self, number: int) -> list[_Value]:
        """Return the columns of a row group in the footer.

        The footer is parsed here, because pyarrow ends the process where it returns the metadata of
        a column whose statistics are malformed.
        """
        if not self._groups:
            length = int.from_bytes(self._opened.read(4, self._size - 8), "little")
            start = self._size - 8 - length
            if start < 0:
                raise ValueError(f"a footer of {length} bytes in a file of {self._size}")
            try:
                footer, _ = _struct(self._opened.read(length, start), 0)
            except IndexError:
                raise ValueError("a footer that is not complete") from None
            self._groups = _part(footer, _GROUPS, list)
        return _part(_part(self._groups, number, dict), _COLUMNS, list)

    def _sizes(self, chunk: _Struct) -> tuple[int, int, int]:
        """Return the bytes of the pages after decompression, and the numbers of values.

        The numbers are those in pages of data, and in pages of dictionaries.
        """
        at, dictionary = _part(chunk, _DATA, int), chunk.get(_DICTIONARY)
        if isinstance(dictionary, int) and dictionary:
            at = min(at, dictionary)
        end, size, values, distinct = at + _part(chunk, _COMPRESSED, int), 0, 0, 0
        if not 0 <= at <= end <= self._size:
            raise ValueError(f"bytes {at} to {end} of {self._size} as a column")
        while at < end:
            header, length = self._header(at)
            unpacked, packed = header.get(2), header.get(3)
            if not (isinstance(unpacked, int) and isinstance(packed, int)):
                raise ValueError("a page without its sizes")
            if unpacked < 0 or not 0 <= packed <= self._size - at - length:
                raise ValueError(f"a page of {packed} bytes at byte {at} of {self._size}")
            size += unpacked
            values += max(_count(header.get(key)) for key in _DATA_PAGES)
            distinct += _count(header.get(_DICTIONARY_PAGE))
            at += length + packed
        return size, max(values, _part(chunk, _VALUES, int)), distinct

    def _header(self, at: int) -> tuple[_Struct, int]:
        """Return the header of a page, and its length in bytes."""
        length = _HEADER
        while True:
            data = self._opened.read(length, at)
            try:
                return _struct(data, 0)
            except IndexError:
                if len(data) < length or length >= _LONGEST_HEADER:
                    raise ValueError(f"no complete page header at byte {at}") from None
            length *= 4


def _too_large(number: int, size: int, most: int) -> str:
    limit = f"at most {most} are decoded; write fewer rows per group"
    return f"up to {size} bytes in row group {number}; {limit}"


# -------------------------------------------------------------------------------------- metadata

_GROUPS, _COLUMNS, _META = 4, 1, 3
"""The fields of the footer, of a row group and of a column."""
_ENCODINGS, _VALUES, _COMPRESSED, _DATA, _DICTIONARY = 2, 5, 7, 9, 11
"""The fields of a column's metadata."""
_DATA_PAGES, _DICTIONARY_PAGE = (5, 8), 7
"""The fields of a page header for pages of data, version 1 and 2, and of dictionaries; their field
1 is the count."""

_Value = Union[int, "_Struct", "list[_Value]", None]
"""An integer, a struct or a list; None for other values."""
_Struct = dict[int, _Value]
"""The fields of a struct by number."""
_Kind = TypeVar("_Kind")

_DEEPEST = 8


def _part(whole: _Struct | list[_Value], key: int, kind: type[_Kind]) -> _Kind:
    """Return a field of a struct or an element of a list."""
    try:
        found = whole[key]
    except LookupError:
        found = None
    if not isinstance(found, kind):
        raise ValueError(f"no {kind.__name__} at {key} in the metadata")
    return found


def _count(page: _Value) -> int:
    count = page.get(1) if isinstance(page, dict) else 0
    if not isinstance(count, int) or count < 0:
        raise ValueError(f"{count} values in a page")
    return count


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[_Struct, int]:
    """Parse a struct of Thrift's compact protocol; return it, and the byte behind it.

    Raises:
        IndexError: the data ends before the struct.

    >>> _struct(bytes([0x15, 0x04, 0x25, 0x05, 0x00]), 0)
    ({1: 2, 3: -3}, 5)
    """
    found: _Struct = {}
    number = 0
    while data[at]:
        kind, step = data[at] & 15, data[at] >> 4
        at += 1
        if step:
            number += step
        else:
            number, at = _integer(data, at)
        found[number], at = _value(data, at, kind, depth)
    return found, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[_Value, int]:
    if kind in (1, 2):  # a boolean, which is its type
        return None, at
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 12 and depth < _DEEPEST:
        return _struct(data, at, depth + 1)
    if kind in (9, 10) and depth < _DEEPEST:
        return _list(data, at, depth + 1)
    if kind == 8:
        length, at = _varint(data, at)
        return None, at + length
    if kind in (3, 7):
        return None, at + (1 if kind == 3 else 8)
    raise ValueError(f"a field of type {kind} in the metadata")


def _list(data: bytes, at: int, depth: int) -> tuple[list[_Value], int]:
    size, kind = data[at] >> 4, data[at] & 15
    at += 1
    if size == 15:
        size, at = _varint(data, at)
    if size > len(data) - at:  # each element has at least a byte
        raise IndexError(size)
    found = []
    for _ in range(size):
        value, at = (None, at + 1) if kind in (1, 2) else _value(data, at, kind, depth)
        found.append(value)
    return found, at


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("an integer of more than 64 bits in the metadata")


# ----------------------------------------------------------------------------------------- types


def _fixed_lists(
    kind: Any, library: ModuleType, length: int = 1, varies: bool = False
) -> Iterator[tuple[int, bool]]:
    """Yield the number of elements of the fixed-size lists around each column of a type.

    The second value is whether there are other lists around it. A list that is null is stored as
    one value, and takes the memory of all of its elements.
    """
    types = library.types
    if isinstance(kind, library.BaseExtensionType):
        yield from _fixed_lists(kind.storage_type, library, length, varies)
    elif types.is_struct(kind):
        for part in kind:
            yield from _fixed_lists(part.type, library, length, varies)
    elif types.is_map(kind):
        for part in (kind.key_type, kind.item_type):
            yield from _fixed_lists(part, library, length, True)
    elif types.is_fixed_size_list(kind):
        yield from _fixed_lists(kind.value_type, library, length * kind.list_size, varies)
    elif types.is_list(kind) or types.is_large_list(kind):
        yield from _fixed_lists(kind.value_type, library, length, True)
    else:
        yield length, varies


def _plain(column: Any, library: ModuleType) -> Any:
    """Convert times to integers, and decimals, the values that `ArrowFile` returns."""
    kind = _plain_type(column.type, library)
    if kind is None:
        return str(column.type)
    return column if kind == column.type else column.cast(kind)


def _plain_type(kind: Any, library: ModuleType) -> Any:
    """Return the type to which a column is converted; None if the column is not read."""
    types = library.types
    if isinstance(kind, library.BaseExtensionType):
        return _plain_type(kind.storage_type, library)
    for is_kind, plain in _PLAIN:
        if getattr(types, is_kind)(kind):
            return getattr(library, plain)()
    if types.is_struct(kind):
        parts = [(part.name, _plain_type(part.type, library)) for part in kind]
        return None if any(part is None for _, part in parts) else library.struct(parts)
    for is_kind, make in _LISTS:
        if getattr(types, is_kind)(kind):
            inner = _plain_type(kind.value_type, library)
            size = (kind.list_size,) if make == "list_" and "fixed" in is_kind else ()
            return None if inner is None else getattr(library, make)(inner, *size)
    refused = types.is_map(kind) or types.is_union(kind) or types.is_interval(kind)
    return None if refused or kind.num_fields else kind


_PLAIN = (
    ("is_date32", "int32"), ("is_date64", "int64"), ("is_time32", "int32"), ("is_time64", "int64"),
    ("is_timestamp", "int64"), ("is_duration", "int64"), ("is_decimal", "float64"),
)  # fmt: skip
"""A test of a type, and the type to which its columns are converted."""

_LISTS = (("is_list", "list_"), ("is_large_list", "large_list"), ("is_fixed_size_list", "list_"))
