"""Read TFRecord files, which contain framed tf.train.Example messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import google_crc32c

from flow_data.records.framed import FramedFiles
from flow_data.records.record import Field
from flow_data.records.schema import Example


def masked_crc(data: bytes) -> int:
    """Return TensorFlow's masked CRC-32C: the CRC, rotated, plus a constant.

    >>> hex(masked_crc(b"123456789"))
    '0xc78ab0e5'
    """
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class TFRecordFrame:
    """A frame with an unsigned 64-bit length, its checksum, and the checksum of the payload."""

    header = 12

    def length(self, header: bytes) -> int | None:
        """Return the length, or None if the checksum of the length is wrong."""
        value: int = struct.unpack("<Q", header[:8])[0]
        return value if struct.unpack("<I", header[8:])[0] == masked_crc(header[:8]) else None

    def trailer(self, length: int) -> int:
        return 4

    def is_valid(self, payload: bytes, trailer: bytes) -> bool:
        return len(trailer) == 4 and struct.unpack("<I", trailer)[0] == masked_crc(payload)


def parse_example(payload: bytes) -> dict[str, Field]:
    """Parse the features of an Example."""
    message = Example.FromString(payload)
    found: dict[str, Field] = {}
    for name, feature in message.features.feature.items():
        kind = feature.WhichOneof("kind")
        found[name] = ("bytes_list", ()) if kind is None else (kind, getattr(feature, kind).value)
    return found


class TFRecordFiles(FramedFiles):
    """The records of uncompressed TFRecord files; see `FramedFiles`."""

    def __init__(self, paths: Sequence[str], skip: bool = False) -> None:
        super().__init__(paths, TFRecordFrame(), parse_example, skip)
