"""Arrow files and streams: types, inconsistent metadata, and files that change."""

from __future__ import annotations

import decimal
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flow_core.base.errors import DataError
from flow_data.records.tables import ArrowFiles, ParquetFiles

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
DIGITS = decimal.Decimal("1.25")

READ: dict[str, tuple[Any, Any, Any]] = {
    "int8": (pa.int8(), [1, None, -3], [[1], [], [-3]]),
    "uint64": (pa.uint64(), [2**64 - 1], [[2**64 - 1]]),
    "bool": (pa.bool_(), [True, False], [[1], [0]]),
    "half": (pa.float16(), np.array([1.5, 2], np.float16), [[1.5], [2.0]]),
    "double": (pa.float64(), [0.1, None], [[0.1], []]),
    "decimal": (pa.decimal128(9, 2), [DIGITS, None], [[1.25], []]),
    "decimal256": (pa.decimal256(40, 2), [DIGITS], [[1.25]]),
    "date32": (pa.date32(), [3], [[3]]),
    "date64": (pa.date64(), [86_400_000], [[86_400_000]]),
    "time32": (pa.time32("ms"), [7], [[7]]),
    "time64": (pa.time64("ns"), [7], [[7]]),
    "timestamp": (pa.timestamp("ns", "UTC"), [2**62 + 1], [[2**62 + 1]]),
    "duration": (pa.duration("ms"), [5], [[5]]),
    "text": (pa.string(), ["a", None, ""], [[b"a"], [], [b""]]),
    "large text": (pa.large_string(), ["a"], [[b"a"]]),
    "bytes": (pa.binary(), [b"\xff", b""], [[b"\xff"], [b""]]),
    "fixed bytes": (pa.binary(2), [b"ab"], [[b"ab"]]),
    "null": (pa.null(), [None, None], [[], []]),
    "list": (pa.list_(pa.int32()), [[1, 2], [], None], [[1, 2], [], []]),
    "large list": (pa.large_list(pa.string()), [["a", "b"]], [[b"a", b"b"]]),
    "fixed list": (pa.list_(pa.int32(), 2), [[1, 2]], [[1, 2]]),
    "matrix": (pa.list_(pa.list_(pa.float32())), [[[1, 2], [3, 4]]], [[1, 2, 3, 4]]),
    "times in lists": (pa.list_(pa.timestamp("ms")), [[1, 2]], [[1, 2]]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["b", "a"], [[b"b"], [b"a"]]),
    "image": (IMAGE, [{"bytes": b"xyz", "path": None}], [[b"xyz"]]),
}  # fmt: skip
"""For each kind of column: its type, its values, and the values of the field."""

REFUSED: dict[str, tuple[Any, Any, str]] = {
    "null in list": (pa.list_(pa.int32()), [[1, None]], "a list in which a value is missing"),
    "ragged": (pa.list_(pa.list_(pa.int32())), [[[1], [2, 3]]], "different lengths"),
    "image by path": (IMAGE, [{"bytes": None, "path": "a.png"}], "a struct without bytes"),
    "struct": (pa.struct([("a", pa.int8())]), [{"a": 1}], "name a part"),
    "map": (pa.map_(pa.string(), pa.int8()), [[("a", 1)]], "a column of type"),
    "maps in a list": (pa.list_(pa.map_(pa.string(), pa.int8())), [[[("a", 1)]]], "of type"),
    "union": (pa.dense_union([pa.field("a", pa.int8())]), None, "a column of type"),
    "interval": (pa.month_day_nano_interval(), [(1, 2, 3)], "a column of type"),
    "runs": (pa.run_end_encoded(pa.int16(), pa.int8()), [1, 1], "a column of type"),
}
"""For each kind of column that is refused: its type, its values, and words of the error."""

FORMATS = ("file", "stream", "lz4", "zstd", "parquet")


def column(kind: Any, values: Any) -> Any:
    if pa.types.is_union(kind):
        ids, offsets = pa.array([0], pa.int8()), pa.array([0], pa.int32())
        return pa.UnionArray.from_dense(ids, offsets, [pa.array([1], pa.int8())])
    if pa.types.is_run_end_encoded(kind):
        return pa.RunEndEncodedArray.from_arrays(
            pa.array([2], pa.int16()), pa.array([1], pa.int8())
        )
    return pa.array(values, kind)


def written(path: Path, table: Any, format: str = "file", rows: int | None = None) -> Any:
    """Write a table and open it."""
    if format == "parquet":
        pq.write_table(table, path, row_group_size=rows)
        return ParquetFiles([str(path)])
    write = pa.ipc.new_stream if format == "stream" else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=format if format in ("lz4", "zstd") else None)
    with pa.OSFile(str(path), "wb") as sink, write(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return ArrowFiles([str(path)])


def records(files: Any) -> list[Any]:
    found: list[Any] = []
    while (place := files.place(0, len(found))) is not None:
        found.append(files.read(0, len(found), place))
    return found


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", READ)
def test_columns_that_are_read(tmp_path: Path, kind: str, format: str) -> None:
    made, values, fields = READ[kind]
    if (kind, format) == ("date64", "parquet"):
        pytest.skip("pyarrow writes them as days")
    table = pa.table({"first": [*range(len(fields))], "x": column(made, values)})
    table = pa.concat_tables([table] * 3)
    found = records(written(tmp_path / "t", table, format, rows=2))
    assert [list(r.field("first")[1]) for r in found] == [[i] for i in [*range(len(fields))] * 3]
    assert [list(r.field("x")[1]) for r in found] == fields * 3


@pytest.mark.parametrize("format", ["file", "stream", "parquet"])
@pytest.mark.parametrize("kind", REFUSED)
def test_columns_that_are_refused_by_name(tmp_path: Path, kind: str, format: str) -> None:
    made, values, words = REFUSED[kind]
    x = column(made, values)
    if format == "parquet" and kind in ("union", "interval", "runs"):
        pytest.skip("Parquet has no such columns")
    table = pa.table({"x": x, "label": pa.array([5] * len(x))})
    record = records(written(tmp_path / "t", table, format))[0]
    assert list(record.field("label")[1]) == [5]
    with pytest.raises(DataError, match=rf"(?s)t, row 0.*{words}.* in 'x'"):
        record.field("x")


@pytest.mark.parametrize("format", FORMATS)
def test_parts_of_structs_have_names(tmp_path: Path, format: str) -> None:
    inner = pa.struct([("when", pa.timestamp("ms")), ("tags", pa.list_(pa.string()))])
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string()), ("meta", inner)])
    rows = [{"bytes": b"x", "path": "a.png", "meta": {"when": 7, "tags": ["u", "v"]}}, None]
    table = pa.table({"image": pa.array(rows, kind), "image.path": pa.array([1, 2])})
    first, second = records(written(tmp_path / "t", table, format))
    assert first.blob("image") == first.blob("image.bytes") == b"x"
    assert list(first.field("image.meta.when")[1]) == [7]
    assert list(first.field("image.meta.tags")[1]) == [b"u", b"v"]
    assert list(second.field("image")[1]) == []
    with pytest.raises(DataError, match=r"two columns of the name 'image\.path'"):
        first.field("image.path")


def test_extension_types_are_read_as_their_storage(tmp_path: Path) -> None:
    storage = pa.array([[1, 2, 3, 4]], pa.list_(pa.int32(), 4))
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 2])
    table = pa.table({"x": pa.ExtensionArray.from_storage(kind, storage)})
    for format in FORMATS:
        (record,) = records(written(tmp_path / format, table, format))
        assert list(record.field("x")[1]) == [1, 2, 3, 4]


@pytest.mark.parametrize("format", ["file", "stream"])
def test_views(tmp_path: Path, format: str) -> None:
    if not hasattr(pa, "string_view"):
        pytest.skip("this pyarrow has no views")
    texts = ["short", None, "longer than twelve bytes"]
    table = pa.table({"x": pa.array(texts, pa.string_view()), "y": [1, 2, 3]})
    found = records(written(tmp_path / "t", table, format))
    assert [list(r.field("x")[1]) for r in found] == [[t.encode()] if t else [] for t in texts]


def test_dictionaries_of_a_stream_may_change_and_grow(tmp_path: Path) -> None:
    path = tmp_path / "t"
    kind = pa.dictionary(pa.int8(), pa.string())
    batches = [
        pa.record_batch({"x": pa.DictionaryArray.from_arrays(pa.array(i, pa.int8()), words)})
        for i, words in (([1, 0], ["a", "b"]), ([2, 1], ["a", "b", "c"]), ([0, 1], ["d", "e"]))
    ]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    schema = pa.schema([("x", kind)])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema, options=options) as w:
        for batch in batches:
            w.write_batch(batch)
    files = ArrowFiles([str(path)])
    assert [r.blob("x") for r in records(files)] == [b"b", b"a", b"c", b"b", b"d", b"e"]
    assert files.read(0, 0, (0, 0)).blob("x") == b"b"


def test_a_stream_without_its_end_is_complete(tmp_path: Path) -> None:
    written(tmp_path / "t", pa.table({"x": [1, 2]}), "stream")
    data = (tmp_path / "t").read_bytes()
    (tmp_path / "t").write_bytes(data[:-8])
    assert len(records(ArrowFiles([str(tmp_path / "t")]))) == 2


# ------------------------------------------------------------------------------ inconsistent files


def replaced(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) >= 1
    path.write_bytes(data.replace(old, new))


def pair(first: int, second: int) -> bytes:
    return struct.pack("<qq", first, second)


def three(*numbers: int) -> bytes:
    return struct.pack("<3i", *numbers)


NUMBERS = pa.table({"x": pa.array([11, 12, 13, 14, 15], pa.int64())})
LISTS = pa.table({"x": pa.array([[1, 2], [3]], pa.list_(pa.int32()))})
NULLS = pa.table({"x": pa.array([[1], [None]], pa.list_(pa.int32()))})
TEXTS = pa.table({"x": ["ab", "cde"]})
WORDS = pa.table({"x": pa.array(["a", "b", "b"]).dictionary_encode()})

INCONSISTENT: dict[str, tuple[Any, bytes, bytes]] = {
    "a buffer beyond the body": (NUMBERS, pair(0, 40), pair(0, 1 << 40)),
    "a buffer before the body": (NUMBERS, pair(0, 40), pair(-8, 40)),
    "a buffer of negative size": (NUMBERS, pair(0, 40), pair(0, -40)),
    "a buffer that is too small": (NUMBERS, pair(0, 40), pair(0, 32)),
    "a buffer between values": (NUMBERS, pair(0, 40), pair(3, 32)),
    "more values than rows": (NUMBERS, pair(5, 0), pair(4, 0)),
    "more values than bytes": (NUMBERS, pair(5, 0), pair(1 << 60, 0)),
    "nulls without a bitmap": (NUMBERS, pair(5, 0), pair(5, 3)),
    "more nulls than values": (NUMBERS, pair(5, 0), pair(5, 6)),
    "offsets of a list that fall": (LISTS, three(0, 2, 3), three(0, 9, 3)),
    "offsets behind the values": (LISTS, three(0, 2, 3), three(0, 2, 4)),
    "offsets behind the text": (TEXTS, three(0, 2, 5), three(0, 2, 99)),
    "another number of nulls": (NULLS, pair(2, 1), pair(2, 2)),
    "an index without a value": (WORDS, b"\0\0\0\0\1\0\0\0\1\0\0\0", b"\0\0\0\0\1\0\0\0\7\0\0\0"),
}  # fmt: skip
"""For each kind of error: a table, and the bytes that are replaced in its file."""


@pytest.mark.parametrize("format", ["file", "stream"])
@pytest.mark.parametrize("kind", INCONSISTENT)
def test_inconsistent_batches_are_refused(tmp_path: Path, kind: str, format: str) -> None:
    table, old, new = INCONSISTENT[kind]
    written(tmp_path / "t", table, format)
    replaced(tmp_path / "t", old, new)
    files = ArrowFiles([str(tmp_path / "t")])
    with pytest.raises(DataError, match=r"reading .*t, rows from 0"):
        files.read(0, 0, (0, 0))


def test_a_compressed_batch_has_a_limit(tmp_path: Path) -> None:
    """The declared size is compared with the limit before memory is allocated."""
    zeros = pa.table({"x": np.zeros(1 << 14, np.int64)})
    for format, declared in (("lz4", 1 << 60), ("zstd", (1 << 30) + 1), ("lz4", 1 << 16)):
        path = tmp_path / f"{format}{declared}"
        written(path, zeros, format)
        replaced(path, struct.pack("<q", 1 << 17), struct.pack("<q", declared))
        with pytest.raises(DataError, match="reading"):
            ArrowFiles([str(path)]).read(0, 0, (0, 0))


def test_lists_of_nulls_take_no_more_than_the_file(tmp_path: Path) -> None:
    written(tmp_path / "t", pa.table({"x": pa.array([[None] * 77], pa.list_(pa.null()))}))
    replaced(tmp_path / "t", pair(77, 77), pair(2**31 - 1, 2**31 - 1))
    replaced(tmp_path / "t", struct.pack("<2i", 0, 77), struct.pack("<2i", 0, 2**31 - 1))
    with pytest.raises(DataError, match="2147483647 values"):
        ArrowFiles([str(tmp_path / "t")]).read(0, 0, (0, 0))


@pytest.mark.parametrize("format", ["file", "stream"])
def test_cut_files_are_refused(tmp_path: Path, format: str) -> None:
    """A stream may end behind any of its batches; any other end is an error."""
    table = pa.table({"x": ["a", "b", "c"], "y": pa.array(["u", "v", "u"]).dictionary_encode()})
    written(tmp_path / "t", table, format, rows=2)
    data, complete = (tmp_path / "t").read_bytes(), set()
    for end in range(0, len(data), 1 if format == "stream" else 7):
        (tmp_path / "t").write_bytes(data[:end])
        try:
            complete.add(len(records(ArrowFiles([str(tmp_path / "t")]))))
        except DataError as error:
            assert "/t" in str(error)  # noqa: PT017 - some ends are ends of messages
    assert complete == ({0, 2, 3} if format == "stream" else set())


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwritten(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize("change", [cut, overwritten])
@pytest.mark.parametrize("format", ["file", "stream", "lz4"])
def test_a_file_that_another_program_changes(
    tmp_path: Path, format: str, change: Callable[[Path], None]
) -> None:
    table = pa.table({"x": np.arange(5000)})
    files = written(tmp_path / "t", table, format, rows=1000)
    first = files.read(0, 0, files.place(0, 0))
    change(tmp_path / "t")
    assert list(first.field("x")[1]) == [0]
    with pytest.raises(DataError, match="t, rows from 4000"):
        files.read(0, 4000, files.place(0, 4000))


def test_types_with_wrong_parameters_are_refused(tmp_path: Path) -> None:
    """Constructors of Arrow's types may end the process at such numbers."""
    cases = (
        (pa.binary(77), struct.pack("<i", 77), (0, -1, -(2**31))),
        (pa.decimal128(33, 7), struct.pack("<i", 33), (0, 39, -5)),
        (pa.list_(pa.int8(), 77), struct.pack("<i", 77), (-1, -(2**31))),
    )
    for kind, old, numbers in cases:
        for number in numbers:
            written(tmp_path / "t", pa.table({"x": pa.array([], kind)}), "stream")
            replaced(tmp_path / "t", old, struct.pack("<i", number))
            with pytest.raises(DataError, match="opening"):
                ArrowFiles([str(tmp_path / "t")])
