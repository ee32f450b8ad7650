"""Dataclasses as columns of JSON: one list per field, for all instances at once.

Compiled code of the standard library writes and checks the columns, so that reading thousands of
records takes milliseconds.  What is read is never trusted: a value of a wrong type, an integer of
more than 64 bits, columns of different lengths, or an index out of range raises a `Mismatch`.
Every value comes from its own piece of the text, so that a short text cannot ask for much memory.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

from flow_core.base.decoding import INTEGERS, Mismatch, as_literal, shown

Data = Any
"""Parsed JSON."""

Values = list[Any]
"""The values of a column, which have one type."""


@dataclass(frozen=True, slots=True)
class Column:
    """How values of one type are written, and read again."""

    write: Callable[[Values], Data]  # returns the JSON of a list of values
    read: Callable[[Data, int], Values]  # returns the values from parsed JSON and their number


@dataclass(frozen=True, slots=True)
class Leaf:
    """How one value of a class is written and read; equal values are written once."""

    write: Callable[[Any], Data]  # returns the JSON of a value
    read: Callable[[Data], Any]  # returns the value from parsed JSON; raises `Mismatch`


class Columns:
    """Writes and reads dataclasses, by the annotations of their fields.

    Args:
        leaves: the types that are not written field by field, and their forms.
        kinds: the types of fields whose annotations are less precise, by ``"Class.field"``.
    """

    def __init__(
        self, leaves: Mapping[Any, Leaf] | None = None, kinds: Mapping[str, object] | None = None
    ) -> None:
        self._leaves, self._kinds = leaves or {}, kinds or {}
        self._of: Callable[[Any], Column] = lru_cache(maxsize=None)(self._make)

    def encode(self, value: Any) -> Data:
        """Return the JSON-compatible data of a dataclass's instance."""
        return self._of(type(value)).write([value])

    def decode(self, kind: Any, data: Data) -> Any:
        """Return the instance of a dataclass that parsed JSON represents; raises `Mismatch`."""
        return self._of(kind).read(data, 1)[0]

    def _make(self, kind: object) -> Column:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind in self._leaves:
            return _leaf(self._leaves[kind])
        if kind in _PLAIN:
            return _PLAIN[kind]
        if isinstance(kind, type) and is_dataclass(kind):
            return self._dataclass(kind)
        if origin is types.UnionType and arguments[1:] == (types.NoneType,):
            return _optional(self._of(arguments[0]))
        if origin is tuple and arguments[1:] == (Ellipsis,):
            return _nested(self._of(arguments[0]), iter, tuple)
        if origin is tuple:
            return _product(list(map(self._of, arguments)), _transposed, _row)
        if origin is Mapping:
            pairs = _product([_PLAIN[str], self._of(arguments[1])], _transposed, _row)
            return _nested(pairs, lambda value: value.items(), _unique)
        raise TypeError(f"{kind} has no columns")

    def _dataclass(self, kind: Any) -> Column:
        hints = typing.get_type_hints(kind)
        names = [field.name for field in fields(kind)]
        columns = [
            _named(name, self._of(self._kinds.get(f"{kind.__name__}.{name}", hints[name])))
            for name in names
        ]
        getters = list(map(attrgetter, names))
        return _product(columns, lambda values, _: [[*map(g, values)] for g in getters], kind)


def _plain(*allowed: type) -> Column:
    """Return the column of a plain type, of which values may also have other types."""
    types_, name = set(allowed), allowed[0].__name__

    def read(data: Data, count: int) -> Values:
        found = set(map(type, _rows(data, count)))
        if not found <= types_:
            odd = next(item for item in data if type(item) not in types_)
            raise Mismatch(shown(odd), f"values of type {name}")
        if int in found:
            _check_integers([item for item in data if type(item) is int])
        return data  # type: ignore[no-any-return]

    return Column(list, read)


def _check_integers(data: list[int]) -> None:
    for item in (min(data), max(data)):
        if item not in INTEGERS:
            raise Mismatch(shown(item), "integers of 64 bits")


def _literals(data: Data, count: int) -> Values:
    return [as_literal(item) for item in _rows(data, count)]


_PLAIN: Mapping[Any, Column] = {
    bool: _plain(bool),
    int: _plain(int),
    float: _plain(float, int),
    str: _plain(str),
    Any: Column(list, _literals),
}


def _leaf(form: Leaf) -> Column:
    """Return the column of a type with a form of its own: a table, and a position per value."""

    def write(values: Values) -> Data:
        known: dict[Any, int] = {}
        positions = [known.setdefault(value, len(known)) for value in values]
        return [[form.write(value) for value in known], positions]

    def read(data: Data, count: int) -> Values:
        table, positions = _rows(data, 2)
        if not isinstance(table, list):
            raise Mismatch(shown(table), "a list")
        values = list(map(form.read, table))
        rows = _PLAIN[int].read(positions, count)
        if rows and (min(rows) < 0 or max(rows) >= len(values)):
            raise Mismatch("a position outside of the table", f"positions below {len(values)}")
        return [values[row] for row in rows]

    return Column(write, read)


def _optional(inner: Column) -> Column:
    """Return the column of values that may be None: the positions of None, and the others."""

    def write(values: Values) -> Data:
        absent = [i for i, value in enumerate(values) if value is None]
        return [absent, inner.write([value for value in values if value is not None])]

    def read(data: Data, count: int) -> Values:
        absent, present = _rows(data, 2)
        empty = set(_PLAIN[int].read(absent, len(absent) if isinstance(absent, list) else 0))
        if len(empty) != len(absent) or not all(0 <= row < count for row in empty):
            raise Mismatch("wrong positions of None", f"different positions below {count}")
        values = iter(inner.read(present, count - len(empty)))
        return [None if row in empty else next(values) for row in range(count)]

    return Column(write, read)


def _nested(
    inner: Column, items: Callable[[Any], Iterable[Any]], make: Callable[[Values], Any]
) -> Column:
    """Return the column of collections: the length of each, and the items of all."""

    def write(values: Values) -> Data:
        return [list(map(len, values)), inner.write([*chain.from_iterable(map(items, values))])]

    def read(data: Data, count: int) -> Values:
        lengths, flat = _rows(data, 2)
        if min(_PLAIN[int].read(lengths, count), default=0) < 0:
            raise Mismatch("a negative length", "lengths of 0 or more")
        found = inner.read(flat, sum(lengths))
        ends = list(accumulate(lengths))
        return [make(found[end - n : end]) for n, end in zip(lengths, ends, strict=True)]

    return Column(write, read)


def _product(
    columns: list[Column], split: Callable[[Values, int], list[Values]], make: Callable[..., Any]
) -> Column:
    """Return the column of records: a column per field."""

    def write(values: Values) -> Data:
        parts = split(values, len(columns))
        return [column.write(part) for column, part in zip(columns, parts, strict=True)]

    def read(data: Data, count: int) -> Values:
        parts = _rows(data, len(columns))
        read_parts = [c.read(part, count) for c, part in zip(columns, parts, strict=True)]
        return list(map(make, *read_parts))

    return Column(write, read)


def _transposed(values: Values, count: int) -> list[Values]:
    return [[row[i] for row in values] for i in range(count)]


def _row(*items: Any) -> tuple[Any, ...]:
    return items


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Mismatch("a name twice", "unique names")
    return found


def _named(name: str, column: Column) -> Column:
    """Return a column whose errors name its field."""

    def read(data: Data, count: int) -> Values:
        try:
            return column.read(data, count)
        except Mismatch as error:
            raise error.within(f".{name}") from None

    return Column(column.write, read)


def _rows(data: Data, count: int) -> Values:
    if not isinstance(data, list) or len(data) != count:
        found = f"a list of {len(data)}" if isinstance(data, list) else shown(data)
        raise Mismatch(found, f"a list of {count}")
    return data
