"""Files of framed records, in which a frame precedes each payload with its length."""

from __future__ import annotations

import os
import struct
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from flow_core.base.errors import DataError
from flow_data.records.opened import OpenFile
from flow_data.records.record import Field, Origin, Record, corrupt

Place = Any
"""The place of a record in a file, in the format's own representation."""


class Files(Protocol):
    """The interface of the files of a data set, whose records are indexed by file and number."""

    paths: Sequence[str]

    def place(self, part: int, number: int) -> Place | None:
        """Return the place of a record, or None after the last record; called in record order."""

    def read(self, part: int, number: int, place: Place) -> Record:
        """Read a record."""

    def origin(self, part: int, number: int, place: Place) -> Origin:
        """Return the origin of a record, for error messages."""


class Frame(Protocol):
    """A frame: the encoding of a payload's length and of the trailer after the payload."""

    header: int

    def length(self, header: bytes) -> int | None:
        """Return the length of a payload, or None if the header is corrupt."""

    def trailer(self, length: int) -> int:
        """Return the size of the trailer of a payload of this length."""

    def is_valid(self, payload: bytes, trailer: bytes) -> bool:
        """Whether the trailer matches the payload."""


class _Part:
    """One open file, with the places of the records scanned so far."""

    __slots__ = ("complete", "ends", "file", "lock", "starts")

    def __init__(self, path: str) -> None:
        try:
            self.file = OpenFile(path)
        except OSError as error:
            raise missing(path, error) from error
        self.starts = array("q")
        self.ends = array("q")
        self.complete = self.file.size == 0
        self.lock = threading.Lock()


def missing(path: str, error: OSError) -> DataError:
    """Return the error that a file cannot be opened."""
    folder = os.path.dirname(path) or "."
    names = sorted(os.listdir(folder))[:5] if os.path.isdir(folder) else None
    found = f"{folder} holds {', '.join(names) or 'nothing'}" if names is not None else "no folder"
    return DataError(
        f"opening {path}",
        found=f"{error.strerror}; {found}",
        allowed="a file of records",
        hint="check the folder, data_part_num, part_name_prefix and part_name_suffix_length",
    )


class FramedFiles:
    """Files of framed records.

    Args:
        frame: the encoding of lengths and trailers.
        parse: the function that returns the fields of a payload.
        skip: whether to add a message to `broken` at a corrupt frame and continue with the next
            file.
    """

    def __init__(
        self,
        paths: Sequence[str],
        frame: Frame,
        parse: Callable[[bytes], Mapping[str, Field]],
        skip: bool = False,
    ) -> None:
        self.paths = tuple(paths)
        self.broken: list[str] = []  # messages about corrupt frames that were skipped
        self._frame = frame
        self._parse = parse
        self._skip = skip
        self._parts: dict[int, _Part] = {}

    def place(self, part: int, number: int) -> tuple[int, int] | None:
        """Return the start and the end of a payload."""
        known = self._parts.get(part) or self._open(part)
        with known.lock:
            while len(known.starts) <= number and not known.complete:
                self._scan(part, known)
        if number >= len(known.starts):
            return None
        return known.starts[number], known.ends[number]

    def _open(self, part: int) -> _Part:
        return self._parts.setdefault(part, _Part(self.paths[part]))

    def _end(self, known: _Part) -> int:
        """Return the end of the records scanned so far."""
        if not known.ends:
            return 0
        end = known.ends[-1]
        return end + self._frame.trailer(end - known.starts[-1])

    def _scan(self, part: int, known: _Part) -> None:
        """Scan the next record, or detect the end of the file."""
        offset = self._end(known)
        if offset == known.file.size:
            known.complete = True
            return
        head = known.file.read(self._frame.header, offset)
        whole = len(head) == self._frame.header
        length = self._frame.length(head) if whole else None
        start = offset + self._frame.header
        if length is None or start + length + self._frame.trailer(length) > known.file.size:
            self._broken(part, known, offset, head, length)
            return
        known.starts.append(start)
        known.ends.append(start + length)

    def _broken(
        self, part: int, known: _Part, offset: int, head: bytes, length: int | None
    ) -> None:
        origin = Origin(self.paths[part], offset, len(known.starts))
        left = known.file.size - offset
        found = f"{left} bytes left, with header {head.hex(' ') or 'nothing'}"
        if length is not None:
            found = f"a length of {length} with {left - self._frame.header} bytes left"
        error = corrupt(origin, found, "a header and the number of bytes that it declares")
        known.complete = True
        if not self._skip:
            known.complete = False
            raise error
        self.broken.append(str(error).splitlines()[0] + ": " + found)

    def read(self, part: int, number: int, place: Place) -> Record:
        """Read a record; the record parses its fields on first access."""
        start, end = place
        known = self._parts[part]
        payload = known.file.read(end - start, start)
        origin = self.origin(part, number, place)
        if len(payload) != end - start:
            raise corrupt(origin, f"{len(payload)} bytes", f"{end - start}: the file has shrunk")
        size = self._frame.trailer(end - start)
        if size and not self._frame.is_valid(payload, known.file.read(size, end)):
            found = f"{len(payload)} bytes with a wrong checksum"
            raise corrupt(origin, found, "bytes as they were written")
        return Record(payload, origin, self._parse, sparse=True)

    def origin(self, part: int, number: int, place: tuple[int, int]) -> Origin:
        """Return the file, the first byte and the number of a record."""
        return Origin(self.paths[part], place[0] - self._frame.header, number)


class LengthFrame:
    """The frame of OFRecord: a signed 64-bit length.

    >>> LengthFrame().length(struct.pack("<q", 7))
    7
    """

    header = 8

    def length(self, header: bytes) -> int | None:
        """Return the length, or None if it is not positive."""
        value: int = struct.unpack("<q", header)[0]
        return value if value > 0 else None

    def trailer(self, length: int) -> int:
        """Return 0: the format has no trailer."""
        return 0

    def is_valid(self, payload: bytes, trailer: bytes) -> bool:
        """Return True: the format has no checksum."""
        return True
