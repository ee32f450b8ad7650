"""Files of framed records: a length before each payload."""

from __future__ import annotations

import os
import struct
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from flow_core.base.errors import DataError
from flow_data.records.record import Field, Origin, Record, corrupt

Place = Any
"""What a format needs to find a record in a file."""


class Files(Protocol):
    """The files of one data set, whose records are found by file and number."""

    paths: Sequence[str]

    def place(self, part: int, number: int) -> Place | None:
        """Where a record is, None behind the last one; records are asked for in order."""

    def read(self, part: int, number: int, place: Place) -> Record:
        """A record."""

    def origin(self, part: int, number: int, place: Place) -> Origin:
        """What errors say about where a record is."""


class Frame(Protocol):
    """How lengths are written, and what stands behind a payload."""

    header: int

    def length(self, header: bytes) -> int | None:
        """The length of a payload, None when the header is broken."""

    def trailer(self, length: int) -> int:
        """How many bytes stand behind a payload of a length."""

    def is_sound(self, payload: bytes, trailer: bytes) -> bool:
        """Whether a payload is the one that the bytes behind it were written for."""


class _Part:
    """One open file: the places of the records that were seen so far."""

    __slots__ = ("complete", "descriptor", "ends", "lock", "size", "starts")

    def __init__(self, path: str) -> None:
        try:
            self.descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise missing(path, error) from error
        self.size = os.fstat(self.descriptor).st_size
        self.starts = array("q")
        self.ends = array("q")
        self.complete = self.size == 0
        self.lock = threading.Lock()

    def __del__(self) -> None:
        descriptor = getattr(self, "descriptor", None)
        if descriptor is not None:
            os.close(descriptor)


def missing(path: str, error: OSError) -> DataError:
    """The error about a file that cannot be opened."""
    folder = os.path.dirname(path) or "."
    near = sorted(os.listdir(folder))[:5] if os.path.isdir(folder) else None
    found = f"{folder} holds {', '.join(near) or 'nothing'}" if near is not None else "no folder"
    return DataError(
        f"opening {path}",
        found=f"{error.strerror}; {found}",
        allowed="a file of records",
        hint="check folder, data_part_num, part_name_prefix and part_name_suffix_length",
    )


class FramedFiles:
    """Files of records with a frame.

    Args:
        paths: the files.
        frame: how lengths are written.
        parse: gives the fields of a payload.
        skip: count what is broken in `broken` and go on with the next file, instead of an error.

    Attributes:
        broken: messages about broken frames that were skipped.
    """

    def __init__(
        self,
        paths: Sequence[str],
        frame: Frame,
        parse: Callable[[bytes], Mapping[str, Field]],
        skip: bool = False,
    ) -> None:
        self.paths = tuple(paths)
        self.broken: list[str] = []
        self._frame = frame
        self._parse = parse
        self._skip = skip
        self._parts: dict[int, _Part] = {}

    def place(self, part: int, number: int) -> tuple[int, int] | None:
        """Start and end of a payload."""
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
        """Where the records end that were seen so far."""
        if not known.ends:
            return 0
        end = known.ends[-1]
        return end + self._frame.trailer(end - known.starts[-1])

    def _scan(self, part: int, known: _Part) -> None:
        """Notes the next record, or that there is none."""
        offset = self._end(known)
        if offset == known.size:
            known.complete = True
            return
        head = os.pread(known.descriptor, self._frame.header, offset)
        whole = len(head) == self._frame.header
        length = self._frame.length(head) if whole else None
        start = offset + self._frame.header
        if length is None or start + length + self._frame.trailer(length) > known.size:
            self._broken(part, known, offset, head, length)
            return
        known.starts.append(start)
        known.ends.append(start + length)

    def _broken(
        self, part: int, known: _Part, offset: int, head: bytes, length: int | None
    ) -> None:
        origin = Origin(self.paths[part], offset, len(known.starts))
        left = known.size - offset
        found = f"{left} bytes left, with header {head.hex(' ') or 'nothing'}"
        if length is not None:
            found = f"a length of {length} with {left - self._frame.header} bytes left"
        error = corrupt(origin, found, "a header and as many bytes as it says")
        known.complete = True
        if not self._skip:
            known.complete = False
            raise error
        self.broken.append(str(error).splitlines()[0] + ": " + found)

    def read(self, part: int, number: int, place: Place) -> Record:
        """A record, its payload read and its fields not parsed yet."""
        start, end = place
        known = self._parts[part]
        payload = os.pread(known.descriptor, end - start, start)
        origin = self.origin(part, number, place)
        if len(payload) != end - start:
            raise corrupt(origin, f"{len(payload)} bytes", f"{end - start}: the file has shrunk")
        behind = self._frame.trailer(end - start)
        if behind and not self._frame.is_sound(payload, os.pread(known.descriptor, behind, end)):
            found = f"{len(payload)} bytes whose checksum is not the one behind them"
            raise corrupt(origin, found, "bytes as they were written")
        return Record(payload, origin, self._parse)

    def origin(self, part: int, number: int, place: tuple[int, int]) -> Origin:
        """File, byte and number of a record."""
        return Origin(self.paths[part], place[0] - self._frame.header, number)


class LengthFrame:
    """OFRecord's frame: a signed 64-bit length.

    >>> LengthFrame().length(struct.pack("<q", 7))
    7
    """

    header = 8

    def length(self, header: bytes) -> int | None:
        """The length, which is positive in a sound file."""
        value: int = struct.unpack("<q", header)[0]
        return value if value > 0 else None

    def trailer(self, length: int) -> int:
        """Nothing stands behind a payload."""
        return 0

    def is_sound(self, payload: bytes, trailer: bytes) -> bool:
        """Nothing says what a payload should be."""
        return True
