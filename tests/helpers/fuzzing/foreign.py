"""Weights of other programs: files of torch, and sharded safetensors files with their index."""

from __future__ import annotations

import io
import json
import os
import random
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch_files
from torch_files import Raw, Saved, called, pickled, tensor

from flow_core.checkpoint import safetensors_format, safetensors_shards, torch_format
from fuzzing.mutations import EXTREMES, mutate_bytes, mutate_document
from fuzzing.states import mutate_safetensors, ordered, read_all
from fuzzing.target import Target

# ------------------------------------------------------------------------------------------- torch

_NUMBERS = np.arange(6, dtype=np.float32)
_STORAGES = {"0": _NUMBERS.tobytes(), "1": _NUMBERS[:4].astype(np.int64).tobytes()}
_MATRIX, _INTEGERS = tensor((2, 3), (3, 1)), tensor((4,), (1,), "LongStorage", key="1")
_PARAMETER = called("torch._utils", "_rebuild_parameter", _MATRIX, True, {})
_PARTS = (
    _MATRIX, _INTEGERS, _PARAMETER, tensor((4,), (1,), "storage.UntypedStorage", dtype="uint16"),
    tensor((3, 2), (0, 0)), called("torch._utils", "_rebuild_qtensor"), torch_files.HOOKS,
    pickled("w"), pickled(()), b"]", b"}", b")", b"N", b"(", b"t", b"e", b"u", b"s", b"a", b"0",
    b"1", b"b", b"R", b"Q", b"q\1", b"h\1", b"\x94", b"r\xff\xff\xff\x7f", b"\x85", b"\x93",
    b"\x8d" + b"\xff" * 8, b"X\xff\xff\xff\x7f", b"cos\nsystem\n", b"ctorch\nFloatStorage\n",
)  # fmt: skip
"""Opcodes that are inserted into pickles."""


def _files() -> list[bytes]:
    plain = {"w": _MATRIX, "layers": [_INTEGERS, (_PARAMETER,)]}
    training = {"epoch": 3, "state_dict": plain, "optimizer": {"state": {0: _MATRIX}}}
    negated = {"w": tensor((3,), (2,), count=6, metadata={"neg": True})}
    shared = Raw(b"}q\1(" + pickled("a") + _MATRIX + b"u0}(" + pickled("b") + b"h\1"
                 + pickled("c") + b"h\1u")  # fmt: skip
    saved = [Saved(tree, _STORAGES) for tree in (plain, training, negated, shared)]
    return [file.data() for file in (*saved, Saved(plain, _STORAGES, byte_order=b"big"))]


def _nested(rng: random.Random) -> Raw:
    """A tree that is too deep, or has more paths than parts."""
    levels = rng.choice((3, 30, 60, 99, 100, 1000, 20_000))
    leaf = rng.choice((_MATRIX, pickled(1)))
    if rng.random() < 0.4:
        return Raw(b"]" * levels + leaf + b"a" * levels)
    out = leaf + b"q\1"
    for _ in range(min(levels, 100)):
        out += b"0}(" + pickled(rng.choice("ab")) + b"h\1" + pickled("b") + b"h\1uq\1"
    return Raw(out)


def _mutate_pickle(data: bytes, rng: random.Random) -> bytes:
    """Changed numbers, inserted opcodes, changed bytes, or another tree."""
    action = rng.randrange(8)
    if action == 0:
        return mutate_bytes(data, rng)
    if action == 1:
        return b"\x80\x02}(" + pickled("w") + _nested(rng) + pickled("v") + _MATRIX + b"u."
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if action < 5:
            places = [i for i, byte in enumerate(made) if byte == ord("J")]
            number = rng.choice((*EXTREMES, 10**30, -1, -3, -(2**63), rng.randrange(64)))
            at = rng.choice(places) if places else 0
            made[at : at + 5] = pickled(number)
        else:
            at = rng.randrange(2, len(made) + 1)
            made[at:at] = rng.choice(_PARTS) * rng.choice((1, 1, 1, 2, 500))
    return bytes(made)


def _mutate_torch(data: bytes, rng: random.Random) -> bytes:
    """Changed bytes, changed fields of the archive, or a sound archive of changed files."""
    action = rng.random()
    if action < 0.2:
        return mutate_bytes(data, rng)
    if action < 0.35:
        name = rng.choice(("data.pkl", "byteorder", "data/0", "data/1", ""))
        field = rng.choice([*torch_files.FIELDS])
        limit = 1 << (16 if field in ("flags", "method") else 32)
        return torch_files.patched(data, name, **{field: rng.choice(EXTREMES) % limit})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name = "archive/data.pkl" if action < 0.9 else rng.choice([*files])
    change = _mutate_pickle if name.endswith(".pkl") else mutate_bytes
    made, method = io.BytesIO(), rng.choice((zipfile.ZIP_STORED,) * 9 + (zipfile.ZIP_DEFLATED,))
    with zipfile.ZipFile(made, "w", method) as archive:
        for file, content in files.items():
            archive.writestr(file, change(content, rng) if file == name else content)
    return made.getvalue()


def _open_torch(folder: Path) -> Callable[[bytes, int], object]:
    path = folder / "model.pt"

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        read_all(torch_format.read(path))

    return read


# ------------------------------------------------------------------------------------------ shards

_INDEX = "model.safetensors.index.json"
_SHARDS = {
    "model-1.safetensors": {"h.0.w": np.ones((2, 3), np.float32), "h.0.b": np.arange(3.0)},
    "model-2.safetensors": {"h.1.w": np.zeros((0, 4), np.int8)},
}


def _framed(parts: Sequence[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def _unframed(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        parts.append(data[at + 4 : end])
        at = end
    return parts


def _shards(folder: Path) -> list[bytes]:
    made: dict[str, bytes] = {}
    for name, arrays in _SHARDS.items():
        safetensors_format.write(folder, arrays)
        made[name] = ordered((folder / safetensors_format.FILE).read_bytes())
    places = {key: name for name, arrays in _SHARDS.items() for key in arrays}
    index = json.dumps({"metadata": {"total_size": 48}, "weight_map": places})
    return [index.encode(), *made.values()]


def _seeds_of_shards() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [_framed(_shards(Path(folder)))]


def _mutate_shards(data: bytes, rng: random.Random) -> bytes:
    """A changed index, sometimes with hostile names of files, or a changed file."""
    parts = _unframed(data)
    which = rng.choice((0, 0, 0, 1, 2))
    if which:
        parts[which] = mutate_safetensors(parts[which], rng)
    elif rng.random() < 0.3:
        names = ("../x", "/etc/passwd", "a\0b", "\ud800", "", ".", "..", _INDEX, "pipe", "a" * 5000)
        index = json.loads(parts[0])
        index["weight_map"][rng.choice([*index["weight_map"], "new"])] = rng.choice(names)
        parts[0] = json.dumps(index).encode()
    else:
        parts[0] = mutate_document(parts[0], rng)
    return _framed(parts)


def _open_shards(folder: Path) -> Callable[[bytes, int], object]:
    os.mkfifo(folder / "pipe")

    def read(data: bytes, number: int) -> None:
        for name, part in zip((_INDEX, *_SHARDS), _unframed(data), strict=True):
            (folder / name).write_bytes(part)
        read_all(safetensors_shards.read(folder))

    return read


TARGETS = (
    Target("torch", _files, _open_torch, _mutate_torch),
    Target("safetensors-shards", _seeds_of_shards, _open_shards, _mutate_shards),
)
