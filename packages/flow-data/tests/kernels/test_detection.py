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
from flow_data.kernels.polygons import fill


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


def test_masks() -> None:
    square = [(1, 1), (4, 1), (4, 3), (1, 3)]
    points = np.array([*square, (6, 6), (8, 6), (8, 8), (6, 8), *square], np.float32)
    index = np.array(
        [(i % 4, polygon, thing) for thing, polygon in ((0, 0), (0, 1), (1, 0)) for i in range(4)],
        np.int32,
    )
    (masks,) = run(detection.polygon_to_mask, objects(points), objects(index), SIZE)
    wanted = np.zeros((2, 20, 10), np.int8)
    wanted[:, 1:3, 1:4] = 1
    wanted[0, 6:8, 6:8] = 1
    assert np.array_equal(masks, wanted)


def drawn(*points: tuple[float, float], height: int, width: int) -> list[str]:
    mask = np.zeros((height, width), np.int8)
    fill(mask, np.array(points, np.float32))
    return ["".join(map(str, row)) for row in mask]


def test_masks_are_those_of_coco() -> None:
    """The rows are the results of pycocotools 2.0.11."""
    pentagon = drawn((0, 0), (7, 1), (7, 5), (3, 6), (1, 3), height=7, width=8)
    assert pentagon == [
        "11110000", "01111110", "01111110", "01111110", "00111110", "00011000", "00000000"
    ]  # fmt: skip
    slim = drawn((1.2, 0.7), (6.9, 2.3), (3.3, 7.1), height=8, width=7)
    assert slim == [
        "0000000", "0111000", "0011111", "0011110", "0001100", "0001100", "0001000", "0000000"
    ]  # fmt: skip
    beyond = drawn((-3, -2), (5, 4.5), (12, 1), height=6, width=8)
    assert beyond == ["11111111", "01111111", "00011111", "00001110", "00000000", "00000000"]
    two_decimals = drawn((0.7, 0.7), (3.7, 0.7), (3.7, 2.7), (0.7, 2.7), height=4, width=5)
    assert two_decimals == ["00000", "01110", "01110", "00000"]
    assert drawn((2, 2), (2, 2), (2, 2), height=2, width=2) == ["00", "00"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools
def test_masks_equal_those_of_the_installed_pycocotools() -> None:
    tools, rng = pytest.importorskip("pycocotools.mask"), np.random.default_rng(0)
    for decimals in range(3):
        for _ in range(300):
            height, width = map(int, rng.integers(1, 60, 2))
            points = np.round(rng.uniform(-20, 80, (rng.integers(3, 12), 2)), decimals)
            encoded = tools.frPyObjects([points.ravel().tolist()], height, width)
            mask = np.zeros((height, width), np.int8)
            fill(mask, points.astype(np.float32))
            np.testing.assert_array_equal(mask, tools.decode(encoded)[..., 0])


@pytest.mark.parametrize("far", [1e9, -1e38, np.inf, np.nan])
def test_points_far_away_are_refused(far: float) -> None:
    points = np.array([(1, 1), (far, 1), (4, 3)], np.float32)
    index = np.array([(i, 0, 0) for i in range(3)], np.int32)
    with pytest.raises(InstanceError, match="a point beyond"):
        run(detection.polygon_to_mask, objects(points), objects(index), SIZE)


def test_long_edges_take_no_more_work_than_the_image() -> None:
    corners = [(-1e8, -1e8), (1e8, -1e8), (1e8, 1e8), (-1e8, 1e8)]
    assert drawn(*corners, height=2, width=3) == ["111", "111"]


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
