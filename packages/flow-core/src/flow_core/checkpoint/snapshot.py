"""OneFlow's own layout: a folder per variable, raw data in ``out``, shape and type in ``meta``.

Older versions of OneFlow wrote ``out`` alone; such variables are read with the shape and element
type that the caller wants.  Slashes in names are nested folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.checkpoint.layout import (
    DATA,
    DONE,
    META,
    check_names,
    meta_text,
    parse_meta,
    path_parts,
)
from flow_core.dtypes import DType, as_asked, as_dtype
from flow_core.errors import CheckpointError, InferenceError
from flow_core.ir import TensorType
from flow_core.shapes import Shape

Array = np.ndarray[Any, np.dtype[Any]]


class StoredVariable:
    """A variable in a folder of its own; its data stay on disk until `numpy` is called.

    Attributes:
        folder: where its files are.
        type: shape and element type, None for the older layout without ``meta``.
    """

    __slots__ = ("folder", "type")

    def __init__(self, folder: Path, wanted: TensorType | None = None) -> None:
        self.folder = folder
        meta = folder / META
        self.type = parse_meta(meta.read_text(), meta) if meta.is_file() else wanted

    @property
    def file_path(self) -> str:
        """The file with the raw data."""
        return str(self.folder / DATA)

    @property
    def has_meta_info(self) -> bool:
        """Whether shape and element type are known."""
        return self.type is not None

    @property
    def shape(self) -> Shape:
        """Shape; raises `CheckpointError` when it is not known."""
        return self._known().shape

    @property
    def dtype(self) -> DType:
        """Element type; raises `CheckpointError` when it is not known."""
        return self._known().dtype

    def _known(self) -> TensorType:
        if self.type is None:
            raise CheckpointError(
                f"reading {self.file_path}",
                found="no file 'meta' beside it, as older versions wrote it",
                hint="load it into a variable, whose shape and element type are then used",
            )
        return self.type

    def typed(self, wanted: TensorType) -> StoredVariable:
        """The same variable with a shape and element type, should it have none of its own."""
        return self if self.has_meta_info else StoredVariable(self.folder, wanted)

    def numpy(self) -> Array:
        """The data, mapped from the file; what you write into the array stays in memory.

        Raises:
            CheckpointError: the file has another size than shape and element type say.
        """
        kind = self._known()
        self.check_size()
        if kind.nbytes == 0:  # an empty file cannot be mapped
            return np.empty(kind.shape, kind.dtype.numpy)
        raw = np.memmap(self.file_path, np.uint8, "c")
        return raw.view(np.ndarray).view(kind.dtype.numpy).reshape(kind.shape)

    def check_size(self) -> None:
        """Raises `CheckpointError` when the file has another size than its type says."""
        kind, size = self._known(), os.path.getsize(self.file_path)
        if size != kind.nbytes:
            raise CheckpointError(
                f"reading {self.file_path}",
                found=f"{size} bytes",
                allowed=f"{kind.nbytes} for {kind}",
            )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The data for numpy; see `numpy`."""
        found: Array = as_asked(self.numpy(), dtype, copy)
        return found

    def __repr__(self) -> str:
        return f"StoredVariable({str(self.folder)!r}, {self.type or 'no meta'})"


class Snapshot(Mapping[str, Array]):
    """The variables of a checkpoint folder; each is read when it is asked for.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write(folder, {"dense-bias": np.arange(3, dtype=np.float32)})
    >>> read(folder)["dense-bias"].tolist()
    [0.0, 1.0, 2.0]
    """

    def __init__(self, variables: Mapping[str, StoredVariable]) -> None:
        self.variables = variables

    def __getitem__(self, name: str) -> Array:
        return self.variables[name].numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def __contains__(self, name: object) -> bool:
        return name in self.variables  # the inherited one would read the variable

    def type_of(self, name: str) -> TensorType | None:
        """Shape and element type of a variable without reading it; None when not known."""
        return self.variables[name].type

    def typed(self, wanted: Mapping[str, TensorType]) -> Snapshot:
        """The same, with shapes and element types for variables that have none of their own."""
        return Snapshot(
            {n: v.typed(wanted[n]) if n in wanted else v for n, v in self.variables.items()}
        )


def can_open(path: Path) -> bool:
    """Whether a folder has variables in this layout, or is a finished save without any."""
    path = Path(path)
    if not path.is_dir():
        return False
    return any(True for _ in _variable_folders(path)) or os.listdir(path) == [DONE]


def read(path: Path) -> Snapshot:
    """Opens a checkpoint folder; data are read on access.  Raises `CheckpointError`."""
    root = Path(path)
    folders = {folder.relative_to(root).as_posix(): folder for folder in _variable_folders(root)}
    return Snapshot({name: StoredVariable(folders[name]) for name in sorted(folders)})


def _variable_folders(root: Path) -> Iterator[Path]:
    """All folders below ``root`` with a data file; links are followed, but never in a circle."""
    seen: set[str] = set()
    for folder, subfolders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        if DATA in files and Path(folder) != root:
            yield Path(folder)


def write(path: Path, variables: Mapping[str, Array]) -> None:
    """Writes variables into an empty folder and syncs them to disk.

    Raises:
        CheckpointError: a name or an element type that the layout does not have.
    """
    check_names(variables)
    for name, value in variables.items():
        _write_variable(Path(path).joinpath(*path_parts(name)), name, value)


def _write_variable(folder: Path, name: str, value: Array) -> None:
    kind = variable_type(name, value)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / DATA).exists():
        raise CheckpointError(
            f"saving variable {name!r}",
            found=f"another variable in {str(folder)!r}",
            hint="this file system does not tell upper from lower case: rename one of them",
        )
    data = np.ascontiguousarray(value, kind.dtype.numpy).reshape(-1).view(np.uint8)
    (folder / DATA).write_bytes(data.data)
    (folder / META).write_text(meta_text(kind))


def variable_type(name: str, value: Array) -> TensorType:
    """Shape and element type of an array; raises `CheckpointError` when flow has no such type."""
    try:
        dtype = as_dtype(value.dtype)
    except InferenceError as error:
        raise CheckpointError(
            f"saving variable {name!r}",
            found=f"elements of type {value.dtype}",
            allowed=error.allowed,
        ) from None
    return TensorType(tuple(value.shape), dtype)
