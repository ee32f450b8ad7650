"""Reader of weights that ``torch.save`` wrote: zip files with a pickle and a file per storage.

The module `torch_pickle` interprets the pickle; torch is not needed.  All sizes in it are compared
with those of the files in the archive before memory is allocated.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.errors import CheckpointError, UnsupportedError
from flow_core.checkpoint.layout import stored_type
from flow_core.checkpoint.origin import Array, SameFile
from flow_core.checkpoint.torch_pickle import (
    LONGEST_PICKLE,
    Pairs,
    PickleError,
    StridedTensor,
    Tensor,
    UnknownNameError,
    interpret,
)
from flow_core.ir.graph import TensorType

_DTYPES = (
    "bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"
)  # fmt: skip
"""The element types that flow has, which have the same names in torch."""

_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
"""Names under which training programs store the weights beside other state."""

_TRAINING = re.compile("optim|sched|scaler|rng|^callbacks$|^loops$")
"""Parts of the names of other state of a training, whose tensors are not weights."""

MOST_LEVELS = 100
"""Largest depth of dicts, lists and tuples with tensors."""

MOST_ENTRIES = 1 << 22
"""Largest number of entries of dicts, lists and tuples with tensors, counted at each place."""

MOST_TEXT = 1 << 26
"""Largest number of characters of all names of tensors."""

MOST_EXPANDED = 1 << 26
"""Bytes that all tensors may have beyond four times the size of the file."""

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file in the archive, stored without compression."""

    begin: int  # its position in the archive
    nbytes: int
    crc: int  # its CRC-32; 0 if torch did not compute it


class _Damaged(ValueError):
    """Contents of an archive that ``torch.save`` does not write."""


class TorchWeights(Mapping[str, Array]):
    """The tensors of a file, each read on access.

    The name of a tensor consists of the keys of nested dicts, and its indices in lists and tuples,
    joined by dots.  Raises `CheckpointError` if the file is damaged, or contains more than tensors,
    numbers and text.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._same = SameFile(file)
        try:
            with self._same.opened() as handle:
                self._size = os.fstat(handle.fileno()).st_size
                self._infos = _infos(handle)
                self._folder = _folder(self._infos)
                data = self._contents(handle, self._folder + "data.pkl", LONGEST_PICKLE)
                self._order = self._byte_order(handle)
                self._tensors = named_tensors(interpret(data))
                self._entries = dict(self._checked(handle))
        except (PickleError, _Damaged, OSError, MemoryError) as error:
            raise self._refused(error) from None
        self._verified: set[str] = set()

    def _refused(self, error: BaseException) -> CheckpointError:
        allowed = "tensors in dicts, as torch.save(model.state_dict(), path) writes them"
        hint = None
        if isinstance(error, UnknownNameError):
            hint = "save the weights alone: torch.save(model.state_dict(), path)"
        if isinstance(error.__cause__, zipfile.BadZipFile):
            hint = "a file of torch before 1.6 is converted by loading and saving it with torch"
        found = str(error) or "more bytes than fit in memory"
        return CheckpointError(f"reading {self.file}", found=found, allowed=allowed, hint=hint)

    # -------------------------------------------------------------------------------- the archive

    def _entry(self, handle: BufferedReader, name: str) -> _Entry:
        """Return the place of a file in the archive."""
        info = self._infos.get(name)
        if info is None:
            raise _Damaged(f"no file {name!r:.120}")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise _Damaged(f"the file {name!r:.120}, which is compressed or encrypted")
        handle.seek(max(info.header_offset, 0))
        header = handle.read(30)
        lengths = (int.from_bytes(header[i : i + 2], "little") for i in (26, 28))
        begin = info.header_offset + 30 + sum(lengths)
        if header[:4] != b"PK\3\4" or info.header_offset < 0:
            raise _Damaged(f"no header of the file {name!r:.120}")
        if info.file_size != info.compress_size or begin + info.file_size > self._size:
            raise _Damaged(f"{info.file_size} bytes of {name!r:.120} in a file of {self._size}")
        return _Entry(begin, info.file_size, info.CRC)

    def _contents(self, handle: BufferedReader, name: str, longest: int) -> bytes:
        """Return a small file of the archive."""
        entry = self._entry(handle, name)
        if entry.nbytes > longest:
            raise _Damaged(f"{entry.nbytes} bytes of {name!r:.120}, more than {longest}")
        data = _read(handle, entry.begin, entry.nbytes)
        _check_sum(zlib.crc32(data.data), entry, name)
        return data.tobytes()

    def _byte_order(self, handle: BufferedReader) -> str:
        name = self._folder + "byteorder"
        order = self._contents(handle, name, 16) if name in self._infos else b"little"
        if order not in (b"little", b"big"):
            raise _Damaged(f"the byte order {order!r}")
        return "<" if order == b"little" else ">"

    def _checked(self, handle: BufferedReader) -> Iterator[tuple[str, _Entry]]:
        """Yield the places of the tensors' storages, and check that these hold the tensors."""
        entries: dict[str, _Entry] = {}
        left = 4 * self._size + MOST_EXPANDED
        for name, tensor in self._tensors.items():
            if not isinstance(tensor, StridedTensor) or tensor.element not in _DTYPES:
                continue
            key, kind = tensor.storage.key, _type(tensor)
            if kind is None or not _fits(tensor, kind.dtype.itemsize):
                raise _Damaged(f"the tensor {name!r:.120}, which is outside of its storage")
            if key not in entries:
                entries[key] = self._entry(handle, f"{self._folder}data/{key}")
                yield key, entries[key]
            if entries[key].nbytes < tensor.storage.nbytes:
                found = f"{entries[key].nbytes} bytes of {name!r:.120}"
                raise _Damaged(f"{found} instead of {tensor.storage.nbytes}")
            left -= kind.nbytes
            if left < 0:
                raise _Damaged(f"tensors that are much larger than the file, such as {name!r:.120}")

    # -------------------------------------------------------------------------------- the tensors

    def __getitem__(self, name: str) -> Array:
        tensor, kind = self._readable(name)
        element = kind.dtype.numpy
        if 0 in tensor.shape:
            return np.empty(tensor.shape, element)
        size, count = element.itemsize, _extent(tensor)
        try:
            data = self._part(tensor.storage.key, tensor.offset * size, count * size)
        except (_Damaged, OSError, MemoryError) as error:
            raise self._refused(error).with_context(attempted=self._reading(name)) from None
        numbers = data != 0 if kind.dtype.kind == "b" else data.view(element)
        if size > 1 and self._order != ("<" if np.little_endian else ">"):
            swapped = np.ascontiguousarray(data.reshape(-1, size)[:, ::-1])
            numbers = swapped.view(element).reshape(-1)
        strides = [s * size if n > 1 else 0 for n, s in _axes(tensor)]
        view = np.lib.stride_tricks.as_strided(numbers, tensor.shape, strides)
        array = np.ascontiguousarray(view).reshape(tensor.shape)
        return np.negative(array) if tensor.negated else array

    def _reading(self, name: str) -> str:
        return f"reading {name!r:.120} of {self.file}"

    def _part(self, key: str, begin: int, nbytes: int) -> Array:
        """Read a part of a storage; verify the checksum of the storage at the first time."""
        entry = self._entries[key]
        with self._same.opened() as handle:
            data = _read(handle, entry.begin + begin, nbytes)
            if key not in self._verified:
                whole = nbytes == entry.nbytes
                crc = zlib.crc32(data.data) if whole else _crc(handle, entry)
                _check_sum(crc, entry, f"{self._folder}data/{key}")
                self._verified.add(key)
        return data

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def type_of(self, name: str) -> TensorType:
        """Return the shape and element type of a tensor without reading its data.

        Raises `UnsupportedError` if flow has no such element type, or no such kind of tensor.
        """
        return self._readable(name)[1]

    def _readable(self, name: str) -> tuple[StridedTensor, TensorType]:
        tensor = self._tensors[name]
        if isinstance(tensor, StridedTensor):
            found, kind = f"elements of type {tensor.element:.60}", _type(tensor)
            if kind is not None:
                return tensor, kind
        else:
            found = tensor.what
        allowed = f"tensors of {', '.join(_DTYPES)}"
        raise UnsupportedError(self._reading(name), found=found, allowed=allowed)


def read(path: Path) -> TorchWeights:
    """Open a file of ``torch.save``; may raise `CheckpointError`."""
    return TorchWeights(Path(path))


def _infos(handle: BufferedReader) -> dict[str, zipfile.ZipInfo]:
    """Return the directory of an archive."""
    try:
        with zipfile.ZipFile(handle) as archive:
            infos = archive.infolist()
    except Exception as error:  # the library raises errors of many classes for damaged archives
        raise _Damaged(f"{error!s:.120}") from error
    by_name = {info.filename: info for info in infos}
    if len(by_name) != len(infos):
        raise _Damaged("a zip file with two files of one name")
    return by_name


def _folder(infos: Iterable[str]) -> str:
    """Return the folder of the archive that contains all files."""
    pickles = [name for name in infos if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise _Damaged(f"a zip file with {len(pickles)} files data.pkl")
    return pickles[0].removesuffix("data.pkl")


def _read(handle: BufferedReader, begin: int, nbytes: int) -> Array:
    data = np.empty(nbytes, np.uint8)
    handle.seek(begin)
    filled = handle.readinto(data.data) if nbytes else 0
    if filled != nbytes:
        raise _Damaged(f"{filled} of {nbytes} bytes")
    return data


def _crc(handle: BufferedReader, entry: _Entry) -> int:
    crc = 0
    for begin in range(0, entry.nbytes, _BLOCK):
        block = _read(handle, entry.begin + begin, min(_BLOCK, entry.nbytes - begin))
        crc = zlib.crc32(block.data, crc)
    return crc


def _check_sum(crc: int, entry: _Entry, name: str) -> None:
    """Compare checksums; torch writes 0 if it was told not to compute them."""
    if entry.crc not in (0, crc):
        raise _Damaged(f"bytes of {name!r:.120} that differ from those saved: it is damaged")


def _type(tensor: StridedTensor) -> TensorType | None:
    return stored_type(tensor.shape, tensor.element) if tensor.element in _DTYPES else None


def _axes(tensor: StridedTensor) -> Iterator[tuple[int, int]]:
    return zip(tensor.shape, tensor.strides, strict=True)


def _extent(tensor: StridedTensor) -> int:
    """Return the number of elements from the tensor's first one to its last one."""
    return 1 + sum((n - 1) * stride for n, stride in _axes(tensor))


def _fits(tensor: StridedTensor, itemsize: int) -> bool:
    """Return whether the storage holds all elements."""
    end = (tensor.offset + _extent(tensor)) * itemsize
    return 0 in tensor.shape or end <= tensor.storage.nbytes


# ------------------------------------------------------------------------------------ names


def named_tensors(tree: object) -> dict[str, Tensor]:
    """Return the tensors in nested dicts, lists and tuples by name.

    If a dict has an entry for the weights, their names begin below it, and those of the other state
    of the training are left out.  Raises `PickleError` if two tensors have one name, or the tree is
    too deep or too large.
    """
    costs: dict[int, int] = {}
    if _cost(tree, costs, 0) > MOST_ENTRIES:
        raise PickleError(f"more than {MOST_ENTRIES} entries, as parts are shared")
    tensors: dict[str, Tensor] = {}
    text = 0
    for name, tensor in _roots(tree, costs):
        text += len(name) + 1
        if text > MOST_TEXT:
            raise PickleError(f"more than {MOST_TEXT} characters of names")
        if tensors.setdefault(name, tensor) != tensor:
            raise PickleError(f"two tensors with the name {name!r:.120}")
    return tensors


def _roots(tree: object, costs: dict[int, int]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a tree, which may have the weights in one of its entries."""
    entries = tree if type(tree) is Pairs else []
    parts = {key: value for key, value in entries if isinstance(key, str) and _weighs(value, costs)}
    wrapper = next((name for name in _WRAPPERS if type(parts.get(name)) is Pairs), None)
    if wrapper is None:
        yield from _flat(tree, "", costs)
        return
    for key, value in entries:
        if key == wrapper:
            yield from _flat(value, "", costs)
        elif not (isinstance(key, str) and _TRAINING.search(key)) and _weighs(value, costs):
            yield from _flat(value, _joined("", key), costs)


def _flat(tree: Any, prefix: str, costs: dict[int, int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        yield prefix, tree
        return
    for key, value in _entries(tree):
        if _weighs(value, costs):
            yield from _flat(value, _joined(prefix, key), costs)


def _weighs(value: object, costs: dict[int, int]) -> bool:
    """Return whether a value is a tensor, or a container of tensors."""
    return isinstance(value, Tensor) or costs.get(id(value), 0) > 0


def _joined(prefix: str, key: object) -> str:
    if not isinstance(key, str | int | float | None):
        raise PickleError("a tensor whose name is neither text nor a number")
    name = f"{prefix}.{key}" if prefix else str(key)
    if any("\ud800" <= c <= "\udfff" for c in name) if not name.isascii() else "\0" in name:
        raise PickleError(f"the name {name!a:.120} of a tensor")
    return name


def _entries(tree: object) -> Iterator[tuple[object, object]]:
    if type(tree) is Pairs:
        yield from tree
    elif type(tree) is list or type(tree) is tuple:
        yield from enumerate(tree)


def _cost(tree: object, costs: dict[int, int], level: int) -> int:
    """Return the number of entries that a walk over a tree visits; 0 if it has no tensors.

    A part that has several places is computed once, and counts at each place.
    """
    if isinstance(tree, Tensor):
        return 1
    if id(tree) in costs or type(tree) not in (Pairs, list, tuple):
        return costs.get(id(tree), 0)
    if level == MOST_LEVELS:
        raise PickleError(f"more than {MOST_LEVELS} levels of dicts, or a dict within itself")
    below, count = 0, 0
    for _, value in _entries(tree):
        count += 1
        below += _cost(value, costs, level + 1)
    costs[id(tree)] = cost = below + count if below else 0
    return cost
