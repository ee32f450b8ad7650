"""Reading and writing of record files, and corrupt data."""

from __future__ import annotations

import io
import os
import random
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onerec_files import example as onerec
from onerec_files import framed

from flow_core.base.errors import DataError
from flow_data.cli.convert import CsvSamples, NpzSamples
from flow_data.codec import encode_jpeg
from flow_data.loading.coco import CocoAnnotations
from flow_data.records import tables
from flow_data.records.folder import FolderFiles
from flow_data.records.ofrecord import (
    OFRecordFiles,
    OFRecordWriter,
    encode_record,
    parse_ofrecord,
    part_path,
    part_paths,
    read_ofrecords,
)
from flow_data.records.onerec import OneRecFiles
from flow_data.records.schema import Example
from flow_data.records.tfrecord import TFRecordFiles, masked_crc
from flow_data.records.webdataset import WebDatasetFiles


def of_field(name: str, kind: int, body: bytes) -> bytes:
    """Encode a map entry according to the protobuf specification."""
    values = bytes([0x0A, len(body)]) + body
    feature = bytes([kind << 3 | 2, len(values)]) + values
    entry = bytes([0x0A, len(name)]) + name.encode() + bytes([0x12, len(feature)]) + feature
    return bytes([0x0A, len(entry)]) + entry


def all_records(files: Any, part: int = 0) -> list[Any]:
    found = []
    while (place := files.place(part, len(found))) is not None:
        found.append(files.read(part, len(found), place))
    return found


def test_wire_format_is_read() -> None:
    payload = of_field("label", 4, b"\x07\x05") + of_field("image", 1, b"abc")
    payload += of_field("x", 2, struct.pack("<2f", 1.5, -2))
    payload += of_field("y", 3, struct.pack("<d", 0.25)) + of_field("z", 5, b"\x80\x01")
    fields = {k: (kind, list(v)) for k, (kind, v) in parse_ofrecord(payload).items()}
    assert fields == {
        "label": ("int32_list", [7, 5]),
        "image": ("bytes_list", [b"abc"]),
        "x": ("float_list", [1.5, -2.0]),
        "y": ("double_list", [0.25]),
        "z": ("int64_list", [128]),
    }


def test_wire_format_is_written() -> None:
    assert encode_record({"label": 7}) == of_field("label", 4, b"\x07")
    assert encode_record({"image": b"abc"}) == of_field("image", 1, b"abc")


VALUES = st.one_of(
    st.binary(max_size=30),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5).map(
        lambda v: np.array(v, np.int32)
    ),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5).map(
        lambda v: np.array(v, np.int64)
    ),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5).map(
        lambda v: np.array(v, np.float32)
    ),
)


@settings(max_examples=40)
@given(st.lists(st.dictionaries(st.text(max_size=8), VALUES, max_size=4), min_size=1, max_size=5))
def test_written_records_round_trip(records: list[dict[str, Any]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part-0"
        with OFRecordWriter(path) as writer:
            for record in records:
                writer.write_bytes(encode_record(record) or of_field("", 1, b""))
        read = list(read_ofrecords(path))
    assert len(read) == len(records)
    for got, wrote in zip(read, records, strict=True):
        for name, value in wrote.items():
            kind, values = got[name]
            if isinstance(value, bytes):
                assert (kind, list(values)) == ("bytes_list", [value])
            else:
                assert np.array_equal(np.array(values, value.dtype), value)


def three_records(path: Path) -> bytes:
    with OFRecordWriter(path) as writer:
        for i in range(3):
            writer.write({"label": i, "image": b"x" * 50})
    return path.read_bytes()


@pytest.mark.parametrize(
    ("damage", "found", "sound"),
    [
        (lambda d: d[:-1], "record 2", 2),
        (lambda d: d[: len(d) // 3 + 4], "record 1", 1),
        (lambda d: struct.pack("<q", -5) + d[8:], "record 0 at byte 0", 0),
        (lambda d: struct.pack("<q", 1 << 60) + d[8:], "a length of", 0),
    ],
)
def test_errors_in_broken_frames_name_the_position(
    tmp_path: Path, damage: Any, found: str, sound: int
) -> None:
    path = tmp_path / "part-0"
    path.write_bytes(damage(three_records(path)))
    with pytest.raises(DataError) as caught:
        list(read_ofrecords(path))
    assert found in str(caught.value)
    assert str(path) in str(caught.value)
    skipping = OFRecordFiles([str(path)], skip=True)
    assert len(all_records(skipping)) == sound
    assert len(skipping.broken) == 1


def test_error_of_an_invalid_payload_names_the_position(tmp_path: Path) -> None:
    path = tmp_path / "part-0"
    with OFRecordWriter(path) as writer:
        writer.write({"label": 0})
        writer.write_bytes(b"\xff\xff\xff")
        writer.write({"label": 2})
    with pytest.raises(DataError, match="record 1 at byte"):
        list(read_ofrecords(path))
    labels = [list(r["label"][1]) for r in read_ofrecords(path, on_error="skip")]
    assert labels == [[0], [2]]


def test_missing_part_or_folder_is_named(tmp_path: Path) -> None:
    three_records(Path(part_path(str(tmp_path), 0, suffix_length=3)))
    assert part_paths(str(tmp_path), 1, "part-", 3) == [str(tmp_path / "part-000")]
    with pytest.raises(DataError, match=r"1 of 2 parts missing.*part-000"):
        part_paths(str(tmp_path), 2, "part-", 3)
    with pytest.raises(DataError, match="part_name_suffix_length=3 finds them"):
        part_paths(str(tmp_path), 1, "part-", -1)
    with pytest.raises(DataError, match="check data_part_num"):
        part_paths(str(tmp_path), 2, "part-", -1)
    with pytest.raises(DataError, match="no such folder"):
        part_paths(str(tmp_path / "no"), 1, "part-", 3)


def test_abandoned_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "part-0"
    three_records(path)
    before = path.read_bytes()
    writer = OFRecordWriter(path)
    writer.write({"label": 1})
    writer.__exit__(RuntimeError)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["part-0"]


# ----------------------------------------------------------------------------- corrupt data


def tfrecord(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    checks = [struct.pack("<I", masked_crc(part)) for part in (length, payload)]
    return length + checks[0] + payload + checks[1]


def an_example() -> bytes:
    message = Example()
    message.features.feature["label"].int64_list.value.append(5)
    message.features.feature["image"].bytes_list.value.append(b"abc")
    data: bytes = message.SerializeToString()
    return data


def an_ofrecord() -> bytes:
    record = encode_record({"label": 3, "x": np.arange(3, dtype=np.float32), "image": b"abc"})
    return struct.pack("<q", len(record)) + record


A_ONEREC = onerec({"label": np.array([3], np.int32), "image": [b"abc"]})
FORMATS: dict[str, tuple[Any, bytes, Any]] = {
    "OFRecord": (OFRecordFiles, an_ofrecord(), lambda length: 0),
    "TFRecord": (TFRecordFiles, tfrecord(an_example()), lambda length: 4),
    "OneRec": (OneRecFiles, framed(A_ONEREC), lambda length: -length % 8 + 8),
}
"""A file class, a framed record, and the number of its bytes after the payload."""


class Memory:
    """An in-memory file, rewritten for each byte stream."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("stream")
        self.path = f"/proc/self/fd/{self._descriptor}"

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, data: bytes | bytearray) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)


def survive(kind: str, memory: Memory, data: bytes | bytearray, skip: bool) -> None:
    """Read any bytes: either all are records, or an error or a note locates the end.

    With checksums, the records read must also be among those written.
    """
    memory.write(data)
    make, sound, behind = FORMATS[kind]
    files, number, read = make([memory.path], skip), 0, 0
    errors: list[DataError] = []
    while skip or not errors:
        try:
            place = files.place(0, number)
        except DataError as error:
            errors.append(error)
            break
        if place is None:
            break
        number, read = number + 1, place[1] + behind(place[1] - place[0])
        try:
            record = files.read(0, number - 1, place)
            _ = record.fields
        except DataError as error:
            errors.append(error)
        else:
            assert kind == "OFRecord" or record.payload in sound
    assert all(memory.path in str(error) for error in errors)
    assert bool(files.broken) == (skip and read < len(data))
    assert skip or errors or read == len(data)


def damaged(sound: bytes, draw: random.Random) -> bytearray:
    """Draw three records with up to three bytes changed, half of them truncated."""
    data = bytearray(sound * 3)
    for _ in range(draw.randrange(4)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return data[: draw.randrange(len(data) + 1)] if draw.random() < 0.5 else data


@settings(max_examples=100)
@given(st.sampled_from(sorted(FORMATS)), st.binary(max_size=64), st.booleans())
@example("OFRecord", b"", False)
@example("OFRecord", struct.pack("<q", 1), False)
def test_no_input_crashes_a_parser(kind: str, data: bytes, skip: bool) -> None:
    with Memory() as memory:
        survive(kind, memory, data, skip)


def try_damaged_streams(kind: str, count: int) -> None:
    draw, sound = random.Random(7), FORMATS[kind][1]
    with Memory() as memory:
        for i in range(count):
            survive(kind, memory, damaged(sound, draw), skip=i % 2 == 1)


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_streams_are_handled(kind: str) -> None:
    try_damaged_streams(kind, 1000)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", FORMATS)
def test_million_damaged_streams_are_handled(kind: str) -> None:
    try_damaged_streams(kind, 1_000_000)


# ------------------------------------------------------------------------------- other formats


def test_tfrecords(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(tfrecord(an_example()) * 2)
    records = all_records(TFRecordFiles([str(path)]))
    assert [list(r.field("label")[1]) for r in records] == [[5], [5]]
    assert records[1].blob("image") == b"abc"
    sound = path.read_bytes()
    for at, found in ((0, "record 0 at byte 0"), (20, "checksum"), (-1, "record 1")):
        damaged = bytearray(sound)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=found):
            all_records(TFRecordFiles([str(path)]))


def tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))


def test_webdataset(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    tar(path, {"0/a.jpg": b"one", "0/a.cls": b"4", "0/b.jpg": b"two", "0/b.cls": b"7"})
    records = all_records(WebDatasetFiles([str(path)]))
    assert [(r.blob("jpg"), list(r.field("cls")[1])) for r in records] == [
        (b"one", [4]), (b"two", [7])
    ]  # fmt: skip
    whole = path.read_bytes()
    bad_header = whole[:2048] + b"\xff" * 100 + whole[2148:]
    for damaged, sound in ((whole[:1600], 2), (whole[:2048], 1), (bad_header, 1), (b"", 0)):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.tar"):
            all_records(WebDatasetFiles([str(path)]))
        skipping = WebDatasetFiles([str(path)], skip=True)
        assert len(all_records(skipping)) <= sound
        assert len(skipping.broken) == 1


def with_size(data: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """Return a tar whose first header has another size and type and a valid checksum."""
    head = bytearray(data[:512])
    head[124:136], head[156:157], head[148:156] = size, kind, b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + data[512:]


def binary(size: int) -> bytes:
    return (b"\xff" if size < 0 else b"\x80") + (size % (1 << 88)).to_bytes(11, "big")


@pytest.mark.parametrize("kind", [b"0", b"L", b"x", b"g", b"S", b"V", b"5"])
@pytest.mark.parametrize("size", [-1, -512, -1024, -(1 << 40), 1 << 40, 1 << 62, 1 << 70])
def test_tar_headers_with_wrong_sizes(tmp_path: Path, size: int, kind: bytes) -> None:
    """They cause no endless loop and no reads or allocations beyond the file."""
    path = tmp_path / "a.tar"
    tar(path, {"0.jpg": b"one", "0.cls": b"4"})
    path.write_bytes(with_size(path.read_bytes(), binary(size), kind))
    sizes: dict[str, bytes] = {}
    try:
        for record in all_records(WebDatasetFiles([str(path)])):
            sizes |= record.payload
    except DataError as error:
        assert str(path) in str(error)  # noqa: PT017 - some member types have no data
    assert sum(map(len, sizes.values())) <= 4
    skipping = WebDatasetFiles([str(path)], skip=True)
    all_records(skipping)
    assert len(skipping.broken) <= 1


def test_sparse_members_are_rejected(tmp_path: Path) -> None:
    """Their data is not stored contiguously; other members' bytes would be read instead."""
    path = tmp_path / "a.tar"
    tar(path, {"0.jpg": b"one" * 300, "0.cls": b"4"})
    data = bytearray(path.read_bytes())
    data[386:410] = (
        b"00000000000\0" + b"00000001000\0"
    )  # one piece of 512 bytes; the real size is larger
    data[483:495] = b"00000010000\0"
    path.write_bytes(with_size(bytes(data), b"%011o\0" % 512, b"S"))
    with pytest.raises(DataError, match="a sparse member"):
        all_records(WebDatasetFiles([str(path)]))
    assert all_records(WebDatasetFiles([str(path)], skip=True)) == []


def test_members_without_data_may_have_a_size(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as file:
        for name, kind, size in (("a.jpg", tarfile.REGTYPE, 3), ("b.jpg", tarfile.LNKTYPE, 700)):
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, size, "a.jpg"
            file.addfile(info, io.BytesIO(b"one") if kind == tarfile.REGTYPE else None)
    assert [r.blob("jpg") for r in all_records(WebDatasetFiles([str(path)]))] == [b"one"]


@pytest.fixture(scope="module")
def whole_tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    tar(path, {f"0/{i}.{kind}": b"%d" % i for i in range(4) for kind in ("jpg", "cls")})
    return path


@settings(max_examples=200)
@given(st.binary(min_size=1, max_size=20), st.integers(0, 4095), st.integers(0), st.booleans())
def test_no_input_crashes_the_tar_reader(
    whole_tar: Path, patch: bytes, place: int, cut: int, skip: bool
) -> None:
    """Either all records are read, or an error or a note locates the end."""
    whole = whole_tar.read_bytes()
    data = whole[:place] + patch + whole[place + len(patch) :]
    path = whole_tar.with_name("damaged.tar")
    path.write_bytes(data[: len(data) - cut % 512 * (cut % 2)])
    files, message = WebDatasetFiles([str(path)], skip), ""
    try:
        for record in all_records(files):
            assert record.fields
    except DataError as error:
        message = str(error)
    assert not message or str(path) in message


def arrow_of(files: Any) -> Any:
    pytest.importorskip("pyarrow")
    return getattr(tables, files)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("format", [*FORMATS, "tar", "Parquet", "Arrow", "COCO", "CSV", "npz"])
def test_only_regular_files_are_read(tmp_path: Path, format: str, kind: str) -> None:
    """Opening a pipe would wait for its writer."""
    path = tmp_path / "x.csv" if format == "CSV" else tmp_path / "x.npz"
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        (os.mkfifo if kind == "pipe" else os.mkdir)(path)
    opened = {
        "tar": lambda: WebDatasetFiles([str(path)]).place(0, 0),
        "Parquet": lambda: arrow_of("ParquetFiles")([str(path)]),
        "Arrow": lambda: arrow_of("ArrowFiles")([str(path)]),
        "COCO": lambda: CocoAnnotations(str(path), ".", False),
        "CSV": lambda: CsvSamples(str(path)),
        "npz": lambda: NpzSamples(str(path)),
    }.get(format) or (lambda: FORMATS[format][0]([str(path)]).place(0, 0))
    with pytest.raises(DataError, match=f"{path}(?s:.*){kind} instead of a regular file"):
        opened()


def test_folder_of_images(tmp_path: Path) -> None:
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "1.jpg").write_bytes(encode_jpeg(np.zeros((4, 5, 3), np.uint8)))
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    records = all_records(FolderFiles([str(tmp_path)]))
    assert [list(r.field("class/label")[1]) for r in records] == [[0], [1]]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no image in it"):
        FolderFiles([str(tmp_path / "empty")])
