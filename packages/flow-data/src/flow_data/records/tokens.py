"""Read files of tokens, as Megatron-LM writes them: ``PREFIX.bin``, and its index ``PREFIX.idx``.

The index has, in little-endian order without padding: the magic number; the version, uint64; the
code of the element type, uint8; the number of sequences and that of document boundaries, uint64;
the length of each sequence, int32; the first byte of each sequence in ``PREFIX.bin``, int64; and
the document boundaries, int64, as numbers of sequences.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import DataError
from flow_data.records.opened import OpenFile
from flow_data.records.record import Origin, corrupt

MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES: Mapping[int, str] = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Element types by code; 6 and 7 are floating-point types, which no tokens have."""


class TokenFile:
    """The sequences of a data set; a reader may share it among threads.

    Args:
        prefix: path of the two files without ``.bin`` and ``.idx``.

    Attributes:
        lengths: the number of tokens of each sequence, int64.

    Raises:
        DataError: a file is missing or irregular, or the index does not describe ``PREFIX.bin``.
    """

    def __init__(self, prefix: str) -> None:
        self._path = f"{prefix}.bin"
        self._dtype, self.lengths = _read_index(f"{prefix}.idx")
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._file = _opened(self._path)
        size, tokens = self._file.size, int(self.lengths.sum())
        if size != tokens * self._dtype.itemsize:
            raise DataError(
                f"reading {self._path}",
                found=f"{size} bytes",
                allowed=f"{tokens * self._dtype.itemsize} bytes: {tokens} tokens of "
                f"{self._dtype.itemsize} bytes, as {prefix}.idx says",
                hint="write both files again with Megatron's tools/preprocess_data.py",
            )

    def read(self, sequence: int, offset: int, out: Any) -> None:
        """Read tokens of a sequence, from an offset on, into an array.

        Raises:
            CorruptRecordError: a token does not fit the type of ``out``, or the file has shrunk.
        """
        start = (int(self._starts[sequence]) + offset) * self._dtype.itemsize
        size = len(out) * self._dtype.itemsize
        data = self._file.read(size, start)
        origin = Origin(self._path, start, sequence)
        if len(data) != size:
            raise corrupt(origin, f"{len(data)} bytes", f"{size}: the file has shrunk", AGAIN)
        found = np.frombuffer(data, self._dtype)
        if not np.can_cast(found.dtype, out.dtype):
            limits = np.iinfo(out.dtype)
            low, high = int(found.min(initial=0)), int(found.max(initial=0))
            if low < limits.min or high > limits.max:
                hint = "read the tokens as flow.int64"
                raise corrupt(origin, f"tokens from {low} to {high}", f"{out.dtype}", hint)
        out[:] = found

    def origin(self, sequence: int) -> Origin:
        first = int(self._starts[sequence]) * self._dtype.itemsize
        return Origin(self._path, first, sequence)


AGAIN = "write the files again with Megatron's tools/preprocess_data.py"


def _opened(path: str) -> OpenFile:
    try:
        return OpenFile(path)
    except OSError as error:
        hint = "pass the common path of the two files, without .bin and .idx"
        raise DataError(
            f"opening {path}", found=f"{error.strerror}", allowed="a file of tokens", hint=hint
        ) from error


def _read_index(path: str) -> tuple[Any, Array]:
    """Return the element type and the length of each sequence."""
    file = _opened(path)
    head = file.read(_HEADER.size, 0)
    code, count, boundaries = _header(path, head, file.size)
    data = file.read(file.size - _HEADER.size, _HEADER.size)
    ends = np.cumsum([4 * count, 8 * count, 8 * boundaries])
    if len(data) != ends[-1]:
        raise _invalid(path, f"{len(data)} bytes after the header", f"{ends[-1]} bytes")
    lengths = np.frombuffer(data[: ends[0]], "<i4").astype(np.int64)
    starts = np.frombuffer(data[ends[0] : ends[1]], "<i8")
    documents = np.frombuffer(data[ends[1] :], "<i8")
    dtype = np.dtype(_DTYPES[code])
    if (lengths < 0).any():
        raise _invalid(path, f"a sequence of {lengths.min()} tokens", "lengths from 0")
    if not np.array_equal(starts, (np.cumsum(lengths) - lengths) * dtype.itemsize):
        raise _invalid(path, "first bytes that differ from the sums of the lengths before", None)
    if documents[0] != 0 or documents[-1] != count or (np.diff(documents) < 0).any():
        allowed = f"document boundaries in order, from 0 to {count}"
        raise _invalid(path, f"{documents[0]} to {documents[-1]}", allowed)
    return dtype, lengths


def _header(path: str, head: bytes, size: int) -> tuple[int, int, int]:
    """Return the code of the element type, and the numbers of sequences and boundaries."""
    if len(head) < _HEADER.size or head[: len(MAGIC)] != MAGIC:
        found = f"a file that begins with {head[:9].hex(' ') or 'nothing'}"
        raise _invalid(path, found, f"an index of Megatron-LM, which begins with {MAGIC.hex(' ')}")
    _, version, code, count, boundaries = _HEADER.unpack(head)
    if version != 1 or code not in _DTYPES:
        allowed = f"version 1, and a type of integers: {', '.join(map(str, _DTYPES))}"
        raise _invalid(path, f"version {version}, type {code}", allowed)
    if boundaries < 1 or size != _HEADER.size + 12 * count + 8 * boundaries:
        found = f"{count} sequences and {boundaries} boundaries in {size} bytes"
        raise _invalid(path, found, "12 bytes per sequence and 8 per boundary, after 34 bytes")
    return code, count, boundaries


def _invalid(path: str, found: str, allowed: str | None) -> DataError:
    return DataError(f"reading {path}", found=found, allowed=allowed, hint=AGAIN)
