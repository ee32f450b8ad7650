"""Decode parsed JSON to dataclasses; check each value against the annotation of its field.

External text is never trusted: a value of a wrong type, an integer of more than 64 bits, a text
that UTF-8 cannot encode, or a missing or unknown field raises a `Mismatch` that holds its path.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache
from typing import Any

from flow_core.base.errors import nearest

INTEGERS = range(-(1 << 63), 1 << 64)
"""The accepted integers: 64 bits, signed or unsigned."""

Convert = Callable[[Any], Any]


class Mismatch(ValueError):
    """A value of the wrong type or range."""

    def __init__(self, found: object, allowed: str) -> None:
        super().__init__(f"{found}", allowed)
        self.found = f"{found}"
        self.allowed = allowed
        self.where = ""  # path of the value, such as ``.tasks[3].inputs[0]``

    def within(self, step: str) -> Mismatch:
        """Prepend the path of the enclosing value to `where`, and return this error."""
        self.where = step + self.where
        return self


def shown(value: object) -> str:
    r"""Return a truncated ASCII representation of a value, for error messages.

    >>> shown([1, 2]), shown("\ud800")
    ('a list', "the text '\\ud800'")
    """
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and value not in INTEGERS:
        return "an integer of more than 64 bits"
    kind = "the text " if isinstance(value, str) else ""
    text = ascii(value)
    return kind + (text if len(text) <= 60 else f"{text[:57]}...")


def parsed(text: str | bytes) -> Any:
    """Parse a JSON text; raise `Mismatch` if the text is not JSON, or is nested too deeply."""
    try:
        return json.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise Mismatch(f"no JSON: {ascii(str(error))[1:-1]}", "a JSON text") from error


class Decoder:
    """Decodes parsed JSON to values of annotated types.

    Args:
        types: converters for the classes that are not decoded field by field, by class.
        fields: converters that are applied to decoded fields, by ``"Class.field"``.
    """

    def __init__(
        self,
        types: Mapping[Any, Convert] | None = None,
        fields: Mapping[str, Convert] | None = None,
    ) -> None:
        self._types = types or {}
        self._fields = fields or {}
        self._of = lru_cache(maxsize=None)(self._make)

    def decode(self, kind: object, value: object) -> Any:
        """Decode a value of a type; raises `Mismatch`."""
        return self._of(kind)(value)

    def _make(self, kind: object) -> Convert:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind in self._types:
            return self._types[kind]
        if kind in _PLAIN:
            return _PLAIN[kind]
        if is_dataclass(kind):
            return self._dataclass(kind)
        if origin is types.UnionType and arguments[1:] == (types.NoneType,):
            convert = self._of(arguments[0])
            return lambda value: None if value is None else convert(value)
        if origin is tuple:
            return self._tuple(arguments)
        if origin is Mapping:
            return self._mapping(self._of(arguments[1]))
        raise TypeError(f"{kind} cannot be decoded")

    def _tuple(self, kinds: tuple[object, ...]) -> Convert:
        if kinds[1:] == (Ellipsis,):
            convert = self._of(kinds[0])
            return lambda value: tuple(_each(convert, _list(value)))
        converts = [self._of(kind) for kind in kinds]

        def convert_all(value: Any) -> Any:
            if len(_list(value)) != len(converts):
                raise Mismatch(f"a list of {len(value)}", f"a list of {len(converts)}")
            return tuple(
                _at(f"[{i}]", convert, item)
                for i, (convert, item) in enumerate(zip(converts, value, strict=True))
            )

        return convert_all

    def _mapping(self, convert: Convert) -> Convert:
        def convert_all(value: object) -> object:
            return {
                _text(name): _at(f"[{name!a}]", convert, item)
                for name, item in _object(value).items()
            }

        return convert_all

    def _dataclass(self, kind: Any) -> Convert:
        hints = typing.get_type_hints(kind)
        converts = {field.name: self._field(kind, field, hints) for field in fields(kind)}
        needed = [
            field.name
            for field in fields(kind)
            if field.default is MISSING and field.default_factory is MISSING
        ]

        def convert_all(value: Any) -> Any:
            for name in _object(value):
                if name not in converts:
                    hint = nearest(name, converts) or "no such field"
                    raise Mismatch(f"a field {name!a} ({hint})", "fields " + ", ".join(converts))
            for name in needed:
                if name not in value:
                    raise Mismatch(f"no field {name!r}", "all of " + ", ".join(needed))
            return kind(**{n: _at(f".{n}", converts[n], item) for n, item in value.items()})

        return convert_all

    def _field(self, kind: type[object], field: Field[Any], hints: Mapping[str, object]) -> Convert:
        convert = self._of(hints[field.name])
        then = self._fields.get(f"{kind.__name__}.{field.name}")
        return convert if then is None else lambda value: then(convert(value))


def _at(step: str, convert: Convert, value: object) -> object:
    try:
        return convert(value)
    except Mismatch as error:
        raise error.within(step) from None


def _each(convert: Convert, values: list[Any]) -> list[Any]:
    return [_at(f"[{i}]", convert, value) for i, value in enumerate(values)]


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise Mismatch(shown(value), "a list")
    return value


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Mismatch(shown(value), "an object")
    return value


def _text(value: object) -> str:
    """Return a value after checking that it is a text that UTF-8 can encode."""
    if not isinstance(value, str):
        raise Mismatch(shown(value), "a text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Mismatch(shown(value), "a text without lone surrogates") from None
    return value


def _integer(value: object) -> int:
    if type(value) is not int or value not in INTEGERS:
        raise Mismatch(shown(value), "an integer of 64 bits")
    return value


def _number(value: object) -> float:
    if type(value) is int:
        return _integer(value)
    if not isinstance(value, float):
        raise Mismatch(shown(value), "a number")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Mismatch(shown(value), "true or false")
    return value


def as_literal(value: object, depth: int = 64) -> object:
    """Return a number, text, flag or None unchanged, and nested lists of these as tuples."""
    if isinstance(value, list):
        if not depth:
            raise Mismatch("lists nested too deep", "64 lists within each other at most")
        return tuple(_each(lambda item: as_literal(item, depth - 1), value))
    if isinstance(value, str):
        return _text(value)
    return value if value is None or isinstance(value, bool) else _number(value)


_PLAIN: Mapping[Any, Convert] = {
    Any: as_literal, bool: _flag, float: _number, int: _integer, str: _text
}  # fmt: skip
