"""The format of sharded checkpoints: files of every process, and one mark of completion.

Every process writes a data file, then a list of its contents with checksums.  Rank 0 waits for all
lists, marks the folder as complete and renames it, in that order.  The files hold regions of the
logical variables, split as the processes held them, so that any number of processes with any
distribution can read them.

::

    step-000000000010/
        part-0000.bin    data, one array after the other
        part-0000.json   {"crc": of the body, "body": `Contents` as JSON}
        snapshot_done    created last
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BufferedReader
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.authoring.specs import Region, TensorType, region_shape
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import CheckpointError, CheckpointReplacedError
from flow_core.base.formats.regular_files import open_regular
from flow_core.base.shapes import num_elements
from flow_core.checkpoint.layout import DONE, MOST_BYTES, stored_type
from flow_core.checkpoint.origin import stamp
from flow_core.checkpoint.sums import read_all
from flow_core.checkpoint.swap import sync

Array = np.ndarray[Any, np.dtype[Any]]

VERSION = 1

PIECE_BYTES = 1 << 22
"""Maximum number of bytes of a piece with several elements; readers verify whole pieces."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A region of a variable in a file."""

    name: str  # of the variable
    dtype: str  # of the variable
    shape: tuple[int, ...]  # of the whole variable
    region: Region  # of the variable
    offset: int  # of the piece's bytes in the file
    nbytes: int
    crc: int  # CRC-32


@dataclass(frozen=True, slots=True)
class Contents:
    """The list of contents that one process writes."""

    step: int  # number of the step to resume at
    rank: int
    of: int  # the number of processes
    job: str  # the id of the save, equal in all lists
    pieces: tuple[Piece, ...]  # the contents of the process's data file


def data_file(folder: Path, rank: int) -> Path:
    """Return the path of a process's data file."""
    return folder / f"part-{rank:04d}.bin"


def list_file(folder: Path, rank: int) -> Path:
    """Return the path of a process's list."""
    return folder / f"part-{rank:04d}.json"


def write_part(
    folder: Path,  # the folder; created if it does not exist
    step: int,  # see `Contents`
    rank: int,
    of: int,
    job: str,
    # For each piece, the name and shape of the variable, and a region with its values.
    arrays: Sequence[tuple[str, tuple[int, ...], Region, Array]],
) -> None:
    """Write one process's part of a checkpoint: first the data file, then the list."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces: list[Piece] = []
    data = data_file(folder, rank)
    offset = 0
    with data.open("wb") as file:
        for name, shape, whole, array in arrays:
            dtype = as_dtype(array.dtype).name
            for region in divided(whole, PIECE_BYTES // array.itemsize):
                values = array[_window(region, whole)]
                raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
                file.write(raw)
                crc = zlib.crc32(raw)
                pieces.append(Piece(name, dtype, shape, region, offset, raw.nbytes, crc))
                offset += raw.nbytes
    sync(data)
    body = asdict(Contents(step, rank, of, job, tuple(pieces)))
    _write_list(list_file(folder, rank), {"version": VERSION, **body})
    sync(folder)


def divided(region: Region, most: int) -> Iterator[Region]:
    """Halve a region along its longest axis until each part has at most ``most`` elements.

    >>> list(divided(((0, 4), (2, 8)), 8))
    [((0, 2), (2, 5)), ((2, 4), (2, 5)), ((0, 2), (5, 8)), ((2, 4), (5, 8))]
    """
    shape = region_shape(region)
    if num_elements(shape) <= max(most, 1):
        yield region
        return
    axis = max(range(len(shape)), key=shape.__getitem__)
    low, high = region[axis]
    middle = (low + high) // 2
    for ends in ((low, middle), (middle, high)):
        yield from divided((*region[:axis], ends, *region[axis + 1 :]), most)


def _window(region: Region, of: Region) -> tuple[slice, ...]:
    """Return a region as slices of an array that holds a larger region around it."""
    return tuple(
        slice(low - first, high - first) for (low, high), (first, _) in zip(region, of, strict=True)
    )


def _overlap(one: Region, other: Region) -> Region:
    """Return the region that two regions share; its length is negative if they share nothing.

    >>> _overlap(((0, 4), (2, 8)), ((2, 6), (0, 3)))
    ((2, 4), (2, 3))
    """
    pairs = zip(one, other, strict=True)
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in pairs)


def _write_list(path: Path, body: Mapping[str, Any]) -> None:
    """Write a list atomically, after the data."""
    text = json.dumps(body)
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps({"crc": zlib.crc32(text.encode()), "body": text}))
    sync(aside)
    aside.rename(path)


MAX_LIST_BYTES = 1 << 26
"""Maximum size in bytes of a list, which is read as a whole."""

_MAX_CORNERS = 1 << 20
"""Maximum number of corners that `_covers` visits."""


def is_own(name: str) -> bool:
    """Return whether a file name belongs to the format."""
    return re.fullmatch(r"part-[0-9]{4,}\.(bin|json|new)", name) is not None


def read_list(path: Path) -> Contents:
    """Read and validate the list of one process.

    Raises `CheckpointError` if the list is missing, damaged or invalid, or has another version.
    """
    try:
        with open_regular(path) as file:
            outer = json.loads(read_all(file, MAX_LIST_BYTES) or b"")
        text = outer["body"]
        if outer["crc"] != zlib.crc32(text.encode()):
            raise _corrupt(path, "a list with a wrong checksum")
        body = json.loads(text)
        if body["version"] != VERSION:
            raise _corrupt(path, f"version {body['version']!r:.60}")
        return _contents(body)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _corrupt(path, f"an invalid list: {error!s:.200}") from error


def _contents(body: Mapping[str, Any]) -> Contents:
    """Validate the types of a list's entries; raise `ValueError` or a similar error."""
    of = _number(body["of"], 1)
    rank = _number(body["rank"], 0, of - 1)
    if not isinstance(body["job"], str):
        raise TypeError("a job that is not a string")
    pieces = tuple(map(_piece, body["pieces"]))
    return Contents(_number(body["step"], 0), rank, of, body["job"], pieces)


def _number(value: object, least: int, most: int = MOST_BYTES) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r:.60} for a number from {least} to {most}")
    return value


def _piece(entry: Mapping[str, Any]) -> Piece:
    name, dtype = entry["name"], entry["dtype"]
    kind = stored_type(entry["shape"], dtype)
    if not isinstance(name, str) or kind is None:
        raise ValueError(f"{name!r:.60} of type {dtype!r:.60} and shape {entry['shape']!r:.60}")
    ends = [
        (_number(low, 0, n), high, n)
        for (low, high), n in zip(entry["region"], kind.shape, strict=True)
    ]
    region = tuple((low, _number(high, low, n)) for low, high, n in ends)
    numbers = [_number(entry[key], 0) for key in ("offset", "nbytes", "crc")]
    if numbers[1] != num_elements(region_shape(region)) * kind.dtype.itemsize:
        raise ValueError(f"{numbers[1]} bytes for {region!r:.100} of {name!r:.60}")
    return Piece(name, kind.dtype.name, kind.shape, region, *numbers)


def _covers(regions: Collection[Region], shape: Sequence[int]) -> bool:
    """Return whether regions tile a shape without gaps and overlaps, in linear time.

    Signs at the corners of a box determine its indicator function, so the regions tile the shape if
    and only if the signs at their corners add up to the signs at the shape's corners.  Axes that no
    region splits are ignored.

    >>> _covers([((0, 1), (0, 3)), ((1, 2), (0, 3))], (2, 3))
    True
    >>> _covers([((0, 1), (0, 3)), ((0, 1), (0, 3))], (2, 3))
    False
    """
    whole = tuple((0, n) for n in shape)
    full = [region for region in regions if num_elements(region_shape(region))]
    cut = [axis for axis, ends in enumerate(whole) if any(r[axis] != ends for r in full)]
    if len(full) << len(cut) > _MAX_CORNERS:
        return False
    signs: Counter[tuple[int, ...]] = Counter()
    for region, times in [*((r, 1) for r in full), *([(whole, -1)] if num_elements(shape) else [])]:
        for corner in product(*(((region[axis][0], 1), (region[axis][1], -1)) for axis in cut)):
            signs[tuple(at for at, _ in corner)] += times * prod(sign for _, sign in corner)
    return not any(signs.values())


def read_into(file: BufferedReader, target: memoryview) -> int:
    """Fill a buffer from a file; return the bytes read, fewer at the file's end."""
    done = 0
    while done < len(target) and (more := file.readinto(target[done:])):
        done += more
    return done


def _corrupt(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        f"reading {path}", found=found, allowed="an unchanged part of a checkpoint"
    )


class Parts(Mapping[str, Array]):
    """The variables of a sharded checkpoint; each is assembled and verified when it is accessed.

    The lists are read only once, with the id of their save, so the checksum of a data file that a
    later save has replaced reveals the replacement.

    Raises:
        CheckpointError: the checkpoint is incomplete, or its lists are invalid.

    Attributes:
        step: number of the step to resume at.
        of: number of processes that wrote the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stamp = stamp(list_file(folder, 0))
        if not (folder / DONE).is_file():
            raise CheckpointError(
                f"reading {folder}", found=f"no file {DONE}: the checkpoint is not complete"
            )
        first = read_list(list_file(folder, 0))
        lists = [first, *(read_list(list_file(folder, rank)) for rank in range(1, first.of))]
        if any((c.step, c.of, c.job) != (first.step, first.of, first.job) for c in lists):
            raise self._refused(folder, "parts that were written by different saves")
        if [c.rank for c in lists] != [*range(first.of)]:
            raise self._refused(folder, "lists that name other ranks than their file names")
        self.step, self.of = first.step, first.of
        self._pieces: dict[str, list[tuple[int, Piece]]] = {}
        for contents in lists:
            self._check_size(contents)
            for piece in contents.pieces:
                self._pieces.setdefault(piece.name, []).append((contents.rank, piece))
        for name in self._pieces:
            self._check_whole(name)

    def _check_size(self, contents: Contents) -> None:
        """Raise `CheckpointError` if a data file is shorter than its list states."""
        file = data_file(self.folder, contents.rank)
        status = stamp(file)
        ends = [piece.offset + piece.nbytes for piece in contents.pieces]
        least = max(*ends, sum(piece.nbytes for piece in contents.pieces), 0)
        if status is None or status[2] < least:
            state = "no file" if status is None else f"{status[2]} bytes"
            raise self._refused(file, f"{state}, but its list needs {least}")

    def _check_whole(self, name: str) -> None:
        pieces = [piece for _, piece in self._pieces[name]]
        kinds = {(piece.shape, piece.dtype) for piece in pieces}
        regions = {piece.region for piece in pieces}
        if len(kinds) > 1 or not _covers(regions, pieces[0].shape):
            raise self._refused(
                self.folder, f"parts of {name!r} that do not cover {pieces[0].shape} exactly once"
            )

    def _refused(self, path: Path, found: str) -> CheckpointError:
        """Return the error for inconsistent files, or for a checkpoint that has been replaced."""
        if stamp(list_file(self.folder, 0)) == self._stamp:
            return _corrupt(path, found)
        return CheckpointReplacedError(
            f"reading {path}", found="another checkpoint, saved there in the meantime"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._pieces))

    def __len__(self) -> int:
        return len(self._pieces)

    def __contains__(self, name: object) -> bool:
        return name in self._pieces  # `Mapping` would read the variable

    def type_of(self, name: str) -> TensorType:
        """Return the shape and element type of a variable without reading the variable."""
        piece = self._pieces[name][0][1]
        return TensorType(piece.shape, as_dtype(piece.dtype))

    def __getitem__(self, name: str) -> Array:
        return self.read(name, tuple((0, n) for n in self.type_of(name).shape))

    def read(self, name: str, region: Region) -> Array:
        """Return a region of a variable; only the pieces that overlap it are read.

        Raises `CheckpointError` if one of these pieces is damaged.
        """
        dtype = self.type_of(name).dtype.numpy
        value = np.empty(region_shape(region), dtype)
        for rank, piece in self._pieces[name]:
            common = _overlap(region, piece.region)
            if any(low >= high for low, high in common):
                continue
            part = self._read(rank, piece).view(dtype).reshape(region_shape(piece.region))
            value[_window(common, region)] = part[_window(common, piece.region)]
        return value

    def _read(self, rank: int, piece: Piece) -> Array:
        path = data_file(self.folder, rank)
        try:
            raw = np.empty(piece.nbytes, np.uint8)
            with open_regular(path) as file:
                file.seek(piece.offset)
                size = read_into(file, raw.data)
        except (OSError, MemoryError) as error:
            raise self._refused(path, str(error) or "more than fits into memory") from error
        if size != piece.nbytes or zlib.crc32(raw.data) != piece.crc:
            found = f"{piece.name!r}, {size} of {piece.nbytes} bytes, with a wrong checksum"
            raise self._refused(path, found)
        return raw

    def check(self, rank: int = 0, of: int = 1) -> None:
        """Verify the checksums of every ``of``-th piece.  Raises `CheckpointError`."""
        pieces = [piece for pieces in self._pieces.values() for piece in pieces]
        for number, piece in pieces[rank::of]:
            self._read(number, piece)


def read(path: Path) -> Parts:
    """Open a sharded checkpoint.  Raises `CheckpointError`."""
    return Parts(Path(path))
