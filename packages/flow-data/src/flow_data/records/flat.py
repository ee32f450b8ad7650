"""Read tables of flatbuffers, of which no offset and no length is trusted.

The functions raise ValueError or struct.error where an offset or a length leaves the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flatbuffers import number_types
from flatbuffers.table import Table

_OFFSET = number_types.UOffsetTFlags


def root(data: bytes) -> Table:
    """Return the root table."""
    return Table(data, Table(data, 0).Get(_OFFSET, 0))


def vector(table: Table, slot: int, width: int = 1) -> tuple[int, int] | None:
    """Return the first byte and the length of a vector, or None if the field is absent."""
    offset = table.Offset(slot)
    if not offset:
        return None
    start, count = table.Vector(offset), table.VectorLen(offset)
    if not 0 <= start <= start + count * width <= len(table.Bytes):
        raise ValueError(f"a vector of {count} elements at byte {start} of {len(table.Bytes)}")
    return start, count


def need(found: Any, what: str) -> Any:
    """Return what was found; raise an error if it is None."""
    if found is None:
        raise ValueError(f"no {what}")
    return found


def child(table: Table, slot: int, what: str) -> Table:
    """Return the table in a field, which may be a union."""
    offset = need(table.Offset(slot) or None, what)
    return Table(table.Bytes, table.Indirect(table.Pos + offset))


def tables(table: Table, slot: int, what: str) -> Iterator[Table]:
    """Yield the tables of a vector."""
    start, count = need(vector(table, slot, 4), what)
    for at in range(start, start + 4 * count, 4):
        yield Table(table.Bytes, table.Indirect(at))


def content(table: Table, slot: int, what: str) -> bytes:
    """Return the bytes of a vector or a text."""
    start, count = need(vector(table, slot), what)
    return bytes(table.Bytes[start : start + count])


def counted(data: bytes, place: int) -> bytes:
    """Return the bytes that follow their number."""
    start = place + 4
    count: int = Table(data, 0).Get(_OFFSET, place)
    if start + count > len(data):
        raise ValueError(f"a string of {count} bytes in {len(data)}")
    return bytes(data[start : start + count])
