"""Read OneRec files, which contain named tensors in flatbuffers, in frames with checksums."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import xxhash
from flatbuffers import number_types
from flatbuffers.table import Table

from flow_data.records.flat import child, content, counted, need, root, tables, vector
from flow_data.records.framed import FramedFiles
from flow_data.records.record import Field, Record

MAGIC = b"^ONEREC$"
_ALIGNMENT = 8


def digest(data: bytes) -> bytes:
    """Return OneRec's checksum of data: the 64-bit xxHash, big-endian."""
    found: bytes = xxhash.xxh64_digest(data)
    return found


class OneRecFrame:
    """A frame whose header has magic, zeros, a 32-bit length and a checksum of these.

    The trailer has padding and the checksum of the payload.

    >>> head = MAGIC + struct.pack("<ii", 0, 3)
    >>> OneRecFrame().length(head + digest(head)), OneRecFrame().trailer(3)
    (3, 13)
    """

    header = 24

    def length(self, header: bytes) -> int | None:
        """Return the length, or None if the header is invalid."""
        magic, reserved, length, checksum = struct.unpack("<8sii8s", header)
        valid = magic == MAGIC and not reserved and length >= 0
        return length if valid and checksum == digest(header[:16]) else None

    def trailer(self, length: int) -> int:
        """Return the size of the padding, up to a multiple of eight bytes, and of the checksum."""
        return -length % _ALIGNMENT + _ALIGNMENT

    def is_valid(self, payload: bytes, trailer: bytes) -> bool:
        return trailer[-_ALIGNMENT:] == digest(payload)


# ------------------------------------------------------------------------------- flatbuffers

_NAME, _TENSOR = 4, 6  # of a feature
_SHAPE, _KIND, _DATA = 4, 6, 8  # of a tensor
_ONLY = 4  # of every other table, which has one field


def _numbers(dtype: str) -> Callable[[Table], Any]:
    def read(table: Table) -> Any:
        start, count = need(vector(table, _ONLY), "values")
        return np.frombuffer(table.Bytes, dtype, count, start)

    return read


def _strings(table: Table) -> tuple[bytes, ...]:
    start, count = need(vector(table, _ONLY), "values")
    if start + 4 * count > len(table.Bytes):
        raise ValueError(f"{count} strings in {len(table.Bytes)} bytes")
    places = [Table(table.Bytes, 0).Indirect(start + 4 * i) for i in range(count)]
    return tuple(counted(table.Bytes, place) for place in places)


def _binaries(table: Table) -> tuple[bytes, ...]:
    return tuple(content(inner, _ONLY, "buffer") for inner in tables(table, _ONLY, "values"))


_LISTS: Sequence[tuple[str, Callable[[Table], Any]]] = (
    ("int8_list", _numbers("<i1")),
    ("int16_list", _numbers("<i2")),
    ("int32_list", _numbers("<i4")),
    ("int64_list", _numbers("<i8")),
    ("float_list", _numbers("<f4")),
    ("double_list", _numbers("<f8")),
    ("bytes_list", _strings),
    ("bytes_list", _binaries),
)
"""The kinds of a tensor's data, numbered from 1, and the functions that read these."""


def _tensor(feature: Table) -> Field:
    tensor = child(feature, _TENSOR, "tensor")
    number = tensor.GetSlot(_KIND, 0, number_types.Uint8Flags)
    if not 0 < number <= len(_LISTS):
        raise ValueError(f"data of kind {number}")
    kind, read = _LISTS[number - 1]
    values = read(child(tensor, _DATA, "data"))
    start, rank = need(vector(tensor, _SHAPE), "shape")
    shape = np.frombuffer(tensor.Bytes, "<i4", rank, start).tolist()
    if min(shape, default=0) < 0 or prod(shape) != len(values):
        raise ValueError(f"{len(values)} values of shape {shape}")
    return kind, values if isinstance(values, tuple) else values.reshape(shape)


def parse_onerec(payload: bytes) -> dict[str, Field]:
    """Parse the tensors of a record; the values of a numeric tensor are an array of its shape."""
    features = tables(root(payload), _ONLY, "features")
    return {content(f, _NAME, "name").decode(): _tensor(f) for f in features}


class OneRecFiles(FramedFiles):
    """The records of OneRec files; see `FramedFiles`.

    Args:
        skip: see `FramedFiles`.
        verify: whether to parse records completely when they are read.
    """

    def __init__(self, paths: Sequence[str], skip: bool = False, verify: bool = True) -> None:
        parse: Callable[[bytes], Mapping[str, Field]] = parse_onerec
        super().__init__(paths, OneRecFrame(), parse, skip)
        self._verify = verify

    def read(self, part: int, number: int, place: tuple[int, int]) -> Record:
        """Read a record and verify its checksum; if ``verify`` is set, parse its tensors."""
        record = super().read(part, number, place)
        if self._verify:
            _ = record.fields
        return record


def unverified(paths: Sequence[str], skip: bool = False) -> OneRecFiles:
    """Open OneRec files without ``verify``: a record is parsed when a field is decoded."""
    return OneRecFiles(paths, skip, verify=False)
