"""COCO data sets: annotations, shards and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flow_core.base.dtypes import int32
from flow_core.base.errors import DataError
from flow_data import codec
from flow_data.codec import encode_jpeg
from flow_data.loading.coco import CocoAnnotations, CocoSource


def coco(folder: Path, count: int = 12) -> str:
    images, things = [], []
    for i in range(count):
        height, width = ((30, 20), (20, 40))[i % 2]
        name = f"{i}.jpg"
        (folder / name).write_bytes(encode_jpeg(np.full((height, width, 3), i, np.uint8)))
        images.append({"id": 100 + i, "file_name": name, "height": height, "width": width})
        outline = [1, 1, 5, 1, 5, 6, 1, 6]
        thing = {"id": i, "image_id": 100 + i, "category_id": 7, "bbox": [1, 1, 5, 6], "iscrowd": 0}
        things.append({**thing, "segmentation": [outline]})
    images.append({"id": 99, "file_name": "none.jpg", "height": 9, "width": 9})
    path = folder / "annotations.json"
    content = {"images": images, "annotations": things, "categories": [{"id": 3}, {"id": 7}]}
    path.write_text(json.dumps(content))
    return str(path)


def attrs(path: str, folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "annotation_file": path,
        "image_dir": str(folder),
        "batch_size": 4,
        "shuffle_after_epoch": False,
        "random_seed": 0,
        "group_by_ratio": True,
        "remove_images_without_annotations": True,
        "stride_partition": True,
        "shards": 1,
        "on_error": "raise",
        "region": None,
        **changes,
    }


def test_annotations(tmp_path: Path) -> None:
    known = CocoAnnotations(coco(tmp_path), str(tmp_path), True)
    assert known.ids == list(range(100, 112))
    boxes, labels = known.boxes(100)
    assert boxes.tolist() == [[1, 1, 5, 6]]
    assert labels.tolist() == [2]
    points, index = known.polygons(100)
    assert points.tolist() == [[1, 1], [5, 1], [5, 6], [1, 6]]
    assert index.tolist() == [[i, 0, 0] for i in range(4)]


def changed(folder: Path, change: Any) -> CocoAnnotations:
    """Return annotations, three of which have the image 100, after a change."""
    path = Path(coco(folder, 3))
    content = json.loads(path.read_text())
    for number, thing in enumerate(content["annotations"]):
        x, category = 1 + 5 * number, (3, 7, 3)[number]
        thing |= {"image_id": 100, "category_id": category, "bbox": [x, 1, 4, 6]}
        thing["segmentation"] = [[x, 1, x + 4, 1, x + 4, 7], [x, 2, x, 3, x + 1, 3]]
    change(content)
    path.write_text(json.dumps(content))
    return CocoAnnotations(str(path), str(folder), False)


@pytest.mark.parametrize("flat", [[6, 1, 1.03, 0.0], [6, 1, 0, 9], [90, 90, 5, 5], [6, 1, -2, 5]])
def test_object_without_area_is_left_out_as_a_whole(tmp_path: Path, flat: Any) -> None:
    """COCO train2017 has boxes of height 0; the labels behind them must not move."""
    known = changed(tmp_path, lambda c: c["annotations"][1].update(bbox=flat))
    boxes, labels = known.boxes(100)
    assert boxes[:, 0].tolist() == [1, 11]
    assert labels.tolist() == [1, 1]
    points, index = known.polygons(100)
    assert points[:, 0].tolist() == [1, 5, 5, 1, 1, 2, 11, 15, 15, 11, 11, 12]
    assert index[:, 2].tolist() == [0] * 6 + [1] * 6


def test_optional_parts_of_annotations(tmp_path: Path) -> None:
    def change(content: Any) -> None:
        first, second, third = content["annotations"]
        del first["iscrowd"], first["segmentation"]
        third["iscrowd"] = 1
        second["segmentation"] = None

    known = changed(tmp_path, change)
    assert known.boxes(100)[1].tolist() == [1, 2]
    assert known.polygons(100)[0].shape == (0, 2)


@pytest.mark.parametrize("name", ["../a.jpg", "/etc/passwd", "a/../../b.jpg", "..", "a/../.."])
def test_file_names_stay_in_their_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"annotations\.json(?s:.*)outside of image_dir"):
        changed(tmp_path, lambda c: c["images"][0].update(file_name=name))
    below = changed(tmp_path, lambda c: c["images"][0].update(file_name="train/..a/../b.jpg"))
    assert below.path(100) == str(tmp_path / "train/..a/../b.jpg")


def test_batches_group_images_by_aspect_ratio(tmp_path: Path) -> None:
    path = coco(tmp_path)
    source = CocoSource(attrs(path, tmp_path), 4)
    batches = [source.refs(step) for step in range(3)]
    assert batches == [[100, 102, 104, 106], [101, 103, 105, 107], [108, 110, 100, 102]]
    assert source.refs(1) == batches[1]
    together = CocoSource(attrs(path, tmp_path, group_by_ratio=False), 4)
    assert together.refs(1) == [104, 105, 106, 107]


@pytest.mark.parametrize("stride", [True, False])
def test_shards_have_disjoint_images(tmp_path: Path, stride: bool) -> None:
    path = coco(tmp_path)
    options = {"group_by_ratio": False, "stride_partition": stride, "shards": 2}
    found = CocoSource(attrs(path, tmp_path, **options), 4).refs(0)
    assert found == ([100, 102, 101, 103] if stride else [100, 101, 106, 107])


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("devices", [2, 4])
def test_devices_read_parts_of_the_same_batches(tmp_path: Path, shards: int, devices: int) -> None:
    path, rows = coco(tmp_path), 4 // devices
    options = {"shards": shards, "shuffle_after_epoch": True}
    whole = CocoSource(attrs(path, tmp_path, **options), 4)
    parts = [
        CocoSource(attrs(path, tmp_path, region=((i * rows, (i + 1) * rows),), **options), rows)
        for i in range(devices)
    ]
    for step in (0, 1, 7, 3):
        assert [r for part in parts for r in part.refs(step)] == whole.refs(step)


def test_image_with_its_objects(tmp_path: Path) -> None:
    source = CocoSource(attrs(coco(tmp_path), tmp_path), 4)
    outputs = [np.empty(4, object), np.empty(4, np.int64), np.empty((4, 2), np.int32)]
    outputs += [np.empty(4, object) for _ in range(4)]
    source.read(101, 2, outputs)
    assert codec.decode(outputs[0][2].tobytes()).shape == (20, 40, 3)
    assert outputs[1][2] == 101
    assert outputs[2][2].tolist() == [20, 40]
    assert outputs[4][2].dtype == int32.numpy


JUNK = st.one_of(
    st.none(), st.integers(-3, 300), st.floats(), st.text(max_size=3), st.lists(st.integers(0, 3)),
    st.dictionaries(st.text(max_size=3), st.integers()),
)  # fmt: skip


def spoil(content: Any, data: Any) -> Any:
    """Draw the content with one value replaced by junk or removed."""
    if not isinstance(content, dict | list) or not content or data.draw(st.integers(0, 5)) == 0:
        return data.draw(JUNK)
    made = content.copy()
    key = data.draw(st.sampled_from(sorted(made) if isinstance(made, dict) else range(len(made))))
    if data.draw(st.integers(0, 5)) == 0:
        del made[key]
    else:
        made[key] = spoil(made[key], data)
    return made


@pytest.mark.slow
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_malformed_annotations_raise_typed_errors(tmp_path: Path, data: Any) -> None:
    path = Path(coco(tmp_path, 3))
    path.write_text(json.dumps(spoil(json.loads(path.read_text()), data)))
    outputs = [np.empty(2, object), np.empty(2, np.int64), np.empty((2, 2), np.int64)]
    outputs += [np.empty(2, object) for _ in range(4)]
    message = str(tmp_path)
    try:
        source = CocoSource(attrs(str(path), tmp_path, batch_size=2), 2)
        for step in range(2):
            for row, ref in enumerate(source.refs(step)):
                source.read(ref, row, outputs)
    except DataError as error:
        message = str(error)
    assert str(tmp_path) in message


@pytest.mark.parametrize("side", ["width", "height"])
def test_missing_image_file_is_named(tmp_path: Path, side: str) -> None:
    path = Path(coco(tmp_path, 3))
    content = json.loads(path.read_text())
    content["images"][1][side] = 0
    path.write_text(json.dumps(content))
    name = content["images"][1]["file_name"]
    with pytest.raises(DataError, match=rf"image .*{name} of \(\d+, \d+\) pixels"):
        CocoAnnotations(str(path), str(tmp_path), False)


@pytest.mark.parametrize(
    "name", ["\ud800.jpg", "a\0b.jpg", 7, None], ids=["surrogate", "NUL", "number", "none"]
)
def test_invalid_file_names_are_rejected(tmp_path: Path, name: Any) -> None:
    path = Path(coco(tmp_path, 3))
    content = json.loads(path.read_text())
    content["images"][1]["file_name"] = name
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="reading") as caught:
        CocoAnnotations(str(path), str(tmp_path), False)
    str(caught.value).encode()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"images":' * 100_000, "\ud800", "\xff"])
def test_malformed_json_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=r"a\.json"):
        CocoAnnotations(str(path), str(tmp_path), True)


def test_broken_annotation_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{")
    with pytest.raises(DataError, match=r"a\.json"):
        CocoAnnotations(str(path), str(tmp_path), True)
