"""Kernels for bounding boxes and polygons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flow_core.base.dtypes import as_dtype, tensor_buffer
from flow_core.base.errors import DataError
from flow_core.ir.graph import tensor_type
from flow_core.plugins.specs import BindContext, KernelQuery
from flow_data import codec
from flow_data.instances import InstanceError
from flow_data.kernels import detection


def objects(*instances: Any) -> Any:
    found = np.empty(len(instances), object)
    for i, x in enumerate(instances):
        found[i] = x
    return found


def run(bind: Any, *inputs: Any, **attrs: Any) -> Any:
    types = tuple(
        tensor_type(x.shape, tensor_buffer if x.dtype == object else as_dtype(x.dtype))
        for x in inputs
    )
    out = np.empty(len(inputs[0]), object)
    query = KernelQuery("op", attrs, types, (tensor_type(out.shape, tensor_buffer),))
    bind(BindContext(query, inputs, (out,)))()
    return out


BOXES = np.array([[1, 2, 5, 8], [0, 0, 9, 19]], np.float32)
SIZE = np.array([[10, 20]], np.int32)


@pytest.mark.parametrize("code", [0, 1, 0x10, 0x11])
def test_boxes_are_mirrored_with_their_pixels(code: int) -> None:
    """A box around the ones of an image stays around them in the mirrored image."""
    image = np.zeros((20, 10), np.uint8)
    image[2:9, 1:6] = 1
    flipped = codec.flip(image[..., None], code)[..., 0]
    (found,) = run(detection.bbox_flip, objects(BOXES), SIZE, code=code)
    y, x = np.nonzero(flipped)
    assert found[0].tolist() == [x.min(), y.min(), x.max(), y.max()]
    assert found[1].tolist() == [0, 0, 9, 19]


def test_flip_codes_may_differ_per_image() -> None:
    sizes, codes = np.repeat(SIZE, 2, 0), np.array([0, 1], np.int8)
    points = np.array([[1, 2], [3, 4]], np.float32)
    same, mirrored = run(detection.polygon_flip, objects(points, points), sizes, codes, code=0)
    assert np.array_equal(same, points)
    assert mirrored.tolist() == [[9, 2], [7, 4]]


def test_scaling() -> None:
    (found,) = run(detection.bbox_scale, objects(BOXES), np.array([[2, 0.5]], np.float32))
    assert found[0].tolist() == [2, 1, 10, 4]
    points = np.array([[1, 2]], np.float32)
    (found,) = run(detection.polygon_scale, objects(points), np.array([[2, 0.5]], np.float32))
    assert found.tolist() == [[2, 1]]


@pytest.mark.parametrize("installed", [True, False])
def test_masks(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed:
        monkeypatch.setattr(codec, "opencv", lambda: None)
    square = [(1, 1), (4, 1), (4, 3), (1, 3)]
    points = np.array([*square, (6, 6), (8, 6), (8, 8), (6, 8), *square], np.float32)
    index = np.array(
        [(i % 4, polygon, thing) for thing, polygon in ((0, 0), (0, 1), (1, 0)) for i in range(4)],
        np.int32,
    )
    (masks,) = run(detection.polygon_to_mask, objects(points), objects(index), SIZE)
    wanted = np.zeros((2, 20, 10), np.int8)
    wanted[:, 1:4, 1:5] = 1
    wanted[0, 6:9, 6:9] = 1
    assert np.array_equal(masks, wanted)


def test_invalid_boxes_error_names_the_image() -> None:
    wrong = np.zeros((3, 5), np.float32)
    with pytest.raises(InstanceError, match="object_bbox_scale, instance 1") as caught:
        run(detection.bbox_scale, objects(BOXES, wrong), np.ones((2, 2), np.float32))
    assert "float32[3,5]" in str(caught.value)


def mask_of(width: int, height: int) -> Any:
    corners = np.array([(1, 1), (4, 1), (4, 3)], np.float32)
    index, size = np.array([(i, 0, 0) for i in range(3)], np.int32), np.array([[width, height]])
    return run(detection.polygon_to_mask, objects(corners), objects(index), size)[0]


def test_mask_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_DATA_MAX_PIXELS", "100")
    with pytest.raises(DataError, match="11 x 10 pixels"):
        mask_of(11, 10)
    assert mask_of(10, 10).shape == (1, 10, 10)
