"""Read WebDataset tar files, in which files with equal names up to the first dot form a record."""

from __future__ import annotations

import os
import tarfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from flow_core.base.regular_files import open_regular
from flow_data.records.framed import missing
from flow_data.records.record import Field, Origin, Record, corrupt

_Members = tuple[tuple[str, int, int], ...]
"""The field name, the first byte and the size of each member of a record."""


class WebDatasetFiles:
    """The records of uncompressed tar files (tars), in the order of the tars.

    The name of a field is the part of its file name after the first dot: ``0001.jpg`` and
    ``0001.cls`` are the fields ``jpg`` and ``cls`` of one record.

    Args:
        paths: the tars.
        skip: whether to add a message to `broken` at corrupt data and omit the rest of the tar.
    """

    def __init__(self, paths: Sequence[str], skip: bool = False) -> None:
        self.paths = tuple(paths)
        self.broken: list[str] = []
        self._skip = skip
        self._lock = threading.Lock()
        self._places: dict[int, list[_Members]] = {}
        self._descriptors: dict[int, int] = {}

    def __del__(self) -> None:
        for descriptor in getattr(self, "_descriptors", {}).values():
            os.close(descriptor)

    def place(self, part: int, number: int) -> _Members | None:
        """Return the members of a record."""
        with self._lock:
            if part not in self._places:
                self._places[part] = self._index(part)
        found = self._places[part]
        return found[number] if number < len(found) else None

    def _index(self, part: int) -> list[_Members]:
        path = self.paths[part]
        try:
            with open_regular(path) as file:
                self._descriptors[part] = os.dup(file.fileno())
        except OSError as error:
            raise missing(path, error) from error
        groups: dict[str, list[tuple[str, int, int]]] = {}
        end, size = 0, os.fstat(self._descriptors[part]).st_size
        try:
            with open_regular(path) as file, _opened(file) as tar:
                for member in tar:
                    end = _end(member, end, size)
                    if member.isfile():
                        folder, _, name = member.name.rpartition("/")
                        key, _, field = name.partition(".")
                        row = (field, member.offset_data, member.size)
                        groups.setdefault(f"{folder}/{key}", []).append(row)
            self._check_end(part, end)
        except Exception as error:  # noqa: BLE001 - tarfile trusts headers, and raises many types
            self._broken(Origin(path, end, len(groups)), _described(error))
        return [tuple(rows) for rows in groups.values()]

    def _check_end(self, part: int, end: int) -> None:
        """Check the final blocks of zeros; tarfile treats a corrupt header as the end, too."""
        descriptor = self._descriptors[part]
        after = -(-end // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        if os.pread(descriptor, 2 * tarfile.BLOCKSIZE, after) != bytes(2 * tarfile.BLOCKSIZE):
            raise tarfile.ReadError(f"no header and no end of the archive at byte {after}")

    def _broken(self, origin: Origin, found: str) -> None:
        error = corrupt(origin, found, "a complete, uncompressed tar file")
        if not self._skip:
            raise error
        self.broken.append(str(error).splitlines()[0] + ": " + found)

    def read(self, part: int, number: int, place: _Members) -> Record:
        """Read a record with the bytes of its members."""
        descriptor = self._descriptors[part]
        origin = self.origin(part, number, place)
        payload = {name: os.pread(descriptor, size, start) for name, start, size in place}
        short = [n for n, _, size in place if len(payload[n]) != size]
        if short:
            raise corrupt(origin, f"truncated member {short[0]!r}", "a complete tar file")
        return Record(payload, origin, parse_members)

    def origin(self, part: int, number: int, place: _Members) -> Origin:
        """Return the tar, the first byte and the number of a record."""
        return Origin(self.paths[part], place[0][1], number)


class _Bounded:
    """A file that limits the read sizes that `tarfile` takes from headers, such as -1 or 2**60."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        """Read at most ``size`` bytes; a negative size comes from a corrupt header."""
        if size < 0:
            raise tarfile.ReadError(f"a header that declares {size} bytes")
        return self._file.read(min(size, self._size))


def _opened(file: BinaryIO) -> tarfile.TarFile:
    bounded: Any = _Bounded(file)
    return tarfile.open(fileobj=bounded, mode="r:")


def _end(member: tarfile.TarInfo, before: int, file_size: int) -> int:
    """Return the end of a member.

    Raises:
        tarfile.ReadError: the end precedes the start, or lies beyond the end of the file.
    """
    has_bytes = member.isreg() or member.type not in tarfile.SUPPORTED_TYPES
    end = member.offset_data + (member.size if has_bytes else 0)
    if not before <= member.offset_data <= end <= file_size:
        at, size = member.offset_data, member.size
        raise tarfile.ReadError(f"a member of {size} bytes at byte {at} of {file_size}")
    if member.issparse():
        raise tarfile.ReadError("a sparse member, which is not stored completely")
    return end


def _described(error: Exception) -> str:
    """Return the printable text of an error."""
    known = isinstance(error, tarfile.TarError)
    return ascii(str(error))[1:-1] if known else f"{type(error).__name__}: {str(error)!a}"


def parse_members(payload: Mapping[str, bytes]) -> dict[str, Field]:
    """Convert members to fields: ``cls`` files contain a number as text, other files bytes.

    >>> parse_members({"cls": b" 7", "jpg": b"..."})
    {'cls': ('int64_list', (7,)), 'jpg': ('bytes_list', (b'...',))}
    """
    fields: dict[str, Field] = {}
    for name, data in payload.items():
        numeric = name == "cls"
        fields[name] = ("int64_list", (int(data),)) if numeric else ("bytes_list", (data,))
    return fields
