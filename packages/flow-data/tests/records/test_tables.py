"""Parquet and Arrow files as records of jobs, and files at URLs."""

from __future__ import annotations

import functools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.errors import DataError
from flow_data.records import tables
from flow_data.records.ofrecord import OFRecordWriter
from flow_data.remote import local_files

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ROWS = 20
X = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)


@pytest.fixture(autouse=True)
def own_session() -> None:
    flow.clear_default_session()


def table(first: int = 0, last: int = ROWS) -> Any:
    rows = range(first, last)
    return pa.table({
        "x": pa.array(X[first:last].tolist(), pa.list_(pa.float32())),
        "label": pa.array(rows, pa.int32()),
        "text": [f"row {i}" for i in rows],
        "empty": pa.array([None] * len(rows), pa.int8()),
        "when": pa.array([0] * len(rows), pa.timestamp("s")),
    })  # fmt: skip


def written(folder: Path, format: str) -> list[str]:
    """Write two files with several groups of rows each."""
    paths = []
    for part, (first, last) in enumerate(((0, 13), (13, ROWS))):
        path = str(folder / f"{part}.{format}")
        if format == "parquet":
            pq.write_table(table(first, last), path, row_group_size=3)
        else:
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table().schema) as writer:
                writer.write_table(table(first, last), max_chunksize=3)
        paths.append(path)
    return paths


def reading(format: str, files: Any, batch: int = 5, **options: Any) -> Any:
    @flow.global_function()
    def job() -> tp.Tuple[tp.Numpy, tp.Numpy]:
        records = flow.data.record_reader(format, files, batch_size=batch, **options)
        x = flow.data.OFRecordRawDecoder(records, "x", shape=(3,), dtype=flow.float32)
        return x, flow.data.OFRecordRawDecoder(records, "label", shape=(), dtype=flow.int32)

    return job


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_all_rows_in_order(format: str, tmp_path: Path) -> None:
    job = reading(format, written(tmp_path, format))
    for _ in range(2):
        for start in range(0, ROWS, 5):
            x, label = job()
            np.testing.assert_array_equal(x, X[start : start + 5])
            np.testing.assert_array_equal(label.reshape(-1), np.arange(start, start + 5))


def test_shuffled_rows_are_all_rows(tmp_path: Path) -> None:
    files = written(tmp_path, "parquet")
    job = reading("parquet", files, random_shuffle=True, shuffle_buffer_size=ROWS, seed=3)
    labels = np.concatenate([job()[1].reshape(-1) for _ in range(ROWS // 5)])
    assert sorted(labels.tolist()) == [*range(ROWS)]
    assert labels.tolist() != [*range(ROWS)]


def test_few_groups_are_kept_in_memory(tmp_path: Path) -> None:
    files = tables.ParquetFiles(written(tmp_path, "parquet"))
    for number in range(13):
        place = files.place(0, number)
        assert place == (number // 3, number % 3)
        record = files.read(0, number, place)
        assert record.field("text") == ("text_list", (f"row {number}".encode(),))
        assert record.field("empty") == ("int64_list", ())
        assert record.field("when") == ("int64_list", (0,))
    assert files.place(0, 13) is None
    assert len(files._groups) == tables.KEPT


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 is not enough")
    for format in ("parquet", "arrow"):
        flow.clear_default_session()
        with pytest.raises(DataError, match=r"x\.parquet"):
            reading(format, str(tmp_path / "x.parquet"))()


def test_a_column_that_does_not_exist(tmp_path: Path) -> None:
    @flow.global_function()
    def job() -> tp.Numpy:
        records = flow.data.record_reader("parquet", written(tmp_path, "parquet"), batch_size=2)
        return flow.data.OFRecordRawDecoder(records, "y", shape=(), dtype=flow.int32)

    with pytest.raises(DataError, match=r"(?s)0\.parquet, row 0.*no field 'y'"):
        job()


@contextmanager
def server(folder: Path) -> Iterator[str]:
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


def test_files_at_urls(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    urls = []
    for path in written(tmp_path, "parquet"):
        urls.append(f"memory://data/{Path(path).name}")
        fsspec.filesystem("memory").pipe(urls[-1], Path(path).read_bytes())
    job = reading("parquet", urls, ROWS)
    np.testing.assert_array_equal(job()[0], X)


@pytest.mark.usefixtures("fsspec_loop")
def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(Settings, "from_env", lambda: Settings(url_seconds=0.1))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://me:sesame@127.0.0.1:{silent.getsockname()[1]}/part-0?token=sesame"
        with pytest.raises(DataError) as caught:
            local_files([url])
    assert "no answer within 0.1 seconds" in str(caught.value)
    assert "sesame" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.usefixtures("fsspec_loop")
def test_records_of_a_server(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    with OFRecordWriter(str(tmp_path / "part-0")) as writer:
        for row in range(4):
            writer.write({"x": X[row], "label": np.array([row], np.int32)})
    with server(tmp_path) as url:
        x, _ = reading("ofrecord", f"{url}/part-0", 4)()
        np.testing.assert_array_equal(x, X[:4])
        flow.clear_default_session()
        with pytest.raises(DataError, match=r"reading http://.*/none"):
            reading("ofrecord", f"{url}/none", 4)()
