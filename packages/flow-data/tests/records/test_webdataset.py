"""Names of files in WebDataset tars, and ranges of tars."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import DataError
from flow_data.records.webdataset import WebDatasetFiles, expanded


def written(path: Path, members: Sequence[tuple[str, bytes]]) -> Any:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return WebDatasetFiles([str(path)])


def fields(files: Any) -> list[dict[str, Any]]:
    found: list[Any] = []
    while (place := files.place(0, len(found))) is not None:
        record = files.read(0, len(found), place)
        found.append({name: values[0] for name, (_, values) in record.fields.items()})
    return found


FOREIGN = (
    "._1.cls", "README", ".DS_Store", "__MACOSX/._1.cls", "__MACOSX/1.cls", "__notes__/x.txt",
    "./__notes__/x.txt", "a/.hidden.cls", "a/LICENSE",
)  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_files_that_belong_to_no_record(tmp_path: Path, name: str) -> None:
    files = written(tmp_path / "t", [(name, b"\0\5"), ("1.cls", b"7"), (name, b"x")])
    assert fields(files) == [{"cls": 7}]


def test_fields_are_in_lower_case(tmp_path: Path) -> None:
    members = [("a.b/1.CLS", b"7"), ("a.b/1.Seg.PNG", b"x"), ("__x/1.cls", b"8"), ("1.", b"y")]
    found = fields(written(tmp_path / "t", members))
    assert found == [{"cls": 7, "seg.png": b"x"}, {"cls": 8}, {"": b"y"}]


def test_files_of_a_record_may_be_apart(tmp_path: Path) -> None:
    members = [("1.cls", b"1"), ("2.cls", b"2"), ("1.jpg", b"x")]
    assert fields(written(tmp_path / "t", members)) == [{"cls": 1, "jpg": b"x"}, {"cls": 2}]


@pytest.mark.parametrize("second", ["1.cls", "1.CLS"])
def test_a_field_twice_is_an_error_of_its_record(tmp_path: Path, second: str) -> None:
    files = written(tmp_path / "t", [("1.cls", b"1"), (second, b"2"), ("2.cls", b"3")])
    with pytest.raises(DataError, match=r"record 0 at byte(?s:.*)several files \*\.cls"):
        files.read(0, 0, files.place(0, 0))
    assert list(files.read(0, 1, files.place(0, 1)).field("cls")[1]) == [3]


@pytest.mark.parametrize(
    ("path", "paths"),
    [
        ("a.tar", ["a.tar"]),
        ("{9..11}.tar", ["9.tar", "10.tar", "11.tar"]),
        ("{08..10}", ["08", "09", "10"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{1..2}/{0..1}", ["1/0", "1/1", "2/0", "2/1"]),
        ("{a,b}-{..}-{1..x}", ["{a,b}-{..}-{1..x}"]),
    ],
)
def test_ranges_of_tars(path: str, paths: list[str]) -> None:
    assert expanded(path) == paths


def test_readers_expand_ranges(tmp_path: Path) -> None:
    for number in range(2):
        written(tmp_path / f"s-00{number}.tar", [("1.cls", b"%d" % number)])
    pattern = str(tmp_path / "s-{000..001}.tar")

    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        tars = flow.data.webdataset_reader(pattern, batch_size=2)
        records = flow.data.record_reader("webdataset", pattern, batch_size=2)
        options = {"shape": (), "dtype": flow.int32}
        return tuple(flow.data.OFRecordRawDecoder(r, "cls", **options) for r in (tars, records))

    assert [x.tolist() for x in job()] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("pattern", ["{0..1000000}", "{0..9999}-{0..9999}", "{0..99999999999999}"])
def test_ranges_have_a_limit(pattern: str) -> None:
    @flow.global_function()
    def job() -> tp.Numpy:
        records = flow.data.webdataset_reader(pattern)
        return flow.data.OFRecordRawDecoder(records, "cls", shape=(), dtype=flow.int32)

    with pytest.raises(DataError, match="more than 1000000 files"):
        job()
