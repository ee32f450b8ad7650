"""Read untrusted archives of arrays (``.npz``)."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable
from math import prod
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from flow_core.base.formats.regular_files import open_regular
from flow_data.instances import Array

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compression methods that numpy writes; each expands a byte to at most about 1,000 bytes."""

_HEADERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


def read_archive(
    path: str | os.PathLike[str], names: Iterable[str] | None = None
) -> dict[str, Array]:
    """Read the arrays of an archive by name, without unpickling.

    A header alone never determines an allocation: the size that it states must match the stored
    bytes.

    Args:
        names: names of the arrays to read; None for all arrays.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is not a valid archive, or lacks an array.
    """
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = {
                    member.filename.removesuffix(".npy"): member for member in archive.infolist()
                }
                wanted = members if names is None else names
                return {name: _array(archive, members, name) for name in wanted}
        except Exception as error:  # zipfile and numpy raise many types
            raise ValueError(f"{type(error).__name__}: {ascii(str(error))[1:-1]}") from error


def _array(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str) -> Array:
    if name not in members:
        raise ValueError(f"no array {name!r}")
    member = members[name]
    if member.compress_type not in _METHODS:
        raise ValueError(f"array {name!r} compressed by method {member.compress_type}")
    with archive.open(member) as file:
        return _read(file, name)


def _read(file: IO[bytes], name: str) -> Array:
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"array {name!r} in version {version} of the format")
    shape, by_column, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError(f"array {name!r} of pickled objects")
    data = file.read()
    if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"array {name!r} of {dtype}{list(shape)} in {len(data)} bytes")
    flat = np.frombuffer(bytearray(data), dtype)
    return flat.reshape(shape[::-1]).transpose() if by_column else flat.reshape(shape)
