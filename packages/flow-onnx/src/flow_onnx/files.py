"""Write model files atomically."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import CheckpointError, UnsupportedError
from flow_onnx.options import Checker
from flow_onnx.types import element_type

Weights = Mapping[str, Any]
"""Arrays by name; some mappings read an array only when it is accessed."""

SMALLEST = 1024
"""Minimum size in bytes of a weight that goes to the external data file, as in OneFlow."""

LARGEST = 2**31 - 2**20
"""Maximum bytes of weights in one file: protobuf's limit of 2 GiB, minus 1 MiB for the nodes."""

PAGE = 4096
"""Alignment of external weights in bytes, so that the file can be mapped into memory."""


def tensor(name: str, array: Any) -> TensorProto:
    """Return an array as a tensor that is stored in the model itself."""
    found = _described(name, array)
    found.raw_data = _little(array).tobytes()
    return found


def _described(name: str, array: Any) -> TensorProto:
    kind = element_type(as_dtype(array.dtype))
    return TensorProto(name=name, data_type=kind, dims=array.shape)


def _little(array: Any) -> Any:
    """Return the array in C order and little-endian, as ONNX requires."""
    native = np.ascontiguousarray(array)
    return native if np.little_endian else native.byteswap()


def save(model: ModelProto, weights: Weights, path: str, external: bool, check: Checker) -> None:
    """Write a model with its weights.

    The files are first written under temporary names, so that an existing model stays complete
    until it is replaced. If there is an external data file, the old model is removed before the new
    files get their names, so that no model is ever beside the weights of another model.

    Args:
        model: the model, with weights as inputs.
        external: whether large weights are written to the file ``<path>.data``.
        check: provides the operation and the user's line for error messages.

    Raises:
        UnsupportedError: the model is too large for one file.
        CheckpointError: the file system fails.
    """
    if not external:
        _check_size(weights, path, check)
    with _file_errors(path, check), _folder(Path(path)) as folder:
        target = Path(path)
        data = target.name + ".data"
        _add_weights(model, weights, folder / data if external else None)
        (folder / target.name).write_bytes(model.SerializeToString())
        onnx.checker.check_model(str(folder / target.name))
        if (folder / data).exists():
            target.unlink(missing_ok=True)
            os.replace(folder / data, target.with_name(data))
        os.replace(folder / target.name, target)


def _check_size(weights: Weights, path: str, check: Checker) -> None:
    size = sum(array.nbytes for array in weights.values())
    if size > LARGEST:
        raise UnsupportedError(
            check.attempted,
            at=check.at,
            found=f"{size / 2**30:.1f} GiB of weights for {path}",
            allowed="less than 2 GiB in one file",
            hint="pass external_data=True to write the weights to a file beside the model",
        )


@contextmanager
def _file_errors(path: str, check: Checker) -> Iterator[None]:
    """Convert file-system errors to `CheckpointError`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"writing {path}", at=check.at, found=str(error)) from error


@contextmanager
def _folder(target: Path) -> Iterator[Path]:
    """Create a temporary folder beside the target for the duration of a ``with`` block."""
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _add_weights(model: ModelProto, weights: Weights, data: Path | None) -> None:
    """Replace each input of the model that declares a weight by the weight's array."""
    kept = [entry for entry in model.graph.input if entry.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    if data is None:
        model.graph.initializer.extend(tensor(name, a) for name, a in weights.items())
        return
    with open(data, "wb") as file:
        model.graph.initializer.extend(_external(n, a, file, data.name) for n, a in weights.items())
    if not data.stat().st_size:
        data.unlink()


def _external(name: str, array: Any, file: BinaryIO, location: str) -> TensorProto:
    """Write a weight to the external data file; small weights stay in the model."""
    if array.nbytes < SMALLEST:
        return tensor(name, array)
    file.seek(-file.tell() % PAGE, os.SEEK_CUR)
    found = _described(name, array)
    found.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": file.tell(), "length": array.nbytes}
    for key, value in entries.items():
        found.external_data.add(key=key, value=str(value))
    file.write(memoryview(_little(array).reshape(-1).view(np.uint8)))
    return found
