"""Load the MNIST handwritten digits as normalized images in batches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.errors import DataError
from flow_data.arrays import read_archive
from flow_data.download import check_digest, download

Array = np.ndarray[Any, np.dtype[Any]]
Split = tuple[Array, Array]

FILE = "mnist.npz"
_SIDE = 28
_PARTS = (("x_train", "y_train"), ("x_test", "y_test"))
_LAYOUTS: Mapping[str, tuple[int, ...]] = {"NCHW": (1, _SIDE, _SIDE), "NHWC": (_SIDE, _SIDE, 1)}
_WANTED = (
    f"an archive of x_train, x_test: uint8[n,{_SIDE},{_SIDE}] and y_train, y_test: uint8[n] "
    "(n is 60000 and 10000)"
)


class _DefaultHash(str):
    """The type of the default of ``hash_check``, which tells it apart from an equal string."""

    __slots__ = ()


_HASH = _DefaultHash("63d4344077849053dc3036b247fa012b2b381de53fd055a66b539dffd76cf08e")


def load_mnist(
    train_batch_size: int = 100,
    test_batch_size: int = 100,
    data_format: str = "NCHW",
    url: str = "https://oneflow-public.oss-cn-beijing.aliyuncs.com/datasets/mnist.npz",
    hash_check: str | None = _HASH,
    out_dir: str = ".",
) -> tuple[Split, Split]:
    """Load MNIST from ``mnist.npz`` in ``out_dir``; download the file if it is missing.

    An existing file must contain the arrays of MNIST, but may differ from the file at ``url``
    unless you pass a hash. No data is unpickled.

    Args:
        train_batch_size: number of images per training batch; a divisor of 60000.
        test_batch_size: number of images per test batch; a divisor of 10000.
        data_format: "NCHW" or "NHWC".
        url: the URL from which to download the file.
        hash_check: SHA-256 of the file. A download is always checked, and an existing file only if
            you pass the argument; None disables the check.
        out_dir: folder of the file.

    Returns:
        ``(train_images, train_labels), (test_images, test_labels)``: float32 images from 0 to 1
        of shape (batches, batch size, 1, 28, 28), or (..., 28, 28, 1) for NHWC, and int32 labels
        of shape (batches, batch size), in the order of the file.

    Raises:
        DataError: the file is missing and the download fails, the file is not MNIST, or a batch
            size or format is invalid.
    """
    shape = _image_shape(data_format)
    path = os.path.join(out_dir, FILE)
    _provide(Path(path), url, hash_check)
    arrays = _read(Path(path))
    _print(f"File {FILE} already exist, path: {path}")
    train, test = (
        _batches(arrays[x], arrays[y], size, shape)
        for (x, y), size in zip(_PARTS, (train_batch_size, test_batch_size), strict=True)
    )
    return train, test


def _print(text: str) -> None:
    print(text)  # noqa: T201 - OneFlow prints this line


def _image_shape(data_format: str) -> tuple[int, ...]:
    if data_format not in _LAYOUTS:
        raise DataError.at_caller(
            "load_mnist",
            found=f"data_format {data_format!r}",
            allowed=" or ".join(map(repr, _LAYOUTS)),
        )
    return _LAYOUTS[data_format]


def _provide(path: Path, url: str, hash_check: str | None) -> None:
    """Download the file if it is missing; otherwise, check its hash if the caller passed one."""
    if not path.is_file():
        _download(path, url, hash_check)
    elif hash_check and not isinstance(hash_check, _DefaultHash):
        check_digest(path, "sha256", hash_check, f"remove {path} to download it again")


def _download(path: Path, url: str, hash_check: str | None) -> None:
    def check(part: Path) -> None:
        if hash_check:
            check_digest(
                part, "sha256", hash_check, "pass the hash_check of the file behind this url"
            )
        _read(part)

    _print(f"downloading {FILE} from {url}")
    try:
        download(url, path, check)
    except DataError as error:
        raise DataError.at_caller(
            f"load_mnist: no {FILE} in {str(path.parent.absolute())!r}, and {error.attempted}",
            found=error.found,
            allowed=error.allowed,
            hint=f"copy {FILE} there: {_WANTED}, or pass its folder as out_dir",
        ) from error


def _read(path: Path) -> dict[str, Array]:
    """Return the four arrays of the file; raise `DataError` if these are not MNIST's arrays."""
    names = [name for part in _PARTS for name in part]
    try:
        arrays = read_archive(path, names)
    except (OSError, ValueError) as error:
        raise _not_mnist(path, str(error)) from error
    for images, labels in _PARTS:
        _check_arrays(path, images, arrays[images], labels, arrays[labels])
    return arrays


def _check_arrays(path: Path, x_name: str, x: Array, y_name: str, y: Array) -> None:
    if x.ndim != 3 or x.shape[1:] != (_SIDE, _SIDE) or x.dtype != np.uint8 or not len(x):
        raise _not_mnist(path, f"{x_name}: {x.dtype}{list(x.shape)}")
    if y.shape != x.shape[:1] or y.dtype.kind not in "iu":
        raise _not_mnist(path, f"{y_name}: {y.dtype}{list(y.shape)} beside {len(x)} images")


def _not_mnist(path: Path, found: str) -> DataError:
    return DataError(
        f"reading {path}", found=found, allowed=_WANTED, hint=f"remove {path} to download it again"
    )


def _batches(images: Array, labels: Array, size: int, shape: tuple[int, ...]) -> Split:
    count = len(images)
    if not isinstance(size, int | np.integer) or size <= 0 or count % size:
        raise DataError.at_caller(
            "load_mnist",
            found=f"batch size {size!r} for {count} images",
            allowed=f"a divisor of {count}",
        )
    scaled = images.astype(np.float32)
    scaled /= np.float32(255)
    return scaled.reshape(-1, size, *shape), labels.astype(np.int32).reshape(-1, size)
