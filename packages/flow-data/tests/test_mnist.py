"""load_mnist with synthetic archives, and with the real file if present."""

from __future__ import annotations

import functools
import http.server
import inspect
import os
import threading
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flow_core.base.errors import DataError
from flow_data import download as download_module
from flow_data.download import sha256
from flow_data.mnist import load_mnist

REAL = Path(__file__).parents[4] / "shared" / "data" / "mnist.npz"
NOWHERE = "http://127.0.0.1:9/mnist.npz"


def arrays(train: int = 12, test: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    parts = {"train": train, "test": test}
    images = {f"x_{k}": rng.integers(0, 256, (n, 28, 28), np.uint8) for k, n in parts.items()}
    return images | {f"y_{k}": rng.integers(0, 10, n, np.uint8) for k, n in parts.items()}


def write(folder: Path, **changes: Any) -> Path:
    np.savez(folder / "mnist.npz", **{**arrays(), **changes})
    return folder / "mnist.npz"


def load(folder: Path, *sizes: int, **options: Any) -> Any:
    return load_mnist(*(sizes or (4, 3)), out_dir=str(folder), **{"url": NOWHERE, **options})


def test_signature_matches_oneflow() -> None:
    parameters = inspect.signature(load_mnist).parameters
    assert {name: p.default for name, p in parameters.items()} == {
        "train_batch_size": 100,
        "test_batch_size": 100,
        "data_format": "NCHW",
        "url": "https://oneflow-public.oss-cn-beijing.aliyuncs.com/datasets/mnist.npz",
        "hash_check": "63d4344077849053dc3036b247fa012b2b381de53fd055a66b539dffd76cf08e",
        "out_dir": ".",
    }


def test_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    (images, labels), (test_images, test_labels) = load_mnist(4, 3)
    assert capsys.readouterr().out == "File mnist.npz already exist, path: ./mnist.npz\n"
    assert (images.shape, images.dtype) == ((3, 4, 1, 28, 28), np.float32)
    assert (labels.shape, labels.dtype) == ((3, 4), np.int32)
    assert (test_images.shape, test_labels.shape) == ((2, 3, 1, 28, 28), (2, 3))
    source = arrays()
    expected = source["x_train"].astype(np.float32) / 255.0
    np.testing.assert_array_equal(images.reshape(12, 28, 28), expected)
    np.testing.assert_array_equal(test_labels.reshape(-1), source["y_test"])


def test_channels_last(tmp_path: Path) -> None:
    write(tmp_path)
    (images, _), _ = load(tmp_path, data_format="NHWC")
    (first, _), _ = load(tmp_path)
    np.testing.assert_array_equal(images, np.moveaxis(first, 2, -1))
    with pytest.raises(DataError, match="'NCHW' or 'NHWC'"):
        load(tmp_path, data_format="CHWN")


@pytest.mark.parametrize("size", [5, 0, -4, 24, 2.0])
def test_batch_sizes(tmp_path: Path, size: Any) -> None:
    write(tmp_path)
    with pytest.raises(DataError, match="a divisor of 12") as caught:
        load(tmp_path, size, 3)
    assert "test_mnist.py" in str(caught.value.at)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (7,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": np.zeros((12, 27, 28), np.uint8)}, r"x_train: uint8\[12, 27, 28\]"),
        ({"x_test": np.zeros((6, 28, 28), np.float32)}, "x_test: float32"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8)}, "x_test"),
        ({"y_train": np.zeros(11, np.uint8)}, r"y_train: uint8\[11\] beside 12"),
        ({"y_test": np.zeros(6)}, "y_test: float64"),
        ({"y_test": np.array([Bomb()] * 6)}, "pickle"),
    ],
)
def test_other_archives(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    write(tmp_path, **changes)
    with pytest.raises(DataError, match=words) as caught:
        load(tmp_path)
    assert "to download it again" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\3\4 broken", b"\x93NUMPY"])
def test_broken_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mnist.npz").write_bytes(content)
    with pytest.raises(DataError, match="reading"):
        load(tmp_path)


def npy(header: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    head = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + len(head).to_bytes(2, "little") + head + data


ONE = "{'descr': '|u1', 'fortran_order': False, 'shape': (%s), }"
LIES = {
    "more than there is": npy(ONE % "1099511627776, 28, 28", bytes(9)),
    "less than nothing": npy(ONE % "-1, -9", bytes(9)),
    "half a header": npy("{'descr': '|u1', "),
    "another text": npy("(1, 2"),
    "another version": npy(ONE % "9,", bytes(9), b"\7\0"),
    "nested": npy("(" * 3000),
    "no bytes each": npy(ONE.replace("|u1", "|V0") % "9,"),
}


@pytest.mark.parametrize("lie", LIES)
def test_array_headers_are_checked_against_their_data(tmp_path: Path, lie: str) -> None:
    path = write(tmp_path)
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # duplicate member name
        archive.writestr("x_test.npy", LIES[lie])
    with pytest.raises(DataError, match="reading"):
        load(tmp_path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_is_limited_to_the_method_of_numpy(tmp_path: Path, method: int) -> None:
    """Other methods can expand one byte to any size."""
    path = write(tmp_path)
    names = zipfile.ZipFile(path).namelist()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "new", "w", method) as new:
        for name in names:
            new.writestr(name, old.read(name))
    (tmp_path / "new").replace(path)
    with pytest.raises(DataError, match="compressed by method"):
        load(tmp_path)


def test_arrays_by_column(tmp_path: Path) -> None:
    images = np.asfortranarray(arrays()["x_train"])
    write(tmp_path, x_train=images)
    (found, _), _ = load(tmp_path)
    expected = images.astype(np.float32) / 255.0
    np.testing.assert_array_equal(found.reshape(12, 28, 28), expected)


def test_plain_array_and_missing_part_are_rejected(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(tmp_path / "mnist.npz")
    with pytest.raises(DataError, match="reading"):
        load(tmp_path)
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros(3))
    with pytest.raises(DataError, match="y_train"):
        load(tmp_path)


def test_given_hash_is_checked(tmp_path: Path) -> None:
    path = write(tmp_path)
    load(tmp_path, hash_check=sha256(path).upper())
    with pytest.raises(DataError, match="SHA-256"):
        load(tmp_path, hash_check="0" * 64)
    default = inspect.signature(load_mnist).parameters["hash_check"].default
    with pytest.raises(DataError, match="SHA-256"):
        load(tmp_path, hash_check="".join(default))


def test_missing_file_without_a_download_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(tmp_path / "data")
    message = str(caught.value)
    for words in (
        "no mnist.npz in",
        str(tmp_path / "data"),
        "copy mnist.npz there",
        "uint8[n,28,28]",
    ):
        assert words in message
    assert "test_mnist.py" in str(caught.value.at)
    with pytest.raises(DataError, match="unknown url type"):
        load(tmp_path, url="mnist.npz")


# ------------------------------------------------------------------------------ downloads


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print nothing, to keep the test output readable."""

    def end_headers(self) -> None:
        self.close_connection = True
        super().end_headers()


class Truncating(Handler):
    def copyfile(self, source: Any, outputfile: Any) -> None:
        outputfile.write(source.read(1000))


def serve(folder: Path, handler: type[Handler]) -> Iterator[str]:
    make = functools.partial(handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), make) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/mnist.npz"
        server.shutdown()
        thread.join()


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    (tmp_path / "remote").mkdir()
    return write(tmp_path / "remote")


@pytest.fixture
def url(remote: Path) -> Iterator[str]:
    yield from serve(remote.parent, Handler)


def test_download(tmp_path: Path, remote: Path, url: str) -> None:
    (images, _), _ = load(tmp_path / "new", url=url, hash_check=sha256(remote))
    assert images.shape == (3, 4, 1, 28, 28)
    assert os.listdir(tmp_path / "new") == ["mnist.npz"]
    assert (tmp_path / "new" / "mnist.npz").read_bytes() == remote.read_bytes()
    load(tmp_path / "unchecked", url=url, hash_check=None)


def test_download_with_another_hash_is_discarded(tmp_path: Path, url: str) -> None:
    with pytest.raises(DataError, match="SHA-256"):
        load(tmp_path / "new", url=url)
    assert os.listdir(tmp_path / "new") == []


def test_download_that_is_not_mnist_is_discarded(tmp_path: Path, remote: Path, url: str) -> None:
    remote.write_bytes(b"something else")
    with pytest.raises(DataError, match=r"copy mnist\.npz there"):
        load(tmp_path / "new", url=url, hash_check=None)
    assert os.listdir(tmp_path / "new") == []


def test_truncated_download_is_discarded(tmp_path: Path, remote: Path) -> None:
    for url in serve(remote.parent, Truncating):
        with pytest.raises(DataError, match="1000 of"):
            load(tmp_path / "new", url=url, hash_check=None)
    assert os.listdir(tmp_path / "new") == []


def test_file_missing_on_the_server(tmp_path: Path, url: str) -> None:
    with pytest.raises(DataError, match="404"):
        load(tmp_path / "new", url=url + ".missing")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(
    tmp_path: Path,
    remote: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
) -> None:
    monkeypatch.setattr(download_module.sys.stderr, "isatty", lambda: terminal, raising=False)
    load(tmp_path / "new", url=url, hash_check=sha256(remote))
    shown = capsys.readouterr().err
    assert shown.endswith(" MB\n") if terminal else not shown


# ------------------------------------------------------------------------- the real archive


@pytest.mark.skipif(not REAL.exists(), reason=f"no real MNIST at {REAL}")
def test_real_archive(tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").symlink_to(REAL)
    (images, labels), (test_images, test_labels) = load_mnist(100, out_dir=str(tmp_path))
    assert images.shape == (600, 100, 1, 28, 28)
    assert test_images.shape == (100, 100, 1, 28, 28)
    assert (images.min(), images.max()) == (0, 1)
    assert np.bincount(labels.ravel()).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert test_labels[0, :5].tolist() == [7, 2, 1, 0, 4]
