"""Reader of weights in several safetensors files, which an index lists."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from flow_core.base.errors import CheckpointError
from flow_core.base.formats.regular_files import read_regular
from flow_core.checkpoint.origin import Array
from flow_core.checkpoint.safetensors_format import SafeTensors, unique
from flow_core.ir.graph import TensorType

SUFFIX = ".safetensors.index.json"
LONGEST_INDEX = 1 << 26
"""Largest size of an index in bytes; the index is read as a whole."""


def _index(path: Path) -> Path | None:
    """Return the index that a path names: the index itself, or a folder with one index."""
    if path.is_dir():
        indexes = sorted(path.glob(f"*{SUFFIX}"))
        return indexes[0] if len(indexes) == 1 else None
    return path if path.name.endswith(SUFFIX) and path.is_file() else None


def can_open(path: Path) -> bool:
    """Return whether a path is an index of safetensors files, or a folder with one."""
    return _index(Path(path)) is not None


class Shards(Mapping[str, Array]):
    """The tensors of several files; a tensor is read on access.

    Raises `CheckpointError` if the index or a file is damaged, or they do not agree.
    """

    def __init__(self, index: Path) -> None:
        places = _places(index)
        self._files = {name: SafeTensors(index.parent / name) for name in {*places.values()}}
        self._places = {name: self._files[place] for name, place in places.items()}
        listed = set(places.items())
        odd = listed.symmetric_difference(
            (name, place) for place, file in self._files.items() for name in file
        )
        if odd:
            name, place = min(odd)
            where = "the index" if (name, place) in listed else "the file"
            raise _corrupt(index, f"{name!r} of {place!r} in {where} only")

    def __getitem__(self, name: str) -> Array:
        return self._places[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def type_of(self, name: str) -> TensorType:
        """Return the shape and element type of a tensor without reading its data."""
        return self._places[name].type_of(name)


def _places(index: Path) -> dict[str, str]:
    """Return the file of each tensor; only files beside the index are accepted."""
    try:
        places = json.loads(read_regular(index, LONGEST_INDEX), object_pairs_hook=unique)[
            "weight_map"
        ]
        good = all(isinstance(text, str) for pair in places.items() for text in pair)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _corrupt(index, f"an invalid index: {error!s:.200}") from None
    if not good or any(Path(name).name != name for name in places.values()):
        raise _corrupt(index, "names of files in other folders")
    files: dict[str, str] = places
    return files


def _corrupt(index: Path, found: str) -> CheckpointError:
    allowed = 'a JSON object with "weight_map", the file of each tensor'
    return CheckpointError(f"reading {index}", found=found, allowed=allowed)


def read(path: Path) -> Shards:
    """Open an index, given by its path or its folder; may raise `CheckpointError`."""
    index = _index(Path(path))
    return Shards(Path(path) if index is None else index)
