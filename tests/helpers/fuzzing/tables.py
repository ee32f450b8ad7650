"""Annotations of COCO data sets, archives of arrays, and tables of numbers."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.errors import DataError
from flow_data.cli.convert import open_samples
from flow_data.codec import encode_jpeg
from flow_data.datasets import csv, mnist, text
from flow_data.instances import RowError
from flow_data.loading.coco import CocoSource
from flow_data.mnist import load_mnist
from fuzzing.mutations import EXTREMES, mutate_bytes, mutate_document
from fuzzing.target import Target


def _coco() -> list[bytes]:
    images = [
        {"id": 100 + i, "file_name": f"{i}.jpg", "height": 20 + i % 2 * 10, "width": 30 - i}
        for i in range(4)
    ]
    things = [
        {"id": i, "image_id": 100 + i % 4, "category_id": 7, "bbox": [1, 1, 5, 6], "iscrowd": 0,
         "segmentation": [[1, 1, 5, 1, 5, 6, 1, 6]], "keypoints": [1, 2, 2] * 12}
        for i in range(6)
    ]  # fmt: skip
    content = {"images": images, "annotations": things, "categories": [{"id": 3}, {"id": 7}]}
    return [json.dumps(content).encode()]


def _open_coco(folder: Path) -> Callable[[bytes, int], object]:
    for number in range(4):
        pixels = np.full((20 + number % 2 * 10, 30 - number, 3), number, np.uint8)
        (folder / f"{number}.jpg").write_bytes(encode_jpeg(pixels))
    path = folder / "annotations.json"
    attrs = {
        "annotation_file": str(path), "image_dir": str(folder), "batch_size": 2, "shards": 1,
        "shuffle_after_epoch": True, "random_seed": 0, "group_by_ratio": True, "region": None,
        "remove_images_without_annotations": True, "stride_partition": True, "on_error": "skip",
    }  # fmt: skip

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        source = CocoSource(attrs, 2)
        outputs = [np.empty(2, object), np.empty(2, np.int64), np.empty((2, 2), np.int32)]
        outputs += [np.empty(2, object) for _ in range(4)]
        for ref in [ref for step in range(2) for ref in source.refs(step)]:
            try:
                source.read(ref, 1, outputs)
            except RowError as error:
                str(error).encode()
            except DataError as error:
                raise AssertionError(f"{error!r} while a picture is read") from error

    return read


# ------------------------------------------------------------------------------------------- npz


def _arrays() -> dict[str, Any]:
    images = np.arange(3 * 28 * 28, dtype=np.uint16).astype(np.uint8).reshape(3, 28, 28)
    labels = np.arange(3, dtype=np.uint8)
    return {"x_train": images, "x_test": images, "y_train": labels, "y_test": labels}


def _archives() -> list[bytes]:
    found = []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, **_arrays())
        found.append(file.getvalue())
    return found


_HEADERS = (
    "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 28, 28), }",
    "{'descr': '|u1', 'fortran_order': True, 'shape': (%d, 28, 28), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (%d, %d), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': [('a', '<i4', %d)], 'fortran_order': False, 'shape': (%d,), }",
    "{'descr': '|S%d', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '|V0', 'fortran_order': False, 'shape': (%d,), }",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (-%d, 28), }",
    "{'descr': '|u1', 'shape': (3,), }",
    "[%d]",
)


def _npy(rng: random.Random) -> bytes:
    """An array with another header, mutated or with extreme sizes."""
    text = rng.choice(_HEADERS)
    text = text % tuple(rng.choice(EXTREMES) for _ in range(text.count("%d")))
    head = text.encode() + b" " * (-(len(text) + 11) % 64) + b"\n"
    if rng.random() < 0.4:
        head = mutate_bytes(head, rng)
    size = len(head) if rng.random() < 0.9 else rng.choice(EXTREMES)
    return b"\x93NUMPY\x01\0" + (size % 65536).to_bytes(2, "little") + head + bytes(3 * 28 * 28)


def _mutate_archive(data: bytes, rng: random.Random) -> bytes:
    """Changed bytes, or an archive with sound checksums around a changed member."""
    if rng.random() < 0.5:
        return mutate_bytes(data, rng)
    file = io.BytesIO()
    wrong = rng.choice(("x_train", "x_test", "y_train", "y_test"))
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, array in _arrays().items():
            plain = io.BytesIO()
            np.save(plain, array)
            bad = _npy(rng) if rng.random() < 0.7 else mutate_bytes(plain.getvalue(), rng)
            archive.writestr(f"{name}.npy", bad if name == wrong else plain.getvalue())
    made = file.getvalue()
    return mutate_bytes(made, rng) if rng.random() < 0.2 else made


def _open_archive(folder: Path) -> Callable[[bytes, int], object]:
    path = folder / "mnist.npz"

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        if number % 2:
            load_mnist(1, 1, out_dir=str(folder), url="http://127.0.0.1:9/")
            return
        samples = open_samples(str(path))
        for row in (0, len(samples) - 1):
            samples.fields(row)

    return read


# ------------------------------------------------------------------------------------------- csv

_CSV = b'name,count,"share, all"\na,1,0.5\n"b ""c""",2,1e3\nd,-3,nan\n'


def _open_csv(folder: Path) -> Callable[[bytes, int], object]:
    path = folder / "table.csv"

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        samples = open_samples(str(path))
        for row in range(min(len(samples), 5)):
            samples.fields(row)

    return read


_NUMBERS = b"count,share,kind\n1,0.5,a\n2,1e3,b\n-3,nan,a\n"


def _open_table(folder: Path) -> Callable[[bytes, int], object]:
    path = folder / "table.csv"

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        csv(path, (-1, "kind")[number % 2])

    return read


# ------------------------------------------------------------------------------------------ text


def _open_text(folder: Path) -> Callable[[bytes, int], object]:
    path = folder / "words.txt"

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        found = text(path)
        assert len(found.decode(found.tokens)) == len(found.tokens)

    return read


# --------------------------------------------------------------------------------- images of MNIST

_IMAGES = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28)) + bytes(2 * 784)
_LABELS = b"\0\0\x08\x01\0\0\0\x02\x07\x03"


def _open_idx(folder: Path) -> Callable[[bytes, int], object]:
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(_IMAGES)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(_LABELS)

    def read(data: bytes, number: int) -> None:
        (folder / "train-images-idx3-ubyte").write_bytes(data)
        mnist(folder)

    return read


TARGETS = (
    Target("coco", _coco, _open_coco, mutate_document, weight=1.5),
    Target("npz", _archives, _open_archive, _mutate_archive),
    Target("csv", lambda: [_CSV], _open_csv, weight=0.5),
    Target("csv-table", lambda: [_NUMBERS], _open_table, weight=0.5),
    Target("text", lambda: ["na\u00efve words\n".encode()], _open_text, weight=0.5),
    Target("idx", lambda: [_IMAGES], _open_idx, weight=0.5),
)
