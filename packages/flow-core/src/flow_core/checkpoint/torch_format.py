"""Reader of weights that ``torch.save`` wrote: zip files with a pickle and a file per storage.

The pickle is interpreted with a fixed table of constructors, which build records of this module;
any other name in it is refused, so that a file cannot run code.  torch is not needed.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import CheckpointError
from flow_core.checkpoint.layout import MOST_AXES
from flow_core.checkpoint.origin import Array
from flow_core.ir.graph import TensorType

_STORAGES: Mapping[str, str] = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip

_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
"""Names under which training programs store the weights beside other state."""


@dataclass(frozen=True, slots=True)
class _Storage:
    element: str
    key: str
    count: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        storage: the storage that holds its elements.
        offset: index of its first element in the storage.
        shape: its shape.
        strides: its strides, in elements.
    """

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def fits(self) -> bool:
        """Whether the storage holds all elements."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        signs = all(n >= 0 for n in (self.offset, *self.shape, *self.strides))
        return signs and (0 in self.shape or self.offset + last < self.storage.count)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: object) -> StoredTensor:
    sizes = (offset, *shape, *strides)
    good = all(type(n) is int for n in sizes) and len(shape) == len(strides) <= MOST_AXES
    if not isinstance(storage, _Storage) or not good:
        raise pickle.UnpicklingError(f"a tensor with {shape!r:.40} and {strides!r:.40}")
    return StoredTensor(storage, offset, tuple(shape), tuple(strides))


def _parameter(data: object, *_: object) -> object:
    return data


_ALLOWED: Mapping[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): OrderedDict,
    **{("torch", name): element for name, element in _STORAGES.items()},
}


class _Unpickler(pickle.Unpickler):
    """An unpickler that knows the names in `_ALLOWED` only."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the record's constructor; raise `pickle.UnpicklingError` for other names."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"the object {module}.{name}") from None

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the record of a storage."""
        kind, element, key, _, count = pid
        if kind != "storage" or element not in _STORAGES.values():
            raise pickle.UnpicklingError(f"a storage {pid!r:.60}")
        return _Storage(element, str(key), int(count))


class TorchWeights(Mapping[str, Array]):
    """The tensors of a file; nested dicts are joined by dots.  Each is read on access.

    Raises:
        CheckpointError: the file is damaged, or contains anything but tensors, numbers and text.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        with self._opened() as archive:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise self._refused(f"a zip file with {len(pickles)} files data.pkl")
            self._folder = pickles[0].removesuffix("data.pkl")
            if archive.getinfo(pickles[0]).file_size > MOST_PICKLED:
                raise self._refused("more than 1 GiB of names")
            tree = self._unpickled(archive.read(pickles[0]))
        self._tensors = dict(_flat(_unwrapped(tree)))
        odd = [name for name, tensor in self._tensors.items() if not tensor.fits]
        if odd:
            raise self._refused(f"the tensor {odd[0]!r}, which is outside of its storage")

    def _opened(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.file)
        except (OSError, zipfile.BadZipFile) as error:
            hint = "a file of torch before 1.6 is converted by loading and saving it with torch"
            raise self._refused(str(error), hint) from error

    def _unpickled(self, data: bytes) -> Any:
        try:
            return _Unpickler(io.BytesIO(data)).load()
        except Exception as error:
            hint = "save the weights alone: torch.save(model.state_dict(), path)"
            raise self._refused(str(error), hint) from error

    def _refused(self, found: str, hint: str | None = None) -> CheckpointError:
        allowed = "tensors in dicts, as torch.save(model.state_dict(), path) writes them"
        return CheckpointError(f"reading {self.file}", found=found, allowed=allowed, hint=hint)

    def __getitem__(self, name: str) -> Array:
        tensor, kind = self._tensors[name], self.type_of(name)
        element = kind.dtype.numpy
        try:
            with self._opened() as archive:
                data = archive.read(f"{self._folder}data/{tensor.storage.key}")
        except (KeyError, OSError, zipfile.BadZipFile) as error:
            raise self._refused(f"{name!r}: {error}") from error
        if len(data) < tensor.storage.count * element.itemsize:
            raise self._refused(f"{len(data)} bytes of {name!r}")
        numbers = np.frombuffer(data, element, tensor.storage.count)
        if 0 in tensor.shape:
            return np.empty(tensor.shape, element)
        strides = [s * element.itemsize for s in tensor.strides]
        view = np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.shape, strides)
        return np.ascontiguousarray(view).reshape(tensor.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def type_of(self, name: str) -> TensorType:
        """Return the shape and element type of a tensor without reading its data."""
        tensor = self._tensors[name]
        return TensorType(tensor.shape, as_dtype(tensor.storage.element))


MOST_PICKLED = 1 << 30
"""Largest size of the pickle in bytes; it contains names and shapes only."""


def read(path: Path) -> TorchWeights:
    """Open a file of ``torch.save``; may raise `CheckpointError`."""
    return TorchWeights(Path(path))


def _unwrapped(tree: Any) -> Any:
    """Return the dict of the weights, which may be stored beside the state of the training."""
    for name in _WRAPPERS:
        if isinstance(tree, Mapping) and isinstance(tree.get(name), Mapping):
            return tree[name]
    return tree


def _flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, StoredTensor]]:
    if isinstance(tree, StoredTensor):
        yield prefix.removesuffix("."), tree
    elif isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from _flat(part, f"{prefix}{key}.")
