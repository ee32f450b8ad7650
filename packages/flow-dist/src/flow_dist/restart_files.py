"""A checkpoint in parts: files that several processes write, and one mark that makes it count.

Every process writes its own file of data and then a list of what is in it, with checksums.  The
first process waits for all lists, marks the folder as done and gives it its name, in that order.
A variable lies there in its logical form, cut as the processes held it, so that any number of
processes in any layout can read it.

::

    step-000000000010/
        part-0000.bin    data, one array after the other
        part-0000.json   {"crc": of the body, "body": `Contents` as JSON}
        snapshot_done    there once everything else is
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.checkpoint.layout import DONE
from flow_core.checkpoint.swap import sync
from flow_core.dtypes import as_dtype
from flow_core.errors import CheckpointError, InferenceError
from flow_core.ir import TensorType
from flow_core.sbp import Region, region_shape
from flow_core.shapes import num_elements

Array = np.ndarray[Any, np.dtype[Any]]

VERSION = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a variable in a file.

    Attributes:
        name: of the variable.
        dtype: its element type.
        shape: of the whole variable.
        region: where the part lies in it.
        offset, nbytes, crc: where its bytes are in the file, and their CRC-32.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    region: Region
    offset: int
    nbytes: int
    crc: int

    @property
    def window(self) -> tuple[slice, ...]:
        """The part as slices of the variable."""
        return tuple(slice(low, high) for low, high in self.region)


@dataclass(frozen=True, slots=True)
class Contents:
    """What one process has written.

    Attributes:
        step: number of the step that comes next.
        rank, of: which process, of how many.
        job: the same text for all parts of one save.
        pieces: what is in its file.
    """

    step: int
    rank: int
    of: int
    job: str
    pieces: tuple[Piece, ...]


def data_file(folder: Path, rank: int) -> Path:
    """The file with a process's data."""
    return folder / f"part-{rank:04d}.bin"


def list_file(folder: Path, rank: int) -> Path:
    """The file that says what is in it."""
    return folder / f"part-{rank:04d}.json"


def write_part(
    folder: Path,
    step: int,
    rank: int,
    of: int,
    job: str,
    arrays: Sequence[tuple[str, tuple[int, ...], Region, Array]],
) -> None:
    """Writes what one process has of a checkpoint, data first.

    Args:
        folder: where; made by whoever comes first.
        step, rank, of, job: see `Contents`.
        arrays: name and shape of a variable, and a part of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pieces: list[Piece] = []
    data = data_file(folder, rank)
    offset = 0
    with data.open("wb") as file:
        for name, shape, region, array in arrays:
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            file.write(raw)
            dtype = as_dtype(array.dtype).name
            crc = zlib.crc32(raw)
            pieces.append(Piece(name, dtype, shape, region, offset, raw.nbytes, crc))
            offset += raw.nbytes
    sync(data)
    body = asdict(Contents(step, rank, of, job, tuple(pieces)))
    _write_list(list_file(folder, rank), {"version": VERSION, **body})
    sync(folder)


def _write_list(path: Path, body: Mapping[str, Any]) -> None:
    """The list appears at once, and after the data."""
    text = json.dumps(body)
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps({"crc": zlib.crc32(text.encode()), "body": text}))
    sync(aside)
    aside.rename(path)


def read_list(path: Path) -> Contents:
    """The contents of one process's file.

    Raises:
        CheckpointError: the list is missing, damaged or of another version.
    """
    try:
        outer = json.loads(path.read_bytes())
        text = outer["body"]
        if outer["crc"] != zlib.crc32(text.encode()):
            raise _corrupt(path, "a list whose checksum is wrong")
        body = json.loads(text)
        if body["version"] != VERSION:
            raise _corrupt(path, f"version {body['version']!r}")
        pieces = tuple(_piece(entry) for entry in body["pieces"])
        return Contents(body["step"], body["rank"], body["of"], body["job"], pieces)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(path, f"no list: {error}") from error


def _piece(entry: Mapping[str, Any]) -> Piece:
    region = tuple((low, high) for low, high in entry["region"])
    return Piece(**{**entry, "shape": tuple(entry["shape"]), "region": region})


def _corrupt(path: Path, found: str) -> CheckpointError:
    return CheckpointError(f"reading {path}", found=found, allowed="a part as it was written")


class Parts(Mapping[str, Array]):
    """The variables of a checkpoint in parts; each is put together and checked when asked for.

    Raises:
        CheckpointError: it is not complete.

    Attributes:
        step: number of the step that comes next.
        of: how many processes have written it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / DONE).is_file():
            raise CheckpointError(f"reading {folder}", found=f"no file {DONE}: it is not complete")
        first = read_list(list_file(folder, 0))
        lists = [first, *(read_list(list_file(folder, rank)) for rank in range(1, first.of))]
        if any((c.step, c.of, c.job) != (first.step, first.of, first.job) for c in lists):
            raise _corrupt(folder, "parts of several saves")
        self.step, self.of = first.step, first.of
        self._pieces: dict[str, list[tuple[int, Piece]]] = {}
        for contents in lists:
            for piece in contents.pieces:
                self._pieces.setdefault(piece.name, []).append((contents.rank, piece))
        for name in self._pieces:
            self._check_whole(name)

    def _check_whole(self, name: str) -> None:
        pieces = [piece for _, piece in self._pieces[name]]
        kinds = {(piece.shape, piece.dtype) for piece in pieces}
        regions = {piece.region for piece in pieces}
        filled = sum(num_elements(region_shape(region)) for region in regions)
        if len(kinds) > 1 or filled != num_elements(pieces[0].shape):
            raise _corrupt(self.folder, f"{name!r} with {filled} elements of {pieces[0].shape}")

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._pieces))

    def __len__(self) -> int:
        return len(self._pieces)

    def __contains__(self, name: object) -> bool:
        return name in self._pieces  # the inherited one would read the variable

    def type_of(self, name: str) -> TensorType:
        """Shape and element type of a variable without reading it."""
        piece = self._pieces[name][0][1]
        try:
            return TensorType(piece.shape, as_dtype(piece.dtype))
        except InferenceError as error:
            raise _corrupt(self.folder, f"elements of type {piece.dtype}") from error

    def __getitem__(self, name: str) -> Array:
        kind = self.type_of(name)
        value = np.empty(kind.shape, kind.dtype.numpy)
        for rank, piece in self._pieces[name]:
            raw = self._read(rank, piece)
            value[piece.window] = raw.view(kind.dtype.numpy).reshape(region_shape(piece.region))
        return value

    def _read(self, rank: int, piece: Piece) -> Array:
        path = data_file(self.folder, rank)
        try:
            with path.open("rb") as file:
                file.seek(piece.offset)
                raw = file.read(piece.nbytes)
        except OSError as error:
            raise _corrupt(path, str(error)) from error
        if len(raw) != piece.nbytes or zlib.crc32(raw) != piece.crc:
            found = f"{piece.name!r}, {len(raw)} of {piece.nbytes} bytes, with a wrong checksum"
            raise _corrupt(path, found)
        return np.frombuffer(raw, np.uint8)

    def check(self, rank: int = 0, of: int = 1) -> None:
        """Reads every ``of``-th file and compares checksums.  Raises `CheckpointError`."""
        for pieces in self._pieces.values():
            for number, piece in pieces:
                if number % of == rank:
                    self._read(number, piece)


def read(path: Path) -> Parts:
    """Opens a checkpoint in parts.  Raises `CheckpointError`."""
    return Parts(Path(path))
