"""A reader of event files that follows the wire format only."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flow_core.summary import events
from flow_core.summary.messages import FIELDS


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def on_the_wire(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def read(type_: str, data: bytes) -> dict[str, Any]:
    names = {field.number: (name, field) for name, field in FIELDS[type_].items()}
    found: dict[str, Any] = {}
    for number, raw in on_the_wire(data):
        name, field = names[number]
        if field.type in FIELDS:
            value: Any = read(field.type, raw)
        elif field.packed and field.type == "double":
            value = list(struct.unpack(f"<{len(raw) // 8}d", raw))
        elif field.type in ("double", "float"):
            (value,) = struct.unpack("<d" if field.type == "double" else "<f", raw)
        else:
            value = raw
        if field.many and not field.packed:
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return found


def written(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "event").iterdir()
    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        assert events.record(data[12 : 12 + size]) == data[: 16 + size]
        found.append(read("Event", data[12 : 12 + size]))
        data = data[16 + size :]
    return found
