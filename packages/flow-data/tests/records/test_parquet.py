"""Parquet files that decode to much more than their size."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import DataError
from flow_data.records import parquet
from flow_data.records.parquet import ParquetFile

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
MIB = 1 << 20


def written(path: Path, column: Any, **options: Any) -> str:
    pq.write_table(pa.table({"x": column}), path, **options)
    assert path.stat().st_size < MIB // 4, "the file is small"
    return str(path)


def repeated(value: Any, count: int) -> Any:
    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int8), [value])


BOMBS = {
    "one number": lambda p: written(p, repeated(7, 2 * MIB)),
    "numbers of 16 bytes": lambda p: written(
        p, repeated(7, MIB // 2).cast(pa.int64()).cast(pa.decimal128(38, 0))
    ),
    "compressed numbers": lambda p: written(
        p, pa.array(np.zeros(2 * MIB)), compression="zstd", use_dictionary=False
    ),
    "compressed text": lambda p: written(
        p, pa.array(["a" * 9 * MIB]), compression="zstd", use_dictionary=False
    ),
    "null lists of fixed size": lambda p: written(
        p, pa.array([None] * 100, pa.list_(pa.float32(), 30_000))
    ),
    "null lists of fixed size in lists": lambda p: written(
        p, pa.array([[None] * 10] * 10, pa.list_(pa.list_(pa.float32(), 30_000)))
    ),
    "lists": lambda p: written(p, pa.array([np.zeros(2 * MIB)])),
    "lists of one text by prefixes": lambda p: written(
        p,
        pa.array([["a" * 9000] * 5000]),
        use_dictionary=False,
        column_encoding={"x.list.element": "DELTA_BYTE_ARRAY"},
    ),
    "one text by prefixes": lambda p: written(
        p,
        pa.array(["a" * 900_000] * 500),
        use_dictionary=False,
        column_encoding={"x": "DELTA_BYTE_ARRAY"},
    ),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_groups_that_are_too_large_are_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = BOMBS[kind](tmp_path / "bomb.parquet")
    monkeypatch.setattr(parquet, "_MOST", 8 * MIB)
    before = pa.total_allocated_bytes()
    file = ParquetFile(path, pa)
    with pytest.raises(ValueError, match=r"bytes in row group 0; at most 8388608 are decoded"):
        file.read(0)
    del file
    assert pa.total_allocated_bytes() - before < MIB


def test_a_job_names_the_file_and_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = BOMBS["one number"](tmp_path / "bomb.parquet")
    monkeypatch.setattr(parquet, "_MOST", 8 * MIB)
    flow.clear_default_session()

    @flow.global_function()
    def job() -> tp.Numpy:
        records = flow.data.record_reader("parquet", path, batch_size=1)
        return flow.data.OFRecordRawDecoder(records, "x", shape=(1,), dtype=flow.float32)

    with pytest.raises(DataError, match=r"(?s)bomb\.parquet, rows from 0.*row group 0"):
        job()
    flow.clear_default_session()


def test_dictionaries_that_are_too_large_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": ["a", "b"] * 50}), path)
    (chunk,) = ParquetFile(str(path), pa)._chunks(0)
    assert (chunk.values, chunk.distinct) == (100, 2)
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    at, end = column.dictionary_page_offset, column.data_page_offset
    head = [0x15, 4, 0x15, 0, 0x15, 2 * (end - at - 15), 0x4C, 0x15, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F]
    content = path.read_bytes()
    file = ParquetFile(str(path), pa)
    path.write_bytes(content[:at] + bytes([*head, 0, 0]) + content[at + 15 :])
    with pytest.raises(ValueError, match=r"up to 343597\d+ bytes in row group 0"):
        file.read(0)


@pytest.mark.parametrize("nested", [False, True])
def test_a_long_text_of_many_rows_is_kept_once(
    nested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, rows = "long" * 25_000, 1000
    column = pa.array([{"bytes": text, "other": 1}] * rows if nested else [text] * rows)
    path = written(tmp_path / "texts.parquet", column)
    monkeypatch.setattr(parquet, "_MOST", 8 * MIB)
    ((name, column),) = ParquetFile(path, pa).read(0)
    assert "dictionary" in str(column.type)
    assert (name, len(column)) == ("x", rows)
    assert column[rows - 1].as_py() == ({"bytes": text, "other": 1} if nested else text)


@pytest.mark.skipif(sys.platform == "win32", reason="open files are not renamed there")
def test_a_file_that_is_replaced_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "long" * 25_000
    path = written(tmp_path / "texts.parquet", pa.array([text] * 1000))
    file = ParquetFile(path, pa)
    os.mkfifo(tmp_path / "pipe")
    os.replace(tmp_path / "pipe", path)
    monkeypatch.setattr(parquet, "_MOST", 8 * MIB)  # the column is read again, as a dictionary
    ((_, column),) = file.read(0)
    assert column[999].as_py() == text


def test_texts_by_prefixes_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{'common' * 50} {i}" for i in range(2000)]
    how = {"use_dictionary": False, "column_encoding": {"x": "DELTA_BYTE_ARRAY"}}
    path = written(tmp_path / "texts.parquet", pa.array(texts), **how)
    monkeypatch.setattr(parquet, "_MOST", 2 * MIB)
    ((_, column),) = ParquetFile(path, pa).read(0)
    assert column.to_pylist() == texts


def test_groups_of_a_large_file_are_as_large_as_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).standard_normal(100_000)
    pq.write_table(pa.table({"x": values}), tmp_path / "large.parquet")
    monkeypatch.setattr(parquet, "_MOST", 1 << 10)
    ((_, column),) = ParquetFile(str(tmp_path / "large.parquet"), pa).read(0)
    np.testing.assert_array_equal(column, values)


def test_the_lists_around_each_column(tmp_path: Path) -> None:
    pairs, vectors = pa.list_(pa.int8(), 2), pa.list_(pa.float32(), 3)
    kinds = {
        "a": pa.int64(), "b": pairs, "c": pa.struct([("d", pa.list_(vectors)), ("e", pa.string())]),
        "f": pa.map_(pa.string(), pairs), "g": pa.list_(pairs, 5),
        "h": pa.dictionary(pa.int8(), pa.string()), "i": pa.large_list(pa.null()),
    }  # fmt: skip
    found = [each for kind in kinds.values() for each in parquet._fixed_lists(kind, pa)]
    assert found == [
        (1, False), (2, False), (3, True), (1, False), (1, True), (2, True), (10, False),
        (1, False), (1, True),
    ]  # fmt: skip
    table = pa.table({name: pa.array([None, None], kind) for name, kind in kinds.items()})
    pq.write_table(table, tmp_path / "x.parquet")
    file = ParquetFile(str(tmp_path / "x.parquet"), pa)
    assert [c.values for c in file._chunks(0)] == [2, 4, 6, 2, 2, 4, 20, 2, 2]
    assert [name for name, _ in file.read(0)] == list(kinds)


def test_sizes_are_those_of_the_pages(tmp_path: Path) -> None:
    """The footer may declare anything; page headers are what pyarrow allocates."""
    for version in ("1.0", "2.0"):
        path = tmp_path / "x.parquet"
        table = pa.table({"x": np.arange(50_000), "y": [["a", "bc"]] * 50_000})
        pq.write_table(table, path, data_page_version=version, data_page_size=10_000)
        file = ParquetFile(str(path), pa)
        group = pq.ParquetFile(path).metadata.row_group(0)
        for index, chunk in enumerate(file._chunks(0)):
            declared = group.column(index)
            assert chunk.values == declared.num_values
            assert 0 <= declared.total_uncompressed_size - chunk.size < 5000, "the headers"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no complete page header"),
        (b"\x15\x04\x25", "no complete page header"),
        (b"\x15" + b"\xff" * 12, "more than 64 bits"),
        (b"\x1b\x00\x00", "type 11"),
        (b"\x1c" * 20, "type 12"),
        (b"\x15\x00\x15\x00\x00", "without its sizes"),
        (b"\x25\x01\x15\x00\x00", "a page of 0 bytes"),
        (b"\x25\x00\x15\x80\x80\x04\x00", "a page of 32768 bytes"),
        (b"\x25\x00\x15\x00\x2c\x15\x01\x00\x00", "-1 values"),
    ],
)
def test_malformed_page_headers(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [1]}), path, use_dictionary=False)
    file = ParquetFile(str(path), pa)
    at = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    assert file.read(0)[0][1].to_pylist() == [1]
    path.write_bytes(path.read_bytes()[:at] + data)
    with pytest.raises(ValueError, match=words):
        file.read(0)


DAMAGED = """
import sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from flow_data.records.parquet import ParquetFile

path = Path(sys.argv[1])
pq.write_table(pa.table({"x": [[["a", None]], []]}), path)
sound = path.read_bytes()
first = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
for at in range(first, len(sound)):
    for change in (1, 2, 16, 128):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ change]) + sound[at + 1 :])
        try:
            ParquetFile(str(path), pa).read(0)
        except Exception:
            pass
print("done")
"""


def test_no_footer_ends_the_process(tmp_path: Path) -> None:
    """As pyarrow's accessors of columns do for some malformed statistics."""
    done = processes.run([sys.executable, "-c", DAMAGED, str(tmp_path / "x.parquet")], check=True)
    assert done.stdout == "done\n"


def test_footers_that_are_not_complete(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    sound = path.read_bytes()
    for end, words in (
        (b"\xff\xff\xff\xff", "a footer of 4294967295 bytes"),
        (bytes(4), "a footer that is not complete"),
    ):
        file = ParquetFile(str(path), pa)
        path.write_bytes(sound[:-8] + end + b"PAR1")
        with pytest.raises(ValueError, match=words):
            file.read(0)
        path.write_bytes(sound)
