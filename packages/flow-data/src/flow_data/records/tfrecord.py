"""TFRecord files: TensorFlow's frame around its Example messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import google_crc32c

from flow_data.records.framed import FramedFiles
from flow_data.records.record import Field
from flow_data.records.schema import Example


def masked_crc(data: bytes) -> int:
    """TensorFlow's checksum: the Castagnoli CRC, rotated and shifted.

    >>> hex(masked_crc(b"123456789"))
    '0xc78ab0e5'
    """
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class TFRecordFrame:
    """An unsigned 64-bit length with its checksum; the checksum of the payload behind it."""

    header = 12

    def length(self, header: bytes) -> int | None:
        """The length, None when its checksum is wrong."""
        value: int = struct.unpack("<Q", header[:8])[0]
        return value if struct.unpack("<I", header[8:])[0] == masked_crc(header[:8]) else None

    def trailer(self, length: int) -> int:
        """The checksum's size."""
        return 4

    def is_sound(self, payload: bytes, trailer: bytes) -> bool:
        """Whether the checksum is the payload's."""
        return len(trailer) == 4 and struct.unpack("<I", trailer)[0] == masked_crc(payload)


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
