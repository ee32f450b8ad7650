"""Files of tokens, as Megatron-LM writes them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flow_data.loading.tokens import TokenSource
from fuzzing.mutations import EXTREMES, mutate_bytes
from fuzzing.target import Target

CODES = {"u1": 1, "i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<u2": 8}
LENGTHS = (5, 1, 7, 0, 3, 9)


def index(lengths: Sequence[int], dtype: str = "<u2") -> bytes:
    """The index of sequences of these lengths, each of which is a document."""
    counts = np.array(lengths, "<i4")
    starts = (np.cumsum(counts, dtype="<i8") - counts) * np.dtype(dtype).itemsize
    head = struct.pack("<9sQBQQ", b"MMIDIDX", 1, CODES[dtype], len(counts), len(counts) + 1)
    boundaries = np.arange(len(counts) + 1, dtype="<i8")
    return head + counts.tobytes() + starts.tobytes() + boundaries.tobytes()


def write_tokens(prefix: Path, sequences: Sequence[Any], dtype: str = "<u2") -> str:
    """Write the two files of a data set, and return their common prefix."""
    content = np.concatenate(sequences).astype(dtype)
    Path(f"{prefix}.bin").write_bytes(content.tobytes())
    Path(f"{prefix}.idx").write_bytes(index([len(s) for s in sequences], dtype))
    return str(prefix)


def _open(folder: Path) -> Callable[[bytes, int], object]:
    attrs = {
        "data_file_prefix": str(folder / "tokens"), "seq_length": 4, "num_samples": 14,
        "batch_size": 2, "split_sizes": (8, 1), "split_index": 0, "region": None,
    }  # fmt: skip

    def read(data: bytes, number: int) -> None:
        size = 4 if data[17:18] == b"\4" else 2
        (folder / "tokens.bin").write_bytes(bytes(range(sum(LENGTHS) * size)))
        (folder / "tokens.idx").write_bytes(data)
        source = TokenSource({**attrs, "shuffle": number % 2 == 1, "random_seed": number}, 0, 2)
        out = np.empty((2, 5), np.int32)
        for step in range(7):
            for row, ref in enumerate(source.refs(step)):
                source.origin(ref)
                source.read(ref, row, [out])

    return read


def _mutate(data: bytes, rng: random.Random) -> bytes:
    """Change a number of the header or of an array to an extreme one, any bytes, or all lengths."""
    kind = rng.random()
    if kind < 0.4:
        return mutate_bytes(data, rng)
    if kind < 0.6:
        ends = sorted(rng.choices(range(sum(LENGTHS) + 1), k=rng.randrange(9)))
        lengths = np.diff([0, *ends, sum(LENGTHS)])
        return index(lengths, "<i4" if data[17] == CODES["<i4"] else "<u2")
    start, size = rng.choice(((9, 8), (17, 1), (18, 8), (26, 8), (34, 4), (58, 8), (106, 8)))
    start += size * rng.randrange(6) if start >= 34 else 0
    value = rng.choice(EXTREMES) % (1 << 8 * size)
    return data[:start] + value.to_bytes(size, "little") + data[start + size :]


TARGETS = (Target("megatron", lambda: [index(LENGTHS), index(LENGTHS, "<i4")], _open, _mutate),)
