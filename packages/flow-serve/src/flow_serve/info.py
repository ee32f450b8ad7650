"""What is known about a model: the names, element types and shapes of its inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.dtypes import bfloat16
from flow_core.base.errors import ConfigError

NAMES: dict[str, str] = {
    "bool": "BOOL",
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
}
"""The protocol's names of element types by those of numpy."""
TYPES = {name: dtype for dtype, name in NAMES.items()}

OPEN = -1
"""The first size of tensors whose number of rows is that of the request."""
_NAME = re.compile(r"\w[\w.+-]{0,127}", re.ASCII)
_VERSION = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
FILES = {"saved_model.json": "flow_saved_model", "model.onnx": "onnx_flow"}
"""The file that a version of a model has, and the platform that the protocol reports for it."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output; its first size may be `OPEN`."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type as numpy has it."""
        name = TYPES[self.datatype]
        return bfloat16.numpy if name == "bfloat16" else np.dtype(name)

    def sized(self, rows: int) -> tuple[int, ...]:
        """Return the shape for a number of rows."""
        return (rows, *self.shape[1:]) if self.shape[:1] == (OPEN,) else self.shape

    def nbytes(self, rows: int) -> int:
        """Return the bytes for a number of rows."""
        return prod(self.sized(rows)) * self.dtype.itemsize

    @property
    def metadata(self) -> dict[str, object]:
        """The tensor in the protocol's metadata."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A version of a model."""

    name: str  # in the protocol's paths
    version: str
    platform: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    rows: int  # largest number of rows of a request; 0 if shapes are fixed
    combines: bool  # whether rows of several requests may form a batch
    note: str = ""  # why rows are not combined; "" if they are

    def to_json(self) -> dict[str, Any]:
        """Return a form that JSON has."""
        return asdict(self)

    @staticmethod
    def of(found: Mapping[str, Any]) -> ModelInfo:
        """Return the record of a form that `to_json` returned."""

        def tensors(given: Sequence[Mapping[str, Any]]) -> tuple[TensorInfo, ...]:
            return tuple(TensorInfo(t["name"], t["datatype"], tuple(t["shape"])) for t in given)

        parts = {"inputs": tensors(found["inputs"]), "outputs": tensors(found["outputs"])}
        return ModelInfo(**{**found, **parts})


@dataclass(frozen=True, slots=True)
class Source:
    """The files of a version of a model."""

    name: str  # of the model
    version: str  # its number, as text
    folder: str
    platform: str  # what the files are; see `FILES`


def find_models(folder: Path, versions: int) -> tuple[Source, ...]:
    """Return the latest versions of the models in a folder, or of the one model that it is.

    Args:
        folder: has a folder per model, or a folder per version of one model.

    Raises: ConfigError: there is no model, or a model has a name that clients cannot request.
    """
    attempted = f"looking for models in {folder}"
    try:
        own = _versions(folder.resolve().name, folder)
        parts = [p for p in sorted(folder.iterdir()) if p.is_dir() and not p.name.startswith(".")]
        found = {own[0].name: own} if own else {p.name: _versions(p.name, p) for p in parts}
    except OSError as error:
        raise ConfigError(attempted, found=str(error), allowed="a folder of models") from error
    found = {name: each for name, each in found.items() if each}
    wrong = [name for name in found if not _NAME.fullmatch(name)]
    if wrong or not found:
        raise ConfigError(
            attempted,
            found=f"the model name {wrong[0]!a}" if wrong else "no model",
            allowed="MODEL/VERSION/saved_model.json as flow.saved_model.ModelBuilder writes it, or "
            "MODEL/VERSION/model.onnx; names of letters, digits and ._+-; numbers as versions",
        )
    return tuple(source for name in found for source in found[name][:versions])


def _versions(name: str, folder: Path) -> list[Source]:
    """Return the versions of a model, the latest first."""
    numbers = sorted((p for p in folder.iterdir() if _VERSION.fullmatch(p.name)), key=_number)
    return [
        Source(name, path.name, str(path), platform)
        for path in reversed(numbers)
        for platform in [next((FILES[f] for f in FILES if (path / f).is_file()), "")]
        if platform
    ]


def _number(path: Path) -> int:
    return int(path.name)
