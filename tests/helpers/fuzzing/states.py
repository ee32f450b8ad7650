"""Checkpoints: OneFlow's layout, checkpoints in parts, and safetensors files."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.checkpoint import safetensors_format, snapshot
from flow_core.checkpoint.layout import DATA, DONE, META
from flow_dist.recovery import restart_files
from fuzzing.mutations import EXTREMES, TEXTS, mutate_bytes, mutate_document, mutate_json
from fuzzing.target import Target

_VARIABLES = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "dense/bias": np.arange(4, dtype=np.int64),
}


def read_all(variables: Mapping[str, Any]) -> None:
    """Read all variables of a checkpoint, and their types."""
    for name in variables:
        kind: Any = variables
        kind.type_of(name)
        np.asarray(variables[name]).sum()


# -------------------------------------------------------------------------------- OneFlow's layout


def _metas() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        snapshot.write(Path(folder), _VARIABLES)
        return [Path(folder, name, META).read_bytes() for name in _VARIABLES]


def _mutate_meta(data: bytes, rng: random.Random) -> bytes:
    """Changed bytes, or changed words of the text."""
    if rng.random() < 0.5:
        return mutate_bytes(data, rng)
    words = data.decode().split()
    for _ in range(rng.choice((1, 1, 2, 4))):
        word = rng.choice((*TEXTS, *map(str, EXTREMES), "-1", "{", "}", *words, "1" * 5000))
        words[rng.randrange(len(words))] = word
    return rng.choice(("\n", " ", "")).join(words).encode("utf-8", "surrogatepass")


def _open_meta(folder: Path) -> Callable[[bytes, int], object]:
    """Checkpoints as flow writes them, and with OneFlow's own files alone."""
    ours, plain = folder / "ours", folder / "plain"
    ours.mkdir()
    snapshot.write(ours, _VARIABLES)
    (ours / DONE).touch()
    for path in [path for path in ours.rglob("*") if path.name in (DATA, META, DONE)]:
        copy = plain / path.relative_to(ours)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    names = list(_VARIABLES)

    def read(data: bytes, number: int) -> None:
        root = plain if number & 2 else ours
        meta = root / names[number & 1] / META
        sound = meta.read_bytes()
        try:
            meta.write_bytes(data)
            read_all(snapshot.read(root))
        finally:
            meta.write_bytes(sound)

    return read


# --------------------------------------------------------------------------------------- in parts


def _write_parts(folder: Path) -> None:
    for rank, rows in enumerate(((0, 1), (1, 2))):
        pieces: list[Any] = [("a", (2, 3), (rows, (0, 3)), _VARIABLES["a"][slice(*rows)])]
        if not rank:
            bias = _VARIABLES["dense/bias"]
            pieces.append(("dense/bias", bias.shape, ((0, 4),), bias))
        restart_files.write_part(folder, 3, rank, 2, "job", pieces)
    (folder / DONE).touch()


def _lists() -> list[bytes]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "step")
        _write_parts(folder)
        return [restart_files.list_file(folder, rank).read_bytes() for rank in (0, 1)]


def _mutate_list(data: bytes, rng: random.Random) -> bytes:
    """A list with a sound checksum around a changed body, or changed bytes."""
    if rng.random() < 0.25:
        return mutate_document(data, rng)
    body = mutate_json(json.loads(data)["body"], rng)
    crc = zlib.crc32(body.encode("utf-8", "surrogatepass"))
    return json.dumps({"crc": crc, "body": body}).encode()


def _open_parts(folder: Path) -> Callable[[bytes, int], object]:
    where = folder / "step"
    _write_parts(where)
    lists = [restart_files.list_file(where, rank) for rank in (0, 1)]
    sound = [path.read_bytes() for path in lists]

    def read(data: bytes, number: int) -> None:
        for rank in (0, 1):
            lists[rank].write_bytes(data if rank == number % 2 else sound[rank])
        parts = restart_files.read(where)
        read_all(parts)
        parts.check()

    return read


# ------------------------------------------------------------------------------------ safetensors


def _safetensors() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        safetensors_format.write(Path(folder), _VARIABLES)
        return [ordered(Path(folder, safetensors_format.FILE).read_bytes())]


def ordered(data: bytes) -> bytes:
    """A file of safetensors with its metadata in order, which the library writes in any order."""
    size = 8 + int.from_bytes(data[:8], "little")
    head = json.dumps(json.loads(data[8:size]), sort_keys=True).encode()
    return len(head).to_bytes(8, "little") + head + data[size:]


def mutate_safetensors(data: bytes, rng: random.Random) -> bytes:
    """A header of JSON with changed values and the right length, or changed bytes."""
    if rng.random() < 0.4:
        return mutate_bytes(data, rng)
    size = int.from_bytes(data[:8], "little")
    head = mutate_json(data[8 : 8 + size].decode(), rng).encode("utf-8", "surrogatepass")
    length = len(head) if rng.random() < 0.9 else rng.choice(EXTREMES)
    return (length % (1 << 64)).to_bytes(8, "little") + head + data[8 + size :]


def _open_safetensors(folder: Path) -> Callable[[bytes, int], object]:
    path = folder / safetensors_format.FILE

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        read_all(safetensors_format.read(folder))

    return read


TARGETS = (
    Target("meta", _metas, _open_meta, _mutate_meta),
    Target("parts", _lists, _open_parts, _mutate_list),
    Target("safetensors", _safetensors, _open_safetensors, mutate_safetensors),
)
