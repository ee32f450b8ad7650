"""Data sets by name, from files as those of the originals; nothing is downloaded unasked."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import oneflow as flow
from flow_core.base.errors import DataError
from flow_data.datasets import files, images

sets = flow.data.datasets
RNG = np.random.default_rng(0)
REAL = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search no folder of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(files.SETTING, raising=False)


def idx(array: Any) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + sizes + array.tobytes()


def originals(counts: tuple[int, int] = (6, 3)) -> list[Any]:
    parts = []
    for n in counts:
        parts += [RNG.integers(0, 256, (n, 28, 28), np.uint8), RNG.integers(0, 10, n, np.uint8)]
    return parts


def write_idx(folder: Path, arrays: list[Any], suffix: str = "") -> dict[str, str]:
    """Write the four files; return their digests."""
    folder.mkdir(parents=True, exist_ok=True)
    digests = {}
    for name, array in zip(images._IDX, arrays, strict=True):
        data = gzip.compress(idx(array)) if suffix else idx(array)
        (folder / (name + suffix)).write_bytes(data)
        digests[name + suffix] = f"md5:{hashlib.md5(data).hexdigest()}"
    return digests


def check_grays(found: Any, arrays: list[Any]) -> None:
    for part, (x, y) in zip(found[:2], (arrays[:2], arrays[2:]), strict=True):
        np.testing.assert_allclose(part.inputs, x[:, None] / 255, rtol=1e-6)
        np.testing.assert_array_equal(part.labels, y)
        assert (part.inputs.dtype, part.labels.dtype) == (np.float32, np.int32)


@pytest.mark.parametrize("layout", ["data/MNIST/raw", ".cache/flow-data", ".keras/datasets/MNIST"])
def test_mnist_is_found_where_programs_keep_it(layout: str, tmp_path: Path) -> None:
    arrays = originals()
    write_idx(tmp_path / layout, arrays)
    check_grays(sets.mnist(), arrays)
    assert repr(sets.mnist()) == (
        "DataSet(train=6 x float32[1, 28, 28], test=3 x float32[1, 28, 28], classes=0, 1, 2, ...)"
    )


def test_mnist_of_an_archive_and_in_nhwc(tmp_path: Path) -> None:
    x, y, x_test, y_test = arrays = originals()
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    check_grays(sets.mnist(tmp_path), arrays)
    found = sets.mnist(tmp_path, data_format="NHWC")
    assert found.train.inputs.shape == (6, 28, 28, 1)


@pytest.mark.skipif(not (REAL / "mnist.npz").is_file(), reason="needs shared/data/mnist.npz")
def test_the_real_mnist() -> None:
    train, test, _ = sets.mnist(REAL)
    assert (len(train.inputs), len(test.inputs)) == (60_000, 10_000)
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]


def test_digests_of_compressed_files_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = originals()
    digests = write_idx(tmp_path / "data", arrays, ".gz")
    for name in ("mnist", "fashion_mnist"):
        with pytest.raises(DataError, match="MD5"):
            getattr(sets, name)()
    known = replace(images.FASHION[0], digests=digests)
    monkeypatch.setattr(images, "FASHION", (known, images.FASHION[1]))
    found = sets.fashion_mnist()
    check_grays(found, arrays)
    assert found.classes[-1] == "boot"


def test_a_setting_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = originals()
    write_idx(tmp_path / "own", arrays)
    with pytest.raises(DataError, match="no files in"):
        sets.mnist()
    monkeypatch.setenv(files.SETTING, str(tmp_path / "own"))
    check_grays(sets.mnist(), arrays)


def test_downloads_are_asked_for_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = originals()
    digests = write_idx(tmp_path / "server", arrays, ".gz")
    url = (tmp_path / "server").as_uri() + "/"
    known = replace(images.MNIST[0], digests=digests, url=url)
    monkeypatch.setattr(images, "MNIST", (known, images.MNIST[1]))
    with pytest.raises(DataError, match="download=True"):
        sets.mnist()
    check_grays(sets.mnist(download=True), arrays)
    assert (tmp_path / ".cache/flow-data/MNIST/raw/train-images-idx3-ubyte.gz").is_file()
    name = "t10k-labels-idx1-ubyte.gz"
    known = replace(known, digests=digests | {name: "md5:" + "0" * 32})
    monkeypatch.setattr(images, "MNIST", (known, images.MNIST[1]))
    with pytest.raises(DataError, match="MD5"):
        sets.mnist(tmp_path / "new", download=True)
    assert not (tmp_path / "new/MNIST/raw" / name).exists()


def cifar_parts() -> dict[str, tuple[bytes, Any]]:
    parts = {}
    for name in images.CIFAR_PARTS:
        x, y = RNG.integers(0, 256, (4, 3072), np.uint8), RNG.integers(0, 10, 4).tolist()
        data = pickle.dumps({b"data": x, b"labels": y}, protocol=2)
        data = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        parts[name] = data, (x.reshape(-1, 3, 32, 32), y)
    return parts


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    parts = cifar_parts()
    digests = {name: f"md5:{hashlib.md5(data).hexdigest()}" for name, (data, _) in parts.items()}
    archive = tmp_path / "data" / "cifar-10-python.tar.gz"
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, (data, _) in parts.items():
        (folder / name).write_bytes(data)
    if packed:
        with tarfile.open(archive, "w:gz") as file:
            file.add(folder, folder.name)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    whole = hashlib.md5(archive.read_bytes()).hexdigest() if packed else "0"
    forms = (
        replace(images.CIFAR[0], digests=digests),
        replace(images.CIFAR[1], digests={archive.name: f"md5:{whole}"}),
    )
    monkeypatch.setattr(images, "CIFAR", forms)
    monkeypatch.setattr(images, "CIFAR_PARTS", digests)
    train, test, classes = sets.cifar10()
    wanted = np.concatenate([x for _, (x, _) in parts.values()])
    found = np.concatenate([train.inputs, test.inputs])
    np.testing.assert_allclose(found, wanted / 255, rtol=1e-6)
    assert test.labels.tolist() == parts["test_batch"][1][1]
    assert (len(train.inputs), classes[9]) == (20, "truck")


def test_pickles_run_no_code() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (print, ("run",))

    with pytest.raises(pickle.UnpicklingError, match=r"builtins\.print|__builtin__\.print"):
        images._cifar_part(pickle.dumps(Evil(), protocol=2))


def test_digits_ship_with_scikit_learn() -> None:
    known = pytest.importorskip("sklearn.datasets").load_digits()
    train, test, classes = sets.digits()
    found = np.concatenate([train.inputs, test.inputs])
    np.testing.assert_allclose(found[:, 0], known.images / 16, rtol=1e-6)
    assert np.concatenate([train.labels, test.labels]).tolist() == known.target.tolist()
    assert len(classes) == 10


def test_tables(tmp_path: Path) -> None:
    path = tmp_path / "iris.csv"
    path.write_text("length,width,kind\n1,2.5,b\n3,4,a\n\n5,6,b\n")
    table = sets.csv(path)
    np.testing.assert_array_equal(table.inputs, [[1, 2.5], [3, 4], [5, 6]])
    assert (table.names, table.classes) == (("length", "width"), ("a", "b"))
    assert table.labels.tolist() == [1, 0, 1]
    assert repr(table) == "Table(3 x 2, names=['length', 'width'], classes=['a', 'b'])"
    path.write_text("1;2;0.5\n3;4;2\n")
    table = sets.csv(path, delimiter=";")
    assert (table.labels.dtype, table.labels.tolist()) == (np.float32, [0.5, 2])
    table = sets.csv(path, 0, delimiter=";")
    assert (table.labels.dtype, table.labels.tolist()) == (np.int32, [1, 3])
    assert sets.csv(path, None, delimiter=";").inputs.shape == (2, 3)


def test_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abracadabra é")
    found = sets.text(tmp_path / "a.txt")
    assert found.vocabulary == " abcdré"
    assert found.decode(found.tokens) == "abracadabra é"
    x, y = found.examples(4)
    assert [found.decode(row) for row in (x[0], y[0], x[2], y[2])] == [
        "abra",
        "brac",
        "bra ",
        "ra é",
    ]
    np.testing.assert_array_equal(found.encode("bad"), [2, 1, 4])
    assert repr(found) == "Text(vocabulary=' abcdré')"


def folder_of_images(root: Path) -> Path:
    for label, color in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
        (root / "images" / label).mkdir(parents=True)
        for i in range(5):
            Image.new("RGB", (9, 6 + i), color).save(root / "images" / label / f"{i}.png")
    return root / "images"


def test_folders_of_images(tmp_path: Path) -> None:
    found = sets.image_folder(folder_of_images(tmp_path), (4, 5))
    assert repr(found) == "ImageFolder(10 images of 2 classes)"
    image, label = found[7]
    np.testing.assert_array_equal(
        image, np.eye(3, dtype=np.float32)[0][:, None, None].repeat(4, 1).repeat(5, 2)
    )
    assert (label, found.classes) == (1, ("blue", "red"))
    train, test = found.split(0.3)
    assert (len(train), len(test)) == (7, 3)
    (x, y), *_ = flow.data.batches(train, 7, shuffle=True)
    assert x.shape == (7, 3, 4, 5)
    np.testing.assert_array_equal(x[:, 0, 0, 0], y)


def broken_image(root: Path) -> Any:
    (root / "bad" / "a").mkdir(parents=True)
    (root / "bad" / "a" / "x.png").write_bytes(b"no image")
    return sets.image_folder(root / "bad", (4, 4))[0]


def written(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def damaged(root: Path, data: bytes) -> Any:
    write_idx(root, originals())
    (root / "train-images-idx3-ubyte").write_bytes(data)
    return sets.mnist(root)


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no files": (lambda p: sets.mnist(p), "mnist.npz"),
    "a number": (lambda p: sets.mnist(3), "folder=3"),  # type: ignore[arg-type]
    "no magic": (lambda p: damaged(p, b"PK00"), "begins with"),
    "short": (lambda p: damaged(p, idx(np.zeros((9, 28, 28), np.uint8))[:-1]), "bytes for sizes"),
    "another size": (lambda p: damaged(p, idx(np.zeros((9, 2, 2), np.uint8))), "uint8[9, 2, 2]"),
    "huge": (lambda p: damaged(p, b"\0\0\x08\x03" + b"\xff" * 12), "more than any"),
    "format": (lambda p: sets.digits("CHWN"), "CHWN"),
    "no table": (lambda p: sets.csv(p / "none.csv"), "none.csv"),
    "ragged": (lambda p: sets.csv(written(p / "a.csv", "1,2\n3\n")), "1 and 2 columns"),
    "text": (
        lambda p: sets.csv(written(p / "a.csv", "1,2,3\nx,2,3\n")),
        "'x' in 'column 0', row 1",
    ),
    "label": (lambda p: sets.csv(written(p / "a.csv", "ab,bc\n1,2\n"), "abc"), "label='abc'"),
    "empty": (lambda p: sets.text(written(p / "a.txt", "")), "empty"),
    "binary": (lambda p: sets.text(written(p / "a.txt", b"\xff\xfe\xff")), "UnicodeDecodeError"),
    "characters": (lambda p: sets.text(written(p / "a.txt", "ab")).encode("c"), "'c'"),
    "length": (lambda p: sets.text(written(p / "a.txt", "ab")).examples(2), "1 to 1"),
    "no folder": (lambda p: sets.image_folder(p / "none", (4, 4)), "no such folder"),
    "size": (lambda p: sets.image_folder(p, 4), "size=4"),  # type: ignore[arg-type]
    "share": (lambda p: sets.image_folder(folder_of_images(p), (2, 2)).split(2), "share=2"),
    "image": (broken_image, "x.png"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_and_arguments(name: str, tmp_path: Path) -> None:
    function, text = WRONG[name]
    with pytest.raises(DataError) as error:
        function(tmp_path)
    assert text in str(error.value)
    assert __file__ in str(error.value)


# --------------------------------------------------------------------------------- augmentation

augment = flow.data.augment
IMAGES = RNG.integers(0, 256, (5, 3, 6, 7)).astype(np.float32)


def in_nhwc(function: Callable[..., Any], x: Any, *more: Any) -> Any:
    """Return the result of NHWC images, in NCHW."""
    found = function(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), *more, data_format="NHWC")
    return found.transpose(0, 3, 1, 2)


def test_random_crops_are_sections_of_padded_images() -> None:
    found = augment.random_crop(IMAGES, (4, 5), np.random.default_rng(1), 2)
    assert found.shape == (5, 3, 4, 5)
    places = []
    for image, crop in zip(np.pad(IMAGES, ((0, 0), (0, 0), (2, 2), (2, 2))), found, strict=True):
        hits = [
            (i, j) for i in range(7) for j in range(7)
            if np.array_equal(image[:, i : i + 4, j : j + 5], crop)
        ]  # fmt: skip
        assert len(hits) == 1
        places += hits
    assert len(set(places)) > 2
    other = in_nhwc(augment.random_crop, IMAGES, (4, 5), np.random.default_rng(1), 2)
    np.testing.assert_array_equal(found, other)
    same = augment.random_crop(IMAGES, (6, 7), np.random.default_rng(1))
    np.testing.assert_array_equal(same, IMAGES)


@pytest.mark.parametrize("probability", [0, 1, 0.5])
def test_flips(probability: float) -> None:
    found = augment.flip(IMAGES, np.random.default_rng(3), probability)
    flipped = [not np.array_equal(*pair) for pair in zip(found, IMAGES, strict=True)]
    for image, one, is_flipped in zip(IMAGES, found, flipped, strict=True):
        np.testing.assert_array_equal(one, image[:, :, ::-1] if is_flipped else image)
    assert {0: not any(flipped), 1: all(flipped)}.get(probability, 0 < sum(flipped) < 5)
    np.testing.assert_array_equal(
        found, in_nhwc(augment.flip, IMAGES, np.random.default_rng(3), probability)
    )


def test_normalize() -> None:
    found = augment.normalize(IMAGES.astype(np.uint8), [1, 2, 3], 2)
    np.testing.assert_allclose(found, (IMAGES - np.arange(1, 4)[:, None, None]) / 2)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, in_nhwc(augment.normalize, IMAGES, [1, 2, 3], 2))


def between_centers(plane: Any, size: tuple[int, int]) -> Any:
    """Interpolate between the four pixels around the center of each new pixel."""
    found = np.empty(size)
    for place in np.ndindex(size):
        at = [(i + 0.5) * n / m - 0.5 for i, n, m in zip(place, plane.shape, size, strict=True)]
        at = [min(max(x, 0), n - 1) for x, n in zip(at, plane.shape, strict=True)]
        i, j = (int(x) for x in at)
        down, across = at[0] - i, at[1] - j
        k, m = min(i + 1, plane.shape[0] - 1), min(j + 1, plane.shape[1] - 1)
        upper = plane[i, j] * (1 - across) + plane[i, m] * across
        lower = plane[k, j] * (1 - across) + plane[k, m] * across
        found[place] = upper * (1 - down) + lower * down
    return found


@pytest.mark.parametrize("size", [(6, 7), (3, 14), (13, 2), (1, 1), (9, 15)])
def test_resize_interpolates_between_centers_of_pixels(size: tuple[int, int]) -> None:
    found = augment.resize(IMAGES, size)
    wanted = [[between_centers(plane, size) for plane in image] for image in IMAGES]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-3)
    np.testing.assert_array_equal(found, in_nhwc(augment.resize, IMAGES, size))


def test_larger_images_are_those_of_pillow() -> None:
    wanted = Image.fromarray(IMAGES[0, 0]).resize((15, 9), Image.Resampling.BILINEAR)
    found = augment.resize(IMAGES[:1, :1], (9, 15))[0, 0]
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-5, atol=1e-3)


def test_resize_of_constant_and_linear_images() -> None:
    np.testing.assert_array_equal(augment.resize(np.full((1, 1, 3, 4), 7, np.uint8), 9), 7)
    ramp = np.arange(8.0).reshape(1, 1, 1, 8)
    np.testing.assert_allclose(augment.resize(ramp, (1, 4)).ravel(), [0.5, 2.5, 4.5, 6.5])


def test_batches_are_changed_alike_in_each_run() -> None:
    def draw(batch: Any, rng: np.random.Generator) -> Any:
        x, y = batch
        return x + rng.uniform(size=x.shape), y

    def runs(seed: int, prefetch: int) -> list[Any]:
        data = flow.data.batches(
            (np.zeros(10), np.arange(10)), 4, shuffle=True, seed=seed, transform=draw,
            prefetch=prefetch,
        )  # fmt: skip
        return [np.concatenate([x for x, _ in data]) for _ in range(2)]

    first, second = runs(0, 0)
    assert len({*first, *second}) == 20
    np.testing.assert_array_equal(runs(0, 2), (first, second))
    assert not np.array_equal(runs(1, 0)[0], first)


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: augment.flip([1], np.random.default_rng(0)), "[1]"),  # type: ignore[arg-type]
    (lambda: augment.flip(IMAGES[0], np.random.default_rng(0)), "(3, 6, 7)"),
    (lambda: augment.flip(IMAGES, np.random.default_rng(0), 2), "probability=2"),
    (lambda: augment.random_crop(IMAGES, 8, np.random.default_rng(0)), "(8, 8)"),
    (lambda: augment.random_crop(IMAGES, 0, np.random.default_rng(0)), "size=0"),
    (lambda: augment.random_crop(IMAGES, 2, np.random.default_rng(0), -1), "padding=-1"),
    (lambda: augment.normalize(IMAGES, [1, 2], 1), "3 numbers"),
    (lambda: augment.normalize(IMAGES, 0, 0), "std=0"),
    (lambda: augment.resize(IMAGES, (1, 2, 3)), "(1, 2, 3)"),
    (lambda: augment.resize(IMAGES, 3, "HWC"), "'HWC'"),
    (lambda: flow.data.batches([1], 1, transform=3), "transform=3"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_wrong_arguments_of_augmentation(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(DataError) as error:
        call()
    assert text in str(error.value)
    assert __file__ in str(error.value)
