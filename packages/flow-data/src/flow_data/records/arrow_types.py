"""The types of Arrow's columns, as the metadata of its IPC format declares them.

The tables are those of Arrow's ``Schema.fbs``. Extension types are read as their storage, and
dates, times, timestamps and durations as the integers that are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flatbuffers import number_types as numbers
from flatbuffers.table import Table

from flow_data.records.flat import child, content, tables

_DEEPEST = 32
"""The maximum number of levels of nested types."""

_SMALLEST = 16
"""Bytes that the declaration of a column takes at least, which bounds the number of columns."""


VIEWS = ("BinaryView", "Utf8View")
"""The types of which a record batch has further buffers, the number of which it declares."""


@dataclass(frozen=True)
class Column:
    """A column, or a part of one."""

    name: str
    kind: str  # Arrow's name of its type
    buffers: int  # the number of its buffers in a record batch, apart from those of its parts
    # The function that returns its type, given those of its parts; None if columns of this type are
    # not read.
    made: Callable[[Sequence[Any]], Any] | None
    parts: tuple[Column, ...] = ()  # of a nested column
    index: Any = None  # type of the indices of a column that is stored as indices in a dictionary
    dictionary: int | None = None  # the number of that dictionary

    @property
    def refused(self) -> str:
        """What of the column is not read; empty if all of it is."""
        if self.made is None:
            return self.kind
        return next((f"{self.kind} of {p.refused}" for p in self.parts if p.refused), "")


def columns(schema: Table, library: Any) -> tuple[Column, ...]:
    """Return the columns of a schema, given pyarrow.

    Raises `ValueError` if the schema is malformed, or its numbers are big-endian.
    """
    if schema.GetSlot(4, 0, numbers.Int16Flags):
        raise ValueError("numbers in big-endian byte order")
    left = iter(range(len(schema.Bytes) // _SMALLEST))
    return tuple(_column(field, library, left, 0) for field in tables(schema, 6, "columns"))


def _column(field: Table, library: Any, left: Iterator[int], depth: int) -> Column:
    if next(left, None) is None or depth > _DEEPEST:
        raise ValueError("more columns than the metadata can hold, or nested too deeply")
    name = content(field, 4, "name of a column").decode("utf-8", "backslashreplace")
    kind = field.GetSlot(8, 0, numbers.Uint8Flags)
    if kind not in _KINDS:
        raise ValueError(f"a column {name!r} of type {kind}")
    label, buffers, make = _KINDS[kind]
    inner = tables(field, 14, "parts") if field.Offset(14) else ()
    parts = tuple(_column(part, library, left, depth + 1) for part in inner)
    declared = child(field, 10, f"type of {name!r}")
    if label == "Union":
        buffers += declared.GetSlot(4, 0, numbers.Int16Flags) == 1  # dense: offsets, too
    made = None if make is None else make(library, declared, parts)
    if not field.Offset(12):
        return Column(name, label, buffers, made, parts)
    encoding = child(field, 12, "dictionary")
    index = library.int32()
    if encoding.Offset(6):
        index = _integer(library, child(encoding, 6, "index type"), ())(())
    number = encoding.GetSlot(4, 0, numbers.Int64Flags)
    return Column(name, label, buffers, made, parts, index, number)


Made = Callable[[Sequence[Any]], Any]
"""Returns a type, given the types of its parts."""


def _always(found: Any) -> Made:
    return lambda types: found


def _number(table: Table, slot: int, default: int = 0) -> int:
    found: int = table.GetSlot(slot, default, numbers.Int32Flags)
    return found


def _unit(table: Table) -> int:
    found: int = table.GetSlot(4, 1, numbers.Int16Flags)
    return found


def _leaf(name: str) -> Any:
    """Return the maker of a type without parameters; None if this pyarrow has no such type."""

    def make(library: Any, table: Table, parts: Sequence[Column]) -> Made | None:
        found = getattr(library, name, None)
        return None if found is None else _always(found())

    return make


def _integer(library: Any, table: Table, parts: Sequence[Column]) -> Made:
    bits, signed = _number(table, 4), table.GetSlot(6, False, numbers.BoolFlags)
    if bits not in (8, 16, 32, 64):
        raise ValueError(f"integers of {bits} bits")
    return _always(getattr(library, f"{'' if signed else 'u'}int{bits}")())


def _floating(library: Any, table: Table, parts: Sequence[Column]) -> Made:
    precision = table.GetSlot(4, 0, numbers.Int16Flags)
    if precision not in (0, 1, 2):
        raise ValueError(f"floating-point numbers of precision {precision}")
    return _always(getattr(library, f"float{16 << precision}")())


def _decimal(library: Any, table: Table, parts: Sequence[Column]) -> Made | None:
    bits = _number(table, 8, 128)
    if bits not in (32, 64, 128, 256):
        raise ValueError(f"decimals of {bits} bits")
    make = getattr(library, f"decimal{bits}", None)
    return None if make is None else _always(make(_number(table, 4), _number(table, 6)))


def _date(library: Any, table: Table, parts: Sequence[Column]) -> Made:
    return _always(library.int32() if _unit(table) == 0 else library.int64())


def _time(library: Any, table: Table, parts: Sequence[Column]) -> Made:
    bits = _number(table, 6, 32)
    if bits not in (32, 64):
        raise ValueError(f"times of {bits} bits")
    return _always(library.int32() if bits == 32 else library.int64())


def _fixed_bytes(library: Any, table: Table, parts: Sequence[Column]) -> Made:
    width = _number(table, 4)
    if width < 1:
        raise ValueError(f"values of {width} bytes")
    return _always(library.binary(width))


def _one(parts: Sequence[Column]) -> None:
    if len(parts) != 1:
        raise ValueError(f"a list of {len(parts)} columns")


def _list(name: str) -> Any:
    def make(library: Any, table: Table, parts: Sequence[Column]) -> Made:
        _one(parts)
        return lambda types: getattr(library, name)(types[0])

    return make


def _fixed_list(library: Any, table: Table, parts: Sequence[Column]) -> Made:
    _one(parts)
    size = _number(table, 4)
    if size < 0:
        raise ValueError(f"lists of {size} values")
    return lambda types: library.list_(types[0], size)


def _struct(library: Any, table: Table, parts: Sequence[Column]) -> Made:
    names = [part.name for part in parts]
    return lambda types: library.struct(list(zip(names, types, strict=True)))


_KINDS: dict[int, tuple[str, int, Any]] = {
    1: ("Null", 0, _leaf("null")),
    2: ("Int", 2, _integer),
    3: ("FloatingPoint", 2, _floating),
    4: ("Binary", 3, _leaf("binary")),
    5: ("Utf8", 3, _leaf("string")),
    6: ("Bool", 2, _leaf("bool_")),
    7: ("Decimal", 2, _decimal),
    8: ("Date", 2, _date),
    9: ("Time", 2, _time),
    10: ("Timestamp", 2, _leaf("int64")),
    11: ("Interval", 2, None),
    12: ("List", 2, _list("list_")),
    13: ("Struct", 1, _struct),
    14: ("Union", 1, None),
    15: ("FixedSizeBinary", 2, _fixed_bytes),
    16: ("FixedSizeList", 1, _fixed_list),
    17: ("Map", 2, None),
    18: ("Duration", 2, _leaf("int64")),
    19: ("LargeBinary", 3, _leaf("large_binary")),
    20: ("LargeUtf8", 3, _leaf("large_string")),
    21: ("LargeList", 2, _list("large_list")),
    22: ("RunEndEncoded", 0, None),
    23: ("BinaryView", 2, _leaf("binary_view")),
    24: ("Utf8View", 2, _leaf("string_view")),
    25: ("ListView", 3, None),
    26: ("LargeListView", 3, None),
}
"""For each number of a type: its name, the number of its buffers, and the maker of its type."""
