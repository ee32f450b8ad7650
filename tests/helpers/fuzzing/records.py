"""Files of records: OFRecord, TFRecord, OneRec and WebDataset tars."""

from __future__ import annotations

import io
import random
import struct
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from onerec_files import example, framed

from flow_core.base.errors import DataError
from flow_data.instances import RowError
from flow_data.kernels.decoders import numbers_into
from flow_data.records.ofrecord import OFRecordFiles, encode_record
from flow_data.records.onerec import OneRecFiles
from flow_data.records.schema import Example
from flow_data.records.tfrecord import TFRecordFiles, masked_crc
from flow_data.records.webdataset import WebDatasetFiles
from flow_data.rows import for_each_row
from fuzzing.mutations import EXTREMES, mutate_bytes
from fuzzing.target import Target

_FIELDS: dict[str, Any] = {"label": 3, "x": np.arange(5, dtype=np.float32), "image": b"abc" * 9}


def _ofrecords() -> list[bytes]:
    records = [encode_record(_FIELDS), encode_record({"names": [b"a", b"bc"], "y": 2**40})]
    return [b"".join(struct.pack("<q", len(r)) + r for r in records * n) for n in (1, 3)]


def _tf_frame(payload: bytes) -> bytes:
    head = struct.pack("<Q", len(payload))
    crc = struct.pack("<I", masked_crc(head))
    return head + crc + payload + struct.pack("<I", masked_crc(payload))


def _tf_payload() -> bytes:
    message = Example()
    message.features.feature["label"].int64_list.value.append(5)
    message.features.feature["x"].float_list.value.extend((1.5, -2))
    message.features.feature["image"].bytes_list.value.append(b"abc")
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _one_payload() -> bytes:
    return example({"label": np.array([[3, 4]], np.int32), "image": [b"abc", b""]})


def _framed_mutation(payload: bytes, frame: Callable[[bytes], bytes]) -> Any:
    """Half of the cases have sound checksums around a mutated payload."""

    def mutate(data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return frame(mutate_bytes(payload, rng)) + data
        return mutate_bytes(data, rng)

    return mutate


def _read_all(files: Any) -> None:
    """Read and decode all records of a file."""
    number = 0
    while (place := files.place(0, number)) is not None:
        files.origin(0, number, place)
        try:
            decode_all(files.read(0, number, place))
        except RowError:
            if not files.skipping:
                raise
        number += 1


def decode_all(record: Any) -> None:
    """Read all fields of a record."""
    for name in record.fields:
        _decode(record, name)


def _decode(record: Any, name: str) -> None:
    """Read a field as bytes and as numbers; either may be refused as a sample's fault."""
    out = np.empty((1, 64), np.int32)
    with suppress(RowError):
        record.blob(name)
    with suppress(RowError):
        for_each_row("raw", 1, lambda row: numbers_into(record, name, out[row], True, True))()


def _reader(kind: Callable[..., Any]) -> Callable[[Path], Callable[[bytes, int], object]]:
    def opened(folder: Path) -> Callable[[bytes, int], object]:
        path = folder / "records"

        def read(data: bytes, number: int) -> None:
            path.write_bytes(data)
            files = kind([str(path)], number % 2 == 1)
            files.skipping = number % 2 == 1
            if not files.skipping:
                _read_all(files)
                return
            try:
                _read_all(files)
            except DataError as error:
                raise AssertionError(f'{error!r} in spite of on_error="skip"') from error

        return read

    return opened


# ------------------------------------------------------------------------------------------ tars

_PARTS = {
    "name": (0, 100),
    "size": (124, 12),
    "type": (156, 1),
    "magic": (257, 8),
    "rest": (345, 155),
}
_SIZES = (b"%011o\0" % 5, b"-0000000001\0", b"77777777777\0", b"00000000000\0", b"           \0")


def _tars() -> list[bytes]:
    return [_tar(kind) for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]


def _tar(kind: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
        for number in range(3):
            for suffix, data in (("jpg", b"picture" * 90), ("cls", b"%d" % number)):
                folder = "d" * 120 + "/" if number == 1 and kind != tarfile.USTAR_FORMAT else ""
                info = tarfile.TarInfo(f"{folder}{number:04}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def _headers(data: bytes) -> list[int]:
    """Where headers begin, as far as their checksums hold."""
    blocks = range(0, len(data) - 511, 512)
    return [at for at in blocks if data[at + 257 : at + 262] == b"ustar"]


def _size_field(rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return rng.choice(_SIZES)
    value = rng.choice(EXTREMES)
    sign = rng.choice((b"\x80", b"\xff"))
    return sign + (value if sign == b"\x80" else (1 << 88) - 1 - value).to_bytes(11, "big")


_TYPES = b"\0001234567LKxgSDMNVX"


def _field(part: str, size: int, rng: random.Random) -> bytes:
    if part == "size":
        return _size_field(rng)
    if part == "type":
        return bytes([rng.choice(_TYPES)])
    return rng.choice((rng.randbytes(size), b"\xff" * size, b"../../x".ljust(size, b"\0")))


def _mutate_tar(data: bytes, rng: random.Random) -> bytes:
    """Changed fields of headers with sound checksums, changed bytes, and PAX records."""
    if rng.random() < 0.35:
        return mutate_bytes(data, rng)
    made = bytearray(data)
    for at in rng.sample(_headers(data), rng.choice((1, 1, 2))):
        part = rng.choice(("size", "size", "type", "type", "name", "magic", "rest"))
        start, size = _PARTS[part]
        made[at + start : at + start + size] = _field(part, size, rng)
        _seal(made, at)
    if rng.random() < 0.3:
        made[:0] = _pax(rng)
    return bytes(made)


def _seal(data: bytearray, at: int) -> None:
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])


def _pax(rng: random.Random) -> bytes:
    """An extended header that changes what follows."""
    key = rng.choice((b"size", b"path", b"GNU.sparse.major", b"GNU.sparse.map", b"GNU.sparse.size",
                      b"GNU.sparse.numblocks", b"GNU.sparse.name", b"hdrcharset"))  # fmt: skip
    value = rng.choice((b"-1", b"0", b"1", b"99999999999999999999", b"x", b"\xff\xfe", b"1,2,3",
                        b"5", b"-512", b"", b"9" * 5000))  # fmt: skip
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + len(str(len(body) + 3))
    record = str(rng.choice((length, length, 0, 3, 10**20))).encode() + body
    header = bytearray(512)
    header[:4], header[257:265] = b"pax\0", b"ustar\x0000"
    header[124:136], header[156] = b"%011o\0" % len(record), rng.choice(b"xg")
    _seal(header, 0)
    return bytes(header) + record + bytes(-len(record) % 512)


def _targets() -> Sequence[Target]:
    tf, one = _tf_payload(), _one_payload()
    return (
        Target("ofrecord", _ofrecords, _reader(OFRecordFiles), weight=2),
        Target(
            "tfrecord",
            lambda: [_tf_frame(tf) * 3],
            _reader(TFRecordFiles),
            _framed_mutation(tf, _tf_frame),
        ),
        Target(
            "onerec",
            lambda: [framed(one) * 2],
            _reader(OneRecFiles),
            _framed_mutation(one, framed),
        ),
        Target("webdataset", _tars, _reader(WebDatasetFiles), _mutate_tar, weight=2),
    )


TARGETS = _targets()
