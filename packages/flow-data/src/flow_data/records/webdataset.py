"""Read WebDataset tar files, in which files with equal names up to the first dot form a record."""

from __future__ import annotations

import os
import re
import tarfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, product
from math import prod
from typing import Any, BinaryIO

from flow_core.base.formats.regular_files import open_regular
from flow_data.records.framed import missing
from flow_data.records.opened import OpenFile
from flow_data.records.record import Field, Origin, Record, corrupt

_Members = tuple[tuple[str, int, int], ...]
"""The field name, the first byte and the size of each member of a record."""


class WebDatasetFiles:
    """The records of uncompressed tar files (tars), in the order of the tars.

    The name of a field is the part of its file name after the first dot, in lower case:
    ``0001.jpg`` and ``0001.CLS`` are the fields ``jpg`` and ``cls`` of one record. As in the
    package webdataset, files are left out whose name has nothing before the first dot
    (``._0001.jpg``) or no dot (``README``), and those in a folder at the top with a name such as
    ``__notes__``; also those in ``__MACOSX``. A field that occurs twice is an error of its record.
    Unlike in that package, the files of a record may be apart from each other.

    Args:
        skip: whether to add a message to `broken` at corrupt data and omit the rest of the tar.
    """

    def __init__(self, paths: Sequence[str], skip: bool = False) -> None:
        self.paths = tuple(paths)
        self.broken: list[str] = []
        self._skip = skip
        self._lock = threading.Lock()
        self._places: dict[int, list[_Members]] = {}
        self._files: dict[int, OpenFile] = {}

    def place(self, part: int, number: int) -> _Members | None:
        with self._lock:
            if part not in self._places:
                self._places[part] = self._index(part)
        found = self._places[part]
        return found[number] if number < len(found) else None

    def _index(self, part: int) -> list[_Members]:
        path = self.paths[part]
        try:
            self._files[part] = OpenFile(path)
        except OSError as error:
            raise missing(path, error) from error
        groups: dict[str, list[tuple[str, int, int]]] = {}
        end, size = 0, self._files[part].size
        try:
            with open_regular(path) as file, _opened(file) as tar:
                for member in tar:
                    end = _end(member, end, size)
                    key, field = split_name(member.name)
                    if member.isfile() and key:
                        row = (field, member.offset_data, member.size)
                        groups.setdefault(key, []).append(row)
            self._check_end(part, end)
        except Exception as error:  # noqa: BLE001 - tarfile trusts headers, and raises many types
            self._broken(Origin(path, end, len(groups)), _described(error))
        return [tuple(rows) for rows in groups.values()]

    def _check_end(self, part: int, end: int) -> None:
        """Check the final blocks of zeros; tarfile treats a corrupt header as the end, too."""
        after = -(-end // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        if self._files[part].read(2 * tarfile.BLOCKSIZE, after) != bytes(2 * tarfile.BLOCKSIZE):
            raise tarfile.ReadError(f"no header and no end of the archive at byte {after}")

    def _broken(self, origin: Origin, found: str) -> None:
        error = corrupt(origin, found, "a complete, uncompressed tar file")
        if not self._skip:
            raise error
        self.broken.append(str(error).splitlines()[0] + ": " + found)

    def read(self, part: int, number: int, place: _Members) -> Record:
        file = self._files[part]
        origin = self.origin(part, number, place)
        counts = Counter(name for name, _, _ in place)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            hint = "write the tar again with one such file per record"
            raise corrupt(origin, f"several files *.{twice[0]}", "one per record", hint)
        payload = {name: file.read(size, start) for name, start, size in place}
        short = [n for n, _, size in place if len(payload[n]) != size]
        if short:
            raise corrupt(origin, f"truncated member {short[0]!r}", "a complete tar file")
        return Record(payload, origin, parse_members)

    def origin(self, part: int, number: int, place: _Members) -> Origin:
        """Return the tar, the first byte and the number of a record."""
        return Origin(self.paths[part], place[0][1], number)


def split_name(path: str) -> tuple[str, str]:
    """Return the key of the record to which a file belongs, and the name of its field.

    The key is empty if the file belongs to no record.

    >>> split_name("train/1.seg.PNG"), split_name("._1.jpg"), split_name("__notes__/1.txt")
    (('train/1', 'seg.png'), ('', ''), ('', ''))
    """
    folder, _, name = path.rpartition("/")
    base, dot, field = name.partition(".")
    top = path.removeprefix("./").partition("/")[0]
    if not base or not dot or _NO_RECORDS.fullmatch(top):
        return "", ""
    return f"{folder}/{base}" if folder else base, field.lower()


_NO_RECORDS = re.compile("__[^/]*__|__MACOSX")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST = 1_000_000


def expanded(path: str) -> list[str]:
    """Return the paths that a path with ranges of numbers stands for.

    Raises:
        ValueError: the path stands for too many files.

    >>> expanded("train-{008..010}.tar")
    ['train-008.tar', 'train-009.tar', 'train-010.tar']
    """
    pieces = _RANGE.split(path)
    ranges = [_numbers(*pair) for pair in zip(pieces[1::3], pieces[2::3], strict=True)]
    if prod(map(len, ranges)) > _MOST:
        raise ValueError(f"{path!r} stands for more than {_MOST} files")
    texts = pieces[::3]
    return ["".join(chain(*zip(texts, (*n, ""), strict=True))) for n in product(*ranges)]


def _numbers(first: str, last: str) -> Sequence[str]:
    """Return the numbers of a range, as wide as the wider end if one of them begins with 0."""
    padded = any(len(text) > 1 and text[0] == "0" for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    a, b = int(first), int(last)
    if abs(b - a) >= _MOST:
        raise ValueError(f"{{{first}..{last}}} stands for more than {_MOST} files")
    return [str(n).zfill(width) for n in (range(a, b + 1) if a <= b else range(a, b - 1, -1))]


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

    Raises `tarfile.ReadError` if the end precedes the start, or lies beyond the end of the file.
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
