"""Tables by columns: Arrow files and streams, and Parquet files."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flow_data.instances import RowError
from flow_data.records.tables import ArrowFiles, ParquetFiles
from fuzzing.mutations import mutate_bytes
from fuzzing.records import decode_all
from fuzzing.target import Target


def _tables() -> Sequence[Any]:
    """A table of numbers, one of texts and pictures, and one of nested and rare types."""
    import pyarrow as pa

    rows = range(7)
    numbers = pa.table({
        "x": pa.array([[i, i + 0.5] for i in rows], pa.list_(pa.float32())),
        "label": pa.array([None if i == 3 else i for i in rows], pa.int16()),
        "flag": [i % 2 == 0 for i in rows],
    })  # fmt: skip
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    texts = pa.table({
        "image": pa.array([{"bytes": b"picture" * i, "path": f"{i}.png"} for i in rows], image),
        "kind": pa.array([("cat", "dog")[i % 2] for i in rows]).dictionary_encode(),
        "text": [None if i == 2 else f"row {i}" * 3 for i in rows],
    })  # fmt: skip
    rare = pa.table({
        "pairs": pa.array([[[i, 1], [2, 3]] for i in rows], pa.list_(pa.list_(pa.int32(), 2))),
        "when": pa.array(rows, pa.timestamp("us", "UTC")),
        "price": pa.array(rows, pa.decimal128(9, 2)),
        "none": pa.nulls(7),
        "code": pa.array([b"abcd"] * 7, pa.binary(4)),
        "names": pa.array([["a", "b" * i] for i in rows], pa.large_list(pa.large_string())),
    })  # fmt: skip
    return numbers, texts, rare


def _arrows() -> list[bytes]:
    import pyarrow as pa

    found = []
    for table in _tables():
        for write in (pa.ipc.new_file, pa.ipc.new_stream):
            for compression in (None, "lz4", "zstd"):
                file = io.BytesIO()
                options = pa.ipc.IpcWriteOptions(compression=compression)
                with write(file, table.schema, options=options) as writer:
                    writer.write_table(table, max_chunksize=4)
                found.append(file.getvalue())
    return found


def _parquets() -> list[bytes]:
    import pyarrow.parquet as pq

    found = []
    for table in _tables():
        for options in (
            {},
            {"compression": "none", "use_dictionary": False},
            {"store_schema": False},
        ):
            file = io.BytesIO()
            pq.write_table(table, file, row_group_size=4, **options)
            found.append(file.getvalue())
    return found


_METADATA = b"ARROW:schema"


def _mutate_parquet(data: bytes, rng: random.Random) -> bytes:
    """Changed bytes, in the footer for half of the cases; or a changed schema of Arrow in it."""
    draw = rng.random()
    if draw < 0.4:
        return mutate_bytes(data, rng)
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8]
    at = footer.find(_METADATA)
    if draw < 0.7 or at < 0:
        made = mutate_bytes(footer, rng)
        return data[: -8 - size] + made + len(made).to_bytes(4, "little") + data[-4:]
    start = footer.index(b"/////", at)
    length = len(footer[start:].split(b"\0")[0].split(b"\x18")[0])
    length -= length % 4
    schema = bytearray(mutate_bytes(base64.b64decode(footer[start : start + length]), rng))
    text = base64.b64encode(schema)[:length].ljust(length, b"A")
    made = footer[:start] + text + footer[start + length :]
    return data[: -8 - size] + made + data[-8:]


def _open(kind: Callable[..., Any]) -> Callable[[Path], Callable[[bytes, int], object]]:
    def opened(folder: Path) -> Callable[[bytes, int], object]:
        path = folder / "table"

        def read(data: bytes, number: int) -> None:
            path.unlink(missing_ok=True)
            path.write_bytes(data)
            files, row, failed = kind([str(path)]), 0, None
            while row < 40 and (place := files.place(0, row)) is not None:
                try:
                    decode_all(files.read(0, row, place))
                except RowError as error:
                    failed = error
                row += 1
            if failed is not None:
                raise failed

        return read

    return opened


TARGETS = (
    Target("arrow", _arrows, _open(ArrowFiles), weight=2),
    Target("parquet", _parquets, _open(ParquetFiles), _mutate_parquet, weight=2),
)
