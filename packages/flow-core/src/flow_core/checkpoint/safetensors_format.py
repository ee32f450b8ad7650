"""The safetensors format: all variables in one file ``model.safetensors``.

Needs the package ``safetensors`` (``flow-core[safetensors]``), which is imported on use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes  # noqa: F401 - makes "bfloat16" known to numpy, which safetensors asks for it
import numpy as np

from flow_core.checkpoint.snapshot import Array, variable_type
from flow_core.dtypes import BY_NAME
from flow_core.errors import CheckpointError
from flow_core.ir import TensorType

FILE = "model.safetensors"

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


def _library(attempted: str) -> ModuleType:
    try:
        return import_module("safetensors")
    except ModuleNotFoundError as error:
        if error.name != "safetensors":
            raise
        raise CheckpointError(
            attempted,
            found="the package safetensors is not installed",
            hint="uv add 'flow-core[safetensors]'",
        ) from None


def _file(path: Path) -> Path:
    return path / FILE if path.is_dir() else path


def can_open(path: Path) -> bool:
    """Whether this is a folder with ``model.safetensors`` or a ``.safetensors`` file."""
    file = _file(Path(path))
    return file.suffix == ".safetensors" and file.is_file()


class SafeTensors(Mapping[str, Array]):
    """The variables of a safetensors file; each is read when it is asked for."""

    def __init__(self, file: Path) -> None:
        self.file = file
        library = _library(f"reading {file}")
        try:
            self._open = library.safe_open(file, framework="numpy")
        except (library.SafetensorError, OSError) as error:
            raise CheckpointError(f"reading {file}", found=str(error)) from error
        self._names = dict.fromkeys(sorted(self._open.keys()))

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        self.type_of(name)  # refuses element types that flow does not have
        return np.asarray(self._open.get_tensor(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names  # the inherited one would read the variable

    def type_of(self, name: str) -> TensorType:
        """Shape and element type of a variable without reading it."""
        part: Any = self._open.get_slice(name)
        dtype = _DTYPES.get(part.get_dtype())
        if dtype is None:
            raise CheckpointError(
                f"reading {name!r} of {self.file}",
                found=f"elements of type {part.get_dtype()}",
                allowed=", ".join(_DTYPES),
            )
        return TensorType(tuple(part.get_shape()), BY_NAME[dtype])


def read(path: Path) -> SafeTensors:
    """Opens a safetensors file or the folder around it.  Raises `CheckpointError`."""
    return SafeTensors(_file(Path(path)))


def write(path: Path, variables: Mapping[str, Array]) -> None:
    """Writes ``model.safetensors`` into a folder.  Raises `CheckpointError`."""
    _library(f"saving {path}")
    save_file = import_module("safetensors.numpy").save_file
    arrays = {
        name: np.asarray(value, variable_type(name, value).dtype.numpy, order="C")
        for name, value in variables.items()
    }
    save_file(arrays, str(Path(path) / FILE))
