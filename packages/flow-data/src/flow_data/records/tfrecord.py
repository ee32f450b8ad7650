"""TFRecord files: TensorFlow's frame around its Example messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from flow_data.records.framed import FramedFiles
from flow_data.records.record import Field
from flow_data.records.schema import Example

_POLYNOMIAL = 0x82F63B78


def _table() -> tuple[int, ...]:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(_POLYNOMIAL), values >> 1)
    return tuple(int(v) for v in values)


_CRC = _table()


def masked_crc(data: bytes) -> int:
    """TensorFlow's checksum: the Castagnoli CRC, rotated and shifted.

    >>> hex(masked_crc(b"123456789"))
    '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class TFRecordFrame:
    """An unsigned 64-bit length with its checksum; the checksum of the payload behind it.

    Lengths are checked.  Payloads are not: that takes longer than to decode them, and what is
    broken in them shows when they are parsed.
    """

    header = 12
    trailer = 4

    def length(self, header: bytes) -> int | None:
        """The length, None when its checksum is wrong."""
        value: int = struct.unpack("<Q", header[:8])[0]
        return value if struct.unpack("<I", header[8:])[0] == masked_crc(header[:8]) else None


def parse_example(payload: bytes) -> dict[str, Field]:
    """The features of an Example's bytes."""
    message = Example.FromString(payload)
    found: dict[str, Field] = {}
    for name, feature in message.features.feature.items():
        kind = feature.WhichOneof("kind")
        found[name] = ("bytes_list", ()) if kind is None else (kind, getattr(feature, kind).value)
    return found


class TFRecordFiles(FramedFiles):
    """The records of TFRecord files, uncompressed; see `FramedFiles`."""

    def __init__(self, paths: Sequence[str], skip: bool = False) -> None:
        super().__init__(paths, TFRecordFrame(), parse_example, skip)
