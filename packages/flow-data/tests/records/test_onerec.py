"""OneRec files: round trips and corrupt data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from onerec_files import example, framed

from flow_core.base.errors import DataError
from flow_data.records.onerec import OneRecFiles, parse_onerec, unverified

TENSORS = st.sampled_from(["int8", "int16", "int32", "int64", "float32", "float64"]).flatmap(
    lambda name: arrays(name, array_shapes(min_dims=0, max_dims=3, max_side=4))
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=6), TENSORS, max_size=4))
def test_written_tensors_round_trip(tensors: dict[str, Any]) -> None:
    found = parse_onerec(example(tensors))
    assert sorted(found) == sorted(tensors)
    for name, value in tensors.items():
        _, values = found[name]
        assert values.dtype == value.dtype
        np.testing.assert_array_equal(values, value)


def test_bytes_round_trip() -> None:
    assert parse_onerec(example({"x": [b"abc", b""]})) == {"x": ("bytes_list", (b"abc", b""))}


@settings(max_examples=150)
@given(st.binary(max_size=8), st.integers(0), st.data())
def test_corrupt_data_does_not_crash_the_parser(patch: bytes, place: int, data: Any) -> None:
    """Without checksums: a tensor of the right type or a Python exception, quickly."""
    whole = example({"a": np.arange(6, dtype=np.int32).reshape(2, 3), "b": [b"text"]})
    start = place % len(whole)
    damaged = (whole[:start] + patch + whole[start + len(patch) :])[
        : data.draw(st.integers(0, 300))
    ]
    try:
        found = parse_onerec(damaged)
    except Exception:  # a record converts any of them to its own error
        return
    assert all(isinstance(values, tuple | np.ndarray) for _, values in found.values())


def read(path: Path, skip: bool = False, files: Any = OneRecFiles) -> list[Any]:
    opened, found = files([str(path)], skip), []
    while (place := opened.place(0, len(found))) is not None:
        found.append(opened.read(0, len(found), place))
    return found


def test_files_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a.onerec"
    payloads = [example({"x": np.arange(n, dtype=np.int64)}) for n in range(4)]
    path.write_bytes(b"".join(map(framed, payloads)))
    assert [len(r.field("x")[1]) for r in read(path)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("at", "found"),
    [
        (0, "record 0 at byte 0"),  # magic
        (9, "record 0 at byte 0"),  # zeros
        (13, "record 0 at byte 0"),  # length
        (20, "record 0 at byte 0"),  # checksum of the header
        (40, "record 0 at byte 0"),  # payload
        (-1, "record 1 at byte"),  # checksum of the last payload
    ],
)
def test_errors_in_damaged_files_name_the_position(tmp_path: Path, at: int, found: str) -> None:
    path = tmp_path / "a.onerec"
    data = bytearray(framed(example({"x": np.arange(3, dtype=np.int64)})) * 2)
    data[at] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DataError, match=found):
        read(path)


def test_records_are_verified_on_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.onerec"
    path.write_bytes(framed(example({"x": np.arange(3, dtype=np.int64)}, {"x": (4,)})))
    with pytest.raises(DataError, match=r"3 values of shape \[4\]"):
        read(path)
    (record,) = read(path, files=unverified)
    with pytest.raises(DataError, match="record 0 at byte 0"):
        record.field("x")
