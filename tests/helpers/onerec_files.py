"""OneRec files for tests, written with flatbuffers' own builder."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import flatbuffers
import numpy as np
import xxhash

KINDS = {"int8": 1, "int16": 2, "int32": 3, "int64": 4, "float32": 5, "float64": 6}


def example(tensors: Mapping[str, Any], shapes: Mapping[str, Any] | None = None) -> bytes:
    """A record's bytes: arrays, or lists of bytes; other shapes than the arrays' for damage."""
    builder = flatbuffers.Builder(64)
    features = [
        _feature(builder, name, value, (shapes or {}).get(name))
        for name, value in sorted(tensors.items())
    ]
    _table(builder, {0: ("offset", _offsets(builder, features))}, finish=True)
    return bytes(builder.Output())


def _offsets(builder: Any, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _table(builder: Any, slots: Mapping[int, tuple[str, int]], finish: bool = False) -> int:
    builder.StartObject(max(slots) + 1)
    for slot, (kind, value) in slots.items():
        if kind == "offset":
            builder.PrependUOffsetTRelativeSlot(slot, value, 0)
        else:
            builder.PrependUint8Slot(slot, value, 0)
    table = int(builder.EndObject())
    if finish:
        builder.Finish(table)
    return table


def _feature(builder: Any, name: str, value: Any, shape: Any) -> int:
    kind, data = _data(builder, value)
    count = np.shape(value) if shape is None else shape
    sizes = builder.CreateNumpyVector(np.array(count, np.int32))
    slots = {0: ("offset", sizes), 1: ("byte", kind), 2: ("offset", data)}
    tensor = _table(builder, slots)
    label = builder.CreateString(name)
    return _table(builder, {0: ("offset", label), 1: ("offset", tensor)})


def _data(builder: Any, value: Any) -> tuple[int, int]:
    if isinstance(value, np.ndarray):
        values = builder.CreateNumpyVector(value.reshape(-1))
        return KINDS[value.dtype.name], _table(builder, {0: ("offset", values)})
    inner = [builder.CreateByteVector(v) for v in value]
    tables = [_table(builder, {0: ("offset", v)}) for v in inner]
    return 8, _table(builder, {0: ("offset", _offsets(builder, tables))})


def framed(payload: bytes) -> bytes:
    """A payload in OneRec's frame."""
    head = b"^ONEREC$" + struct.pack("<ii", 0, len(payload))
    behind = bytes(-len(payload) % 8) + xxhash.xxh64(payload).digest()
    return head + xxhash.xxh64(head).digest() + payload + behind
