"""Records: bytes with an origin; the fields are parsed on first access."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flow_core.base.errors import nearest
from flow_data.instances import RowError

Field = tuple[str, Any]
"""The kind of a field ("bytes_list", "float_list", ...), and the field's values."""

REFUSED = "refused"
"""The kind of a field whose values are not read; a text that says why stands for the values."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The position of a record.

    Attributes:
        file: path of the record's file.
        offset: first byte of the record in the file; -1 if the record is a whole file.
        number: number of the record in the file.
    """

    file: str
    offset: int
    number: int

    def __str__(self) -> str:
        if self.offset < 0:
            return self.file
        return f"{self.file}, record {self.number} at byte {self.offset}"


class CorruptRecordError(RowError):
    """The error for a corrupt or unreadable record or file of records."""

    origin: Origin | None = None  # of the record


def corrupt(
    origin: Origin, found: str, allowed: str, hint: str | None = None
) -> CorruptRecordError:
    """Return the error for a corrupt record."""
    hint = hint or 'write the file again, or pass on_error="skip" to skip such records'
    error = CorruptRecordError(f"reading {origin}", found=found, allowed=allowed, hint=hint)
    error.origin = origin
    return error


class Record:
    """One record.

    Args:
        payload: the bytes of the record, or in some formats its fields by name.
        origin: position of the record.
        parse: the function that returns the fields; an exception means that the payload is corrupt.
        sparse: whether records of the format need not have all fields.
    """

    __slots__ = ("_fields", "_parse", "origin", "payload", "sparse")

    def __init__(
        self,
        payload: Any,
        origin: Origin,
        parse: Callable[[Any], Mapping[str, Field]],
        sparse: bool = False,
    ) -> None:
        self.sparse = sparse
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
        found = self.fields.get(name)
        if found is None:
            hint = nearest(name, self.fields) or "name one of them"
            known = ", ".join(map(repr, self.fields)) or "none"
            raise corrupt(self.origin, f"no field {name!r}", f"the fields {known}", hint)
        if found[0] == REFUSED:
            allowed = "numbers, texts, bytes, lists of these, and parts of structs"
            hint = "write the file again with a field of such values"
            raise corrupt(self.origin, f"{found[1]}, in {name!r}", allowed, hint)
        return found

    def blob(self, name: str) -> bytes:
        """Return the bytes of a field that must have exactly one value of bytes or text."""
        kind, values = self.field(name)
        if kind not in ("bytes_list", "text_list") or len(values) != 1:
            raise corrupt(
                self.origin, f"{len(values)} values of {kind} in {name!r}", "one of bytes_list"
            )
        value: bytes = values[0]
        return value

    def __repr__(self) -> str:
        return f"<record of {self.origin}>"
