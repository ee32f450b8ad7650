"""Read and write OFRecord files, the format of OneFlow.

A file is a sequence of records. A record consists of a 64-bit little-endian length and a protobuf
message that maps names to lists. A data set is a folder of files ``part-0``, ``part-1`` ... (or
``part-00000`` ... with a suffix length of 5).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.errors import DataError
from flow_core.base.planning import end_script
from flow_data.records.framed import FramedFiles, LengthFrame
from flow_data.records.record import Field, Record


def parse_ofrecord(payload: bytes) -> dict[str, Field]:
    """Parse the fields of a record."""
    from flow_data.records.schema import OFRecord  # loads protobuf

    message = OFRecord.FromString(payload)
    return {name: _values(feature) for name, feature in message.feature.items()}


def _values(feature: Any) -> Field:
    kind = feature.WhichOneof("kind")
    return ("bytes_list", ()) if kind is None else (kind, getattr(feature, kind).value)


def part_path(folder: str, number: int, prefix: str = "part-", suffix_length: int = -1) -> str:
    """Return the path of a part file.

    >>> part_path("data", 3), part_path("data", 3, suffix_length=5)
    ('data/part-3', 'data/part-00003')
    """
    return os.path.join(folder, prefix + str(number).zfill(max(suffix_length, 0)))


def part_paths(folder: str, count: int, prefix: str, suffix_length: int) -> list[str]:
    """Return the paths of the parts of a data set; all parts must exist.

    Raises `DataError` if the folder or a part is missing.
    """
    paths = [part_path(folder, i, prefix, suffix_length) for i in range(count)]
    absent = [path for path in paths if not os.path.isfile(path)]
    if not absent and paths:
        return paths
    if os.path.isdir(folder):
        names = sorted(os.listdir(folder))
        found = f"{len(absent)} of {count} parts missing; the folder holds "
        found += ", ".join(names[:5]) + (" ..." if len(names) > 5 else "") if names else "nothing"
    else:
        found = "no such folder"
    raise DataError.at_caller(
        f"opening the OFRecord parts of {folder!r}",
        found=found,
        allowed=", ".join(absent[:3]) or "at least one part",
        hint=_suffix_length_hint(folder, count, prefix)
        or "check data_part_num, part_name_prefix and part_name_suffix_length",
    )


def _suffix_length_hint(folder: str, count: int, prefix: str) -> str:
    """Return a hint about a suffix length with which all parts exist; empty if there is none."""
    for length in (-1, *range(2, 10)):
        if all(os.path.isfile(part_path(folder, i, prefix, length)) for i in range(max(count, 1))):
            return f"part_name_suffix_length={length} finds them"
    return ""


class OFRecordFiles(FramedFiles):
    """The records of OFRecord files; see `FramedFiles`."""

    def __init__(self, paths: Sequence[str], skip: bool = False) -> None:
        super().__init__(paths, LengthFrame(), parse_ofrecord, skip)


# ------------------------------------------------------------------------------------- writing

_LISTS: Mapping[str, str] = {
    "float32": "float_list",
    "float16": "float_list",
    "float64": "double_list",
    "int64": "int64_list",
    "uint32": "int64_list",
    "int32": "int32_list",
    "int16": "int32_list",
    "uint16": "int32_list",
    "int8": "int32_list",
    "uint8": "int32_list",
    "bool": "int32_list",
}


def encode_record(fields: Mapping[str, Any]) -> bytes:
    """Encode the fields of a record.

    Args:
        fields: for each name, ``bytes`` (or a list of ``bytes``), a number, or an array-like; the
            element type (float32, float64, int32 or int64) determines the kind of list.

    Raises:
        DataError: a value has another type.

    >>> record = parse_ofrecord(encode_record({"label": 3, "image": b"jpeg"}))
    >>> record["image"][0], list(record["label"][1])
    ('bytes_list', [3])
    """
    from flow_data.records.schema import OFRecord  # loads protobuf

    message = OFRecord()
    for name, value in fields.items():
        _fill(message.feature[name], name, value)
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _fill(feature: Any, name: str, value: Any) -> None:
    if isinstance(value, bytes | bytearray | memoryview):
        value = [bytes(value)]
    if isinstance(value, list | tuple) and value and all(isinstance(v, bytes) for v in value):
        feature.bytes_list.value.extend(value)
        return
    numbers = np.asarray(value)
    if numbers.dtype == np.int64 and not isinstance(value, np.ndarray | np.generic):
        numbers = numbers.astype(np.int32) if _fits_int32(numbers) else numbers
    kind = _LISTS.get(numbers.dtype.name)
    if kind is None:
        raise DataError(
            f"writing field {name!r} of a record",
            found=f"{type(value).__name__} {value!r:.60}",
            allowed="bytes, or numbers of type " + ", ".join(_LISTS),
        )
    getattr(feature, kind).value.extend(numbers.reshape(-1).tolist())


def _fits_int32(numbers: Any) -> bool:
    bounds = np.iinfo(np.int32)
    return bool(not numbers.size or (numbers.min() >= bounds.min and numbers.max() <= bounds.max))


class OFRecordWriter:
    """A writer of a record file, which is renamed to its final path when it is complete.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with OFRecordWriter(part_path(folder, 0)) as writer:
    ...     writer.write({"label": 3, "image": b"..."})
    >>> [sorted(fields) for fields in read_ofrecords(part_path(folder, 0))]
    [['image', 'label']]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        end_script(f"writing records to {path}")
        self._path = Path(path)
        self._part = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        self._file = open(self._part, "wb")  # noqa: SIM115 - closed by close or abort
        self.count = 0

    def write(self, fields: Mapping[str, Any]) -> None:
        """Append a record; see `encode_record`."""
        self.write_bytes(encode_record(fields))

    def write_bytes(self, payload: bytes) -> None:
        """Append an encoded record."""
        self._file.write(struct.pack("<q", len(payload)))
        self._file.write(payload)
        self.count += 1

    def close(self) -> None:
        """Complete the file, which atomically replaces an existing file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self._path)

    def abort(self) -> None:
        """Discard the file."""
        self._file.close()
        self._part.unlink(missing_ok=True)

    def __enter__(self) -> OFRecordWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def read_ofrecords(
    path: str | os.PathLike[str], on_error: str = "raise"
) -> Iterator[Mapping[str, Field]]:
    """Yield the fields of each record of a file by name: the kind of list, and its values.

    Args:
        on_error: "raise", or "skip" to omit corrupt records.

    Raises:
        DataError: a record is corrupt; the error has file, byte and record number.
    """
    skip = on_error == "skip"
    files = OFRecordFiles([os.fspath(path)], skip)
    number = 0
    while (place := files.place(0, number)) is not None:
        record = files.read(0, number, place)
        number += 1
        fields = _fields(record, skip)
        if fields is not None:
            yield fields


def _fields(record: Record, skip: bool) -> Mapping[str, Field] | None:
    try:
        return record.fields
    except DataError:
        if skip:
            return None
        raise
