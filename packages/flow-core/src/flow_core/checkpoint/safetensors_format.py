"""The safetensors format: all variables in one file.

The package ``safetensors`` (``flow-core[safetensors]``, imported on use) writes the files.  This
module reads the files: it copies each tensor into memory and verifies the tensor's digest.  It does
not map the file, because this process would crash if another program truncated the mapped file.

The digests are entries of the file's metadata, which other programs ignore.  Besides
``flow.version``, there is for each tensor the entry ``sha256:NAME``, the SHA-256 of the tensor's
name, element type, shape and data.  Files that other programs wrote have no digests and are read
without verification.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from flow_core.base.errors import CheckpointError, UnsupportedError, install_command
from flow_core.checkpoint.layout import MOST_AXES, check_names, stored_type
from flow_core.checkpoint.origin import Array, SameFile
from flow_core.checkpoint.snapshot import variable_type
from flow_core.ir.graph import TensorType

FILE = "model.safetensors"
LONGEST_HEADER = 1 << 25
"""Largest size of a header in bytes; the header is read as a whole."""

_DTYPES: Mapping[str, str] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}
_OTHER_DTYPES = (
    "F4", "F6_E2M3", "F6_E3M2", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
    "I16", "U16", "U32", "U64", "C64",
)  # fmt: skip
"""Element types of the format that flow does not have."""
_NAMES = {name: tag for tag, name in _DTYPES.items()} | {"char": "I8"}
_METADATA = "__metadata__"
_VERSION = "flow.version"
_DIGEST = "sha256:"


def can_open(path: Path) -> bool:
    """Return whether a path is a ``.safetensors`` file or a folder with ``model.safetensors``."""
    file = _file(Path(path))
    return file.suffix == ".safetensors" and file.is_file()


def _file(path: Path) -> Path:
    return path / FILE if path.is_dir() else path


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in a file."""

    tag: str  # the name of the element type in the format
    shape: tuple[int, ...]
    begin: int  # in bytes from the end of the header
    end: int  # likewise


class SafeTensors(Mapping[str, Array]):
    """The variables of a safetensors file; each variable is read and verified on access.

    If the file was replaced or written to after it was opened, access raises
    `CheckpointReplacedError`.  Raises `CheckpointError` if the file is damaged, or not a
    safetensors file.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._same = SameFile(file)
        with self._opened() as handle:
            header, self._start = _header(handle, file)
            size = os.fstat(handle.fileno()).st_size - self._start
        self._entries, metadata = _parsed(header, size, file)
        self._digests = _digests(metadata, self._entries, file)

    def __getitem__(self, name: str) -> Array:
        kind, entry = self.type_of(name), self._entries[name]
        data = self._data(name, entry)
        digest = self._digests.get(name)
        if digest is not None and digest != _digest(name, entry.tag, entry.shape, data.data):
            raise self._refused(name, "bytes that differ from those saved: it is damaged")
        values = data != 0 if kind.dtype.kind == "b" else data.view(kind.dtype.numpy)
        return values.reshape(kind.shape)  # a bool of numpy must be 0 or 1

    @contextmanager
    def _opened(self) -> Iterator[BufferedReader]:
        try:
            with self._same.opened() as handle:
                yield handle
        except OSError as error:
            raise _corrupt(self.file, str(error)) from error

    def _data(self, name: str, entry: Entry) -> Array:
        with self._opened() as handle:
            handle.seek(self._start + entry.begin)
            try:
                data = np.empty(entry.end - entry.begin, np.uint8)
            except MemoryError:
                raise self._refused(name, "more bytes than fit in memory") from None
            filled = handle.readinto(data.data) if len(data) else 0
        if filled != len(data):
            raise self._refused(name, f"{filled} of {len(data)} bytes")
        return data

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # the inherited method would read the variable

    def type_of(self, name: str) -> TensorType:
        """Return a variable's shape and element type without reading its data.

        Raises:
            UnsupportedError: flow has no such element type.
            CheckpointError: the entry is damaged.
        """
        entry = self._entries[name]
        allowed = f"at most {MOST_AXES} axes of {', '.join(_DTYPES)}"
        if entry.tag in _OTHER_DTYPES:
            found = f"elements of type {entry.tag}"
            raise UnsupportedError(self._reading(name), found=found, allowed=allowed)
        kind = stored_type(entry.shape, _DTYPES.get(entry.tag))
        if kind is None:
            raise self._refused(name, f"{entry.tag!r:.60} of {entry.shape!r:.200}", allowed)
        if kind.nbytes != entry.end - entry.begin:
            raise self._refused(name, f"{entry.end - entry.begin} bytes", f"{kind.nbytes}: {kind}")
        return kind

    def _refused(self, name: str, found: str, allowed: str | None = None) -> CheckpointError:
        return CheckpointError(self._reading(name), found=found, allowed=allowed)

    def _reading(self, name: str) -> str:
        return f"reading {name!r} of {self.file}"


def read(path: Path) -> SafeTensors:
    """Open a safetensors file, given by its path or its folder; may raise `CheckpointError`."""
    return SafeTensors(_file(Path(path)))


def _header(handle: BufferedReader, file: Path) -> tuple[bytes, int]:
    """Return the JSON text of the header, and the offset of the data in the file."""
    size = os.fstat(handle.fileno()).st_size
    length = int.from_bytes(handle.read(8), "little")
    if size < 8 or length > min(size - 8, LONGEST_HEADER):
        raise _corrupt(file, f"a header of {length} bytes in a file of {size}")
    header = handle.read(length)
    if len(header) != length:
        raise _corrupt(file, "a file that another program is writing")
    return header, 8 + length


def _parsed(header: bytes, size: int, file: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """Parse a header into tensors and metadata, or raise `CheckpointError`."""
    try:
        fields = json.loads(header.decode(), object_pairs_hook=unique)
        metadata = fields.pop(_METADATA, {})
        entries = {name: _entry(fields[name]) for name in sorted(fields)}
        good = all(isinstance(value, str) for pair in metadata.items() for value in pair)
        "".join(entries).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _corrupt(file, f"an invalid header: {error!s:.100}") from None
    if not good or not _tiles(entries, size):
        raise _corrupt(file, "a header whose tensors overlap or leave gaps in the file")
    return entries, metadata


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the dict of a JSON object; raise `ValueError` for two entries with one name."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a duplicate name")
    return entries


def _entry(fields: dict[str, Any]) -> Entry:
    (begin, end), shape, tag = fields["data_offsets"], fields["shape"], fields["dtype"]
    if not isinstance(tag, str) or not isinstance(shape, list) or len(fields) != 3:
        raise TypeError("an invalid tensor description")
    if any(type(n) is not int or n < 0 for n in (begin, end, *shape)):
        raise TypeError("invalid sizes")
    return Entry(tag, tuple(shape), begin, end)


def _tiles(entries: Mapping[str, Entry], size: int) -> bool:
    """Return whether the tensors fill the file's data without gaps and overlaps."""
    at = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != at or entry.end < at:
            return False
        at = entry.end
    return at == size


def _digests(
    metadata: Mapping[str, str], entries: Mapping[str, Entry], file: Path
) -> Mapping[str, str]:
    """Return the digests by tensor name; the result is empty if another program wrote the file."""
    own = [key for key in metadata if key == _VERSION or key.startswith(_DIGEST)]
    digests = {key.removeprefix(_DIGEST): metadata[key] for key in own if key != _VERSION}
    if own and (metadata.get(_VERSION) != "1" or digests.keys() != entries.keys()):
        raise _corrupt(file, "digests that do not match the tensors")
    return digests


def _digest(name: str, tag: str, shape: tuple[int, ...], data: memoryview) -> str:
    total = hashlib.sha256(json.dumps([name, tag, shape]).encode())
    total.update(data)
    return total.hexdigest()


def _corrupt(file: Path, found: str) -> CheckpointError:
    return CheckpointError(f"reading {file}", found=found, allowed="a safetensors file")


def write(path: Path, variables: Mapping[str, Array]) -> None:
    """Write ``model.safetensors`` into a folder; may raise `CheckpointError`."""
    library = _library(f"saving {path}")
    check_names(variables)
    arrays, metadata = {}, {_VERSION: "1"}
    for name, value in variables.items():
        kind = variable_type(name, value)
        array = np.ascontiguousarray(value, kind.dtype.numpy).reshape(kind.shape)
        data = array.reshape(-1).view(np.uint8).data
        metadata[_DIGEST + name] = _digest(name, _NAMES[kind.dtype.name], kind.shape, data)
        arrays[name] = array
    try:
        import_module("safetensors.numpy").save_file(arrays, str(Path(path) / FILE), metadata)
    except library.SafetensorError as error:  # for instance, the disk is full
        raise CheckpointError(f"saving {path}", found=str(error)) from error


def _library(attempted: str) -> ModuleType:
    try:
        return import_module("safetensors")
    except ModuleNotFoundError as error:
        if error.name != "safetensors":
            raise
        raise CheckpointError(
            attempted,
            found="the package safetensors is not installed",
            hint=install_command("flow-core[safetensors]"),
        ) from None
