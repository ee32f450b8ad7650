"""Records: bytes with an origin, whose fields are parsed on first access."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flow_core.base.errors import nearest
from flow_data.instances import RowError

Field = tuple[str, Any]
"""Kind of a field ("bytes_list", "float_list", ...) and its values."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The position of a record.

    Attributes:
        file: path of its file.
        offset: its first byte, -1 if it is a whole file.
        number: its number in the file.
    """

    file: str
    offset: int
    number: int

    def __str__(self) -> str:
        if self.offset < 0:
            return self.file
        return f"{self.file}, record {self.number} at byte {self.offset}"


class CorruptRecordError(RowError):
    """A record or a file of records is corrupt or unreadable.

    Attributes:
        origin: position of the record.
    """

    origin: Origin | None = None


def corrupt(
    origin: Origin, found: str, allowed: str, hint: str | None = None
) -> CorruptRecordError:
    """Return the error about a record."""
    hint = hint or 'write the file again, or pass on_error="skip" to skip such records'
    error = CorruptRecordError(f"reading {origin}", found=found, allowed=allowed, hint=hint)
    error.origin = origin
    return error


class Record:
    """One record.

    Args:
        payload: the bytes, or in some formats the fields by name.
        origin: its position.
        parse: returns the fields of the payload; an exception means that it is corrupt.
    """

    __slots__ = ("_fields", "_parse", "origin", "payload")

    def __init__(
        self, payload: Any, origin: Origin, parse: Callable[[Any], Mapping[str, Field]]
    ) -> None:
        self.payload = payload
        self.origin = origin
        self._parse = parse
        self._fields: Mapping[str, Field] | None = None

    @property
    def fields(self) -> Mapping[str, Field]:
        """All fields by name, parsed on first access."""
        if self._fields is None:
            try:
                self._fields = self._parse(self.payload)
            except Exception as error:
                raise corrupt(
                    self.origin,
                    f"{len(self.payload)} bytes that are not a record: {error}",
                    "a record in the file's format",
                ) from error
        return self._fields

    def field(self, name: str) -> Field:
        """Return kind and values of a field."""
        found = self.fields.get(name)
        if found is None:
            hint = nearest(name, self.fields) or "name one of them"
            known = ", ".join(map(repr, self.fields)) or "none"
            raise corrupt(self.origin, f"no field {name!r}", f"the fields {known}", hint)
        return found

    def blob(self, name: str) -> bytes:
        """Return the only value of a field of bytes."""
        kind, values = self.field(name)
        if kind != "bytes_list" or len(values) != 1:
            raise corrupt(
                self.origin, f"{len(values)} values of {kind} in {name!r}", "one of bytes_list"
            )
        value: bytes = values[0]
        return value

    def __repr__(self) -> str:
        return f"<record of {self.origin}>"
