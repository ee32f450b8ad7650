"""Synthetic data in the forms in which public programs expect their data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from fuzzing.tokens import write_tokens

from flow_data.namespace import OFRecordWriter


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def mnist(folder: Path, train: int = 2000, test: int = 2000) -> None:
    """Write ``mnist.npz``: digits are noise around ten random images."""
    rng = _rng()
    means = rng.uniform(0, 200, (10, 28, 28))

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 10, count)
        return (means[labels] + rng.uniform(0, 55, (count, 28, 28))).astype(np.uint8), labels

    (x, y), (x2, y2) = part(train), part(test)
    np.savez(folder / "mnist.npz", x_train=x, y_train=y, x_test=x2, y_test=y2)


def mnist_idx(folder: Path) -> None:
    """Write the four original files of MNIST with random images, in ``data/mnist``."""
    target = folder / "data" / "mnist"
    target.mkdir(parents=True, exist_ok=True)
    rng = _rng()
    for name, count in (("train", 60000), ("t10k", 10000)):
        images = rng.integers(0, 256, 16 + count * 784, dtype=np.uint8)
        images.tofile(target / f"{name}-images-idx3-ubyte")
        rng.integers(0, 10, 8 + count, dtype=np.uint8).tofile(target / f"{name}-labels-idx1-ubyte")


def facades(folder: Path) -> None:
    """Write twelve pairs of images per part of the data set of facades."""
    from PIL import Image

    for part in ("train", "val", "test"):
        target = folder / "data" / "facades" / part
        target.mkdir(parents=True, exist_ok=True)
        for i in range(12):
            pixels = _rng().integers(0, 256, (256, 512, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(target / f"{i}.jpg")


def tokens(folder: Path) -> None:
    """Write 50 sequences of tokens below 128, as Megatron-LM writes them."""
    rng = _rng()
    write_tokens(folder / "text", [rng.integers(0, 128, n) for n in rng.integers(5, 90, 50)])


def clicks(folder: Path) -> None:
    """Write OFRecords of clicks, in ``clicks``: those on a small number are clicks."""
    target = folder / "clicks"
    target.mkdir(exist_ok=True)
    rng = _rng()
    with OFRecordWriter(target / "part-0") as writer:
        for _ in range(256):
            wide, deep = rng.integers(0, 200, 2, np.int32), rng.integers(0, 200, 26, np.int32)
            writer.write(
                {
                    "labels": np.array([wide[0] < 100], np.int32),
                    "dense_fields": rng.uniform(0, 1, 13).astype(np.float32),
                    "wide_sparse_fields": wide,
                    "deep_sparse_fields": deep,
                }
            )


def boxes(folder: Path) -> None:
    """Write a list of four pictures with true boxes, and an empty library of oneflow_yolov3.

    The program asks for a library of compiled ops, which the plugin flow-yolo provides.
    """
    from PIL import Image

    rng, paths = _rng(), []
    for part in ("images", "labels"):
        (folder / "synthetic" / part).mkdir(parents=True, exist_ok=True)
    for i in range(4):
        path = folder / "synthetic" / "images" / f"{i}.jpg"
        Image.fromarray(rng.integers(0, 256, (120, 160, 3), dtype=np.uint8)).save(path)
        rows = [(rng.integers(0, 80), *rng.uniform(0.2, 0.6, 4)) for _ in range(3)]
        text = "\n".join(" ".join(f"{x:.4g}" for x in row) for row in rows)
        for part in ("labels", "images"):  # the programs look for them in one or the other
            (folder / "synthetic" / part / f"{i}.txt").write_text(text)
        paths.append(str(path.absolute()))
    (folder / "synthetic" / "train.txt").write_text("\n".join(paths))
    (folder / "oneflow_yolov3" / "liboneflow_yolov3.so").write_bytes(b"")


MAKERS: dict[str, Callable[[Path], None]] = {
    maker.__name__: maker for maker in (mnist, mnist_idx, facades, tokens, clicks, boxes)
}
