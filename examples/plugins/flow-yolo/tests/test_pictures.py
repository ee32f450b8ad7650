"""Pictures and their true boxes: the boxes move with the pictures; wrong files are refused."""

import colorsys
import random

import numpy as np
import pytest
from flow_yolo.pictures import distorted, label_path, train_sample
from PIL import Image

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import DataError

SIZE, BOX = (120, 160), (0.5, 0.4, 0.2, 0.3)
ATTRS = {
    "image_height": 96, "image_width": 128, "num_boxes": 4, "jitter": 0.3, "hue": 0.1,
    "saturation": 1.5, "exposure": 1.2,
}  # fmt: skip


@pytest.fixture
def picture(tmp_path):
    """A black picture with a white box, and a file with the box twice, once too small."""
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    pixels = np.zeros((*SIZE, 3), np.uint8)
    x, y, w, h = BOX
    rows, columns = ((int((c - s / 2) * n), int((c + s / 2) * n)) for c, s, n in (
        (y, h, SIZE[0]), (x, w, SIZE[1])
    ))  # fmt: skip
    pixels[slice(*rows), slice(*columns)] = 255
    path = tmp_path / "images" / "1.png"
    Image.fromarray(pixels).save(path)
    lines = f"7 {x} {y} {w} {h}\n3 0.5 0.5 0.0001 0.2\n\n"
    (tmp_path / "labels" / "1.txt").write_text(lines)
    return str(path)


@pytest.mark.parametrize("seed", range(12))
def test_true_boxes_move_with_their_picture(picture, seed):
    image, boxes = train_sample(picture, ATTRS, random.Random(seed))
    assert image.shape == (3, 96, 128)
    assert image.dtype == np.float32
    assert boxes.shape == (1, 5)
    assert boxes[0, 4] == 7
    rows, columns = np.nonzero((image > 0.75 * image.max()).all(0))
    found = [columns.min() / 128, rows.min() / 96, (columns.max() + 1) / 128, (rows.max() + 1) / 96]
    center, half = boxes[0, :2], boxes[0, 2:4] / 2
    np.testing.assert_allclose([*(center - half), *(center + half)], found, atol=0.03)


def test_colors_are_those_of_hsv():
    image = np.random.default_rng(0).uniform(0, 1, (3, 4, 5)).astype(np.float32)
    image[:, 0, 0] = 0.5
    found = distorted(image, 0.3, 0.8, 0.9)
    for place in np.ndindex(4, 5):
        h, s, v = colorsys.rgb_to_hsv(*image[(slice(None), *place)])
        wanted = colorsys.hsv_to_rgb((h + 0.3) % 1, s * 0.8, v * 0.9)
        np.testing.assert_allclose(found[(slice(None), *place)], wanted, atol=1e-5)
    np.testing.assert_allclose(distorted(image, 0, 1, 1), image, atol=1e-6)


def test_labels_are_beside_the_pictures():
    assert label_path("VOC/JPEGImages/2.jpeg") == "VOC/labels/2.txt"


def decoder(op, outputs, **attrs):
    builder = flow.user_op_builder("decoder").Op(op)
    for name in outputs:
        builder = builder.Output(name)
    for name, value in attrs.items():
        builder = builder.Attr(name, value)
    return builder.Build().InferAndTryRun().RemoteBlobList()


@pytest.fixture(autouse=True)
def session():
    flow.clear_default_session()
    yield
    flow.clear_default_session()


def train_job(listed, devices="0:0", **attrs):
    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        with flow.scope.placement("cpu", devices):
            return tuple(
                decoder(
                    "yolo_train_decoder",
                    ("data", "ground_truth", "gt_valid_num"),
                    **{**ATTRS, "batch_size": 2, "classes": 9, "image_path_file": listed, **attrs},
                )
            )

    return job


def test_batches_do_not_depend_on_the_devices(picture, tmp_path):
    (tmp_path / "train.txt").write_text(f"{picture}\n\n")
    flow.config.cpu_device_num(2)
    one, two = (train_job(str(tmp_path / "train.txt"), devices) for devices in ("0:0", "0:0-1"))
    before = None
    for _ in range(2):
        found = one()
        for a, b in zip(found, two(), strict=True):
            np.testing.assert_array_equal(a, b)
        assert found[2].tolist() == [[1], [1]]
        assert not found[1][:, 1:].any()
        assert before is None or not np.array_equal(before, found[0])
        before = found[0]


@pytest.mark.parametrize(
    ("text", "classes", "found"),
    [
        ("1 0.5 0.5 0.2", 9, "five numbers"),
        ("a 0.5 0.5 0.2 0.2", 9, "five numbers"),
        ("1 nan 0.5 0.2 0.2", 9, "not finite"),
        ("7 0.5 0.5 0.2 0.2", 7, "classes below 7"),
        (None, 9, "1.txt"),
    ],
)
def test_wrong_labels_are_refused(picture, tmp_path, text, classes, found):
    (tmp_path / "train.txt").write_text(f"{picture}\n")
    label = tmp_path / "labels" / "1.txt"
    label.unlink() if text is None else label.write_text(text)
    with pytest.raises(DataError, match=found):
        train_job(str(tmp_path / "train.txt"), classes=classes)()


def test_wrong_pictures_are_refused(picture, tmp_path):
    for content, found in (
        ("", "a path per line"),
        (str(tmp_path), "a folder"),
        ("/no", "No such"),
    ):
        (tmp_path / "train.txt").write_text(content)
        with pytest.raises(DataError, match=found):
            train_job(str(tmp_path / "train.txt"))()
    with open(picture, "wb") as file:
        file.write(b"no picture")
    (tmp_path / "train.txt").write_text(picture)
    with pytest.raises(DataError, match="a picture"):
        train_job(str(tmp_path / "train.txt"))()


def test_pictures_to_predict_are_in_the_middle(picture):
    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        size = {"image_height": 100, "image_width": 80}
        paths = [picture, picture]
        outputs = ("out", "origin_image_info")
        return tuple(
            decoder("yolo_predict_decoder", outputs, batch_size=1, image_paths=paths, **size)
        )

    image, original = job()
    assert original.tolist() == [[120, 160]]
    assert (image[0, :, :20] == 0.5).all()
    assert (image[0, :, 80:] == 0.5).all()
    assert (image[0, :, 20:80] != 0.5).any(0).mean() > 0.9
