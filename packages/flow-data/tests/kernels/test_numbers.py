"""Decoding of numbers: conversions, padding and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flow_core.base.errors import DataError
from flow_data.kernels.decoders import numbers_into
from flow_data.records.ofrecord import OFRecordFiles
from flow_data.records.record import Origin, Record
from flow_data.records.schema import Example, OFRecord
from flow_data.records.tfrecord import TFRecordFiles, masked_crc


def decoded(kind: str, values: Any, dtype: str, size: int = 2, padded: bool = False) -> Any:
    record = Record(b"", Origin("a", 0, 0), lambda _: {"x": (kind, values)})
    out = np.full(size, 9, dtype)
    numbers_into(record, "x", out, False, padded)
    return out.tolist()


@pytest.mark.parametrize(
    ("kind", "values", "dtype", "numbers"),
    [
        ("int64_list", (1, -2), "int8", [1, -2]),
        ("int64_list", (2**24 + 1, 1), "float32", [2**24, 1]),
        ("int64_list", (2**64 - 1, 0), "uint64", [2**64 - 1, 0]),
        ("float_list", (1.0, -2.0), "int32", [1, -2]),
        ("double_list", (0.1, np.inf), "float32", [np.float32(0.1), np.inf]),
        ("bytes_list", (b"\x01\x7f",), "int32", [1, 127]),
        ("bytes_list", (b"\x01\xc8",), "uint8", [1, 200]),
        ("bytes_list", (b"\x01\x02\xc8",), "int32", [1, 2]),
    ],
)
def test_numbers_are_converted(kind: str, values: Any, dtype: str, numbers: Any) -> None:
    assert decoded(kind, values, dtype) == numbers


@pytest.mark.parametrize(
    ("kind", "values", "dtype", "words"),
    [
        ("float_list", (1.5, 2.0), "int32", "1.5 in 'x'"),
        ("float_list", (np.nan, 2.0), "int64", "nan in 'x'"),
        ("double_list", (2.0, 1e19), "int64", r"1e\+19 in 'x'"),
        ("double_list", (1e39, 0.0), "float32", r"1e\+39 in 'x'"),
        ("double_list", (1e5, 0.0), "float16", r"100000\.0 in 'x'"),
        ("int64_list", (1, 300), "int8", "300 in 'x'"),
        ("int64_list", (-1, 3), "uint8", "-1 in 'x'"),
        ("int64_list", (2**63, 0), "int64", "9223372036854775808 in 'x'"),
        ("bytes_list", (b"\x01\xc8",), "int32", "a byte of 200 in 'x'"),
        ("bytes_list", (b"\x01\xc8",), "float32", "a byte of 200 in 'x'"),
        ("text_list", (b"3",), "int32", "a text in 'x'"),
    ],
)
def test_numbers_that_a_type_does_not_have(kind: str, values: Any, dtype: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        decoded(kind, values, dtype)


def framed(kind: str, payload: bytes) -> bytes:
    if kind == "OFRecord":
        return struct.pack("<q", len(payload)) + payload
    head = struct.pack("<Q", len(payload))
    sums = [struct.pack("<I", masked_crc(part)) for part in (head, payload)]
    return head + sums[0] + payload + sums[1]


@pytest.mark.parametrize("kind", ["OFRecord", "TFRecord"])
@pytest.mark.parametrize("field", ["unset", "empty", "absent"])
def test_fields_without_values_are_padded(tmp_path: Path, kind: str, field: str) -> None:
    message = OFRecord() if kind == "OFRecord" else Example()
    features = message.feature if kind == "OFRecord" else message.features.feature
    features["other"].int64_list.value.append(5)
    if field != "absent":
        features["x"].SetInParent()
    if field == "empty":
        features["x"].float_list.SetInParent()
    path = tmp_path / "part-0"
    path.write_bytes(framed(kind, message.SerializeToString()))
    files: Any = (OFRecordFiles if kind == "OFRecord" else TFRecordFiles)([str(path)])
    record = files.read(0, 0, files.place(0, 0))
    for varying, padded in ((True, False), (False, True)):
        out = np.full(3, 9, np.float32)
        numbers_into(record, "x", out, varying, padded)
        assert out.tolist() == [0, 0, 0]
    with pytest.raises(DataError, match="no field 'x'" if field == "absent" else "0 numbers in"):
        numbers_into(record, "x", out, False, False)


def test_absent_fields_of_other_formats_are_errors() -> None:
    record = Record(b"", Origin("a", 0, 0), lambda _: {"y": ("int64_list", (1,))})
    with pytest.raises(DataError, match="no field 'x'"):
        numbers_into(record, "x", np.zeros(2), True, True)
