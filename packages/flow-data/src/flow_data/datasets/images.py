"""Images of digits, clothes and things: `digits`, `mnist`, `fashion_mnist` and `cifar10`."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.errors import DataError
from flow_data.arrays import read_archive
from flow_data.datasets.files import DataSet, Examples, Files, check_format, located, scaled
from flow_data.download import digest_of
from flow_data.instances import Array

Folder = str | os.PathLike[str] | None

DIGITS = tuple("0123456789")
CLOTHES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
)  # fmt: skip
THINGS = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

_IDX = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip


def _idx(url: str, layout: str, *md5: str) -> tuple[Files, Files]:
    """Return the compressed files, whose digests are published, and the unpacked ones."""
    layouts = (f"{layout}/raw", layout, "")
    packed = {f"{name}.gz": f"md5:{digest}" for name, digest in zip(_IDX, md5, strict=True)}
    return Files(packed, layouts, url), Files(dict.fromkeys(_IDX, ""), layouts)


MNIST = _idx(
    "https://ossci-datasets.s3.amazonaws.com/mnist/", "MNIST",
    "f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c",
)  # fmt: skip
ARCHIVE = Files({"mnist.npz": ""}, ("", "MNIST"))
"""The file of Keras and of OneFlow; these differ in their compression alone."""
FASHION = _idx(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", "FashionMNIST",
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310",
)  # fmt: skip
CIFAR_PARTS = {
    "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
    "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
    "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "md5:40351d587109b95175f43aff81a1287e",
}
_CIFAR = "cifar-10-batches-py"
CIFAR = (
    Files(CIFAR_PARTS, (_CIFAR, "")),
    Files(
        {"cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a"},
        url="https://www.cs.toronto.edu/~kriz/",
    ),
)


def digits(data_format: str = "NCHW") -> DataSet:
    """Return the 1,797 images of 8 x 8 pixels of scikit-learn; the last 360 are for tests.

    Args:
        data_format: "NCHW" or "NHWC".

    Returns:
        Images of float32 from 0 to 1 and labels of int32, in the order of the files.

    Raises:
        DataError: scikit-learn is not installed.

    >>> train, test, classes = digits()  # doctest: +SKIP
    >>> train, test.labels[:3]  # doctest: +SKIP
    (1437 x float32[1, 8, 8], array([2, 3, 4], dtype=int32))
    """
    import gzip
    from importlib.util import find_spec

    what, spec = "flow.data.datasets.digits", find_spec("sklearn")
    check_format(data_format, what)
    if spec is None or not spec.submodule_search_locations:
        hint = "uv pip install scikit-learn"
        raise DataError.at_caller(what, found="no package scikit-learn", hint=hint)
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    try:
        with gzip.open(path, "rt") as file:
            table = np.loadtxt(file, delimiter=",", max_rows=10_000)
    except (OSError, ValueError) as error:
        raise DataError.at_caller(f"reading {path}", found=str(error)) from error
    images = scaled(table[:, :64].reshape(-1, 1, 8, 8) * (255 / 16), data_format, what)
    whole = Examples(images, table[:, 64].astype(np.int32))
    train, test = (Examples(*(x[part] for x in whole)) for part in (slice(1437), slice(1437, None)))
    return DataSet(train, test, DIGITS)


def mnist(folder: Folder = None, *, data_format: str = "NCHW", download: bool = False) -> DataSet:
    """Return 60,000 and 10,000 handwritten digits of 28 x 28 pixels.

    Args:
        folder: the folder of ``mnist.npz``, or of the four files of the original, which may be
            compressed; by default ``$FLOW_DATASETS``, or ``data``, ``~/.keras/datasets`` and
            ``~/.cache/flow-data``, and in these ``MNIST/raw``, where torchvision keeps them.
        data_format: "NCHW" or "NHWC".
        download: whether to download files that are found nowhere, to the folder or to
            ``~/.cache/flow-data``.

    Returns:
        Images of float32 from 0 to 1 and labels of int32, in the order of the files.

    Raises:
        DataError: the files are found nowhere, or differ from the published ones.
    """
    what = "flow.data.datasets.mnist"
    form, place = located(what, (*MNIST, ARCHIVE), folder, download)
    if form is ARCHIVE:
        names = ["x_train", "y_train", "x_test", "y_test"]
        arrays = _read(
            place / "mnist.npz", lambda path: [read_archive(path, names)[n] for n in names]
        )
        for images, labels in (arrays[:2], arrays[2:]):
            _check(place / "mnist.npz", images, labels)
    else:
        arrays = _idx_arrays(form, place)
    return _grays(what, arrays, data_format, DIGITS)


def fashion_mnist(
    folder: Folder = None, *, data_format: str = "NCHW", download: bool = False
) -> DataSet:
    """Return 60,000 and 10,000 clothes of 28 x 28 pixels, in the files and folders of `mnist`.

    Args:
        folder, data_format, download: as for `mnist`; torchvision's folder is ``FashionMNIST/raw``.

    Returns:
        Images of float32 from 0 to 1 and labels of int32, in the order of the files.

    Raises:
        DataError: the files are found nowhere, or differ from the published ones.
    """
    what = "flow.data.datasets.fashion_mnist"
    return _grays(
        what, _idx_arrays(*located(what, FASHION, folder, download)), data_format, CLOTHES
    )


def cifar10(folder: Folder = None, *, data_format: str = "NCHW", download: bool = False) -> DataSet:
    """Return 50,000 and 10,000 color images of 32 x 32 pixels.

    The files are pickles, of which only arrays and numbers are read, after a comparison of their
    digests.

    Args:
        folder: the folder of ``cifar-10-batches-py`` or ``cifar-10-python.tar.gz``; by default as
            for `mnist`.
        data_format, download: as for `mnist`.

    Returns:
        Images of float32 from 0 to 1 and labels of int32, in the order of the files.

    Raises:
        DataError: the files are found nowhere, or differ from the published ones.
    """
    what = "flow.data.datasets.cifar10"
    form, place = located(what, CIFAR, folder, download)
    parts = _read(place, lambda path: list(map(_cifar_part, _cifar_files(form, path))))
    train, test = (
        Examples(
            scaled(np.concatenate([x for x, _ in some]), data_format, what),
            np.concatenate([y for _, y in some]),
        )
        for some in (parts[:-1], parts[-1:])
    )
    return DataSet(train, test, THINGS)


# -------------------------------------------------------------------------------------- files


def _read(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except DataError:
        raise
    except Exception as error:  # gzip, tarfile, pickle and numpy raise many types
        found = f"{type(error).__name__}: {error}"
        raise DataError.at_caller(f"reading {path}", found=found) from error


def _idx_arrays(form: Files, place: Path) -> list[Array]:
    paths = [place / name for name in form.digests]
    arrays = [_read(path, _idx_array) for path in paths]
    for path, images, labels in ((paths[0], *arrays[:2]), (paths[2], *arrays[2:])):
        _check(path, images, labels)
    return arrays


def _idx_array(path: Path) -> Array:
    """Read a file of the original format: a number of axes, sizes, and bytes."""
    import gzip

    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        head = file.read(4)
        if head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 3:
            raise ValueError(f"a file that begins with {head!r}, not with bytes of 1 to 3 axes")
        sizes = [int.from_bytes(file.read(4), "big") for _ in range(head[3])]
        if (count := prod(sizes)) > 1 << 28:
            raise ValueError(f"{count} bytes, more than any such data set has")
        data = file.read(count + 1)
    if len(data) != count:
        raise ValueError(f"{len(data)} bytes for sizes {sizes}")
    return np.frombuffer(data, np.uint8).reshape(sizes)


def _check(path: Path, images: Array, labels: Array) -> None:
    fits = images.ndim == 3 and images.shape[1:] == (28, 28) and images.dtype == np.uint8
    if not fits or labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        found = f"{images.dtype}{list(images.shape)} with {labels.dtype}{list(labels.shape)}"
        allowed = "uint8[n, 28, 28] with n labels"
        raise DataError.at_caller(f"reading {path}", found=found, allowed=allowed)


def _grays(what: str, arrays: list[Array], data_format: str, classes: tuple[str, ...]) -> DataSet:
    x, y, x_test, y_test = arrays
    train, test = (
        Examples(scaled(images[:, None], data_format, what), labels.astype(np.int32))
        for images, labels in ((x, y), (x_test, y_test))
    )
    return DataSet(train, test, classes)


def _cifar_files(form: Files, place: Path) -> list[bytes]:
    """Return the files of training, then that of tests."""
    if form is CIFAR[0]:
        return [(place / name).read_bytes() for name in form.digests]
    import tarfile

    found = []
    with tarfile.open(place / next(iter(form.digests))) as archive:
        for name, digest in CIFAR_PARTS.items():
            member = archive.extractfile(f"{_CIFAR}/{name}")
            data = member.read(1 << 26) if member else b""
            kind, _, expected = digest.partition(":")
            if digest_of(data, kind) != expected:
                raise ValueError(f"{name} in the archive is not the published file")
            found.append(data)
    return found


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"): ("numpy", "ndarray"),
    ("numpy", "dtype"): ("numpy", "dtype"),
    ("_codecs", "encode"): ("_codecs", "encode"),
}
"""What pickles of the data set refer to, and its names today."""


def _cifar_part(data: bytes) -> tuple[Array, Array]:
    import io
    import pickle

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in _ALLOWED:
                raise pickle.UnpicklingError(f"a pickle that refers to {module}.{name}")
            return super().find_class(*_ALLOWED[module, name])

    entries = Reader(io.BytesIO(data), encoding="bytes").load()
    images, labels = entries[b"data"], np.array(entries[b"labels"], np.int32)
    return images.reshape(-1, 3, 32, 32), labels
