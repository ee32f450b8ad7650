"""Pictures and true boxes, as darknet reads them for training and prediction.

The true boxes of ``.../images/NAME.jpg`` are in ``.../labels/NAME.txt``: a line ``class x y w h``
per box, relative to the picture.  Random numbers follow from the seed, the step and the row.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext
from flow_core.base.errors import DataError
from flow_core.base.formats.regular_files import read_regular
from flow_data.codec import decode, resize

LONGEST = 1 << 28
"""The maximum number of bytes of a file."""

SMALLEST = 0.001
"""Boxes that are narrower or lower, as a part of the picture, are left out."""


def _read(path: str) -> bytes:
    try:
        return read_regular(path, LONGEST)
    except OSError as error:
        raise DataError(f"reading {path}", found=f"{error.strerror or error}") from error


def read_picture(path: str) -> Any:
    """Return the pixels of a file, uint8 (height, width, 3) in the order RGB."""
    try:
        return decode(_read(path), "RGB")
    except ValueError as error:
        raise DataError(f"reading {path}", found=str(error), allowed="a picture") from error


def label_path(path: str) -> str:
    """Return the file of the true boxes of a picture.

    >>> label_path("coco/images/train/1.jpg")
    'coco/labels/train/1.txt'
    """
    folders = {"images": "labels", "JPEGImages": "labels"}
    parts = [folders.get(part, part) for part in PurePath(path).parts]
    return str(PurePath(*parts).with_suffix(".txt"))


def read_boxes(path: str) -> Any:
    """Return the true boxes of a picture, float64 (boxes, 5): class, x, y, w, h."""
    label = label_path(path)
    try:
        rows = [
            list(map(float, line.split())) for line in _read(label).splitlines() if line.strip()
        ]
        found = np.array(rows, np.float64).reshape(-1, 5)
    except ValueError as error:
        allowed = "lines of five numbers: class x y w h"
        raise DataError(f"reading {label}", found=str(error), allowed=allowed) from error
    if not np.isfinite(found).all():
        raise DataError(f"reading {label}", found="a number that is not finite")
    return found


def placed(pixels: Any, size: tuple[int, int], corner: tuple[float, float], shape: Any) -> Any:
    """Return a gray canvas (3, *shape) with a picture, resized to ``size`` (height, width).

    Args:
        pixels: uint8 (height, width, 3).
        size: size of the picture on the canvas.
        corner: the upper left corner of the picture (y, x), which may be outside of the canvas.
        shape: height and width of the canvas.
    """
    small = resize(pixels, max(size[1], 1), max(size[0], 1), "bilinear")
    canvas = np.full((3, *shape), 0.5, np.float32)
    spans = [
        (max(0, int(at)), min(full, int(at) + n))
        for at, n, full in zip(corner, small.shape, shape, strict=False)
    ]
    target = tuple(slice(low, max(low, high)) for low, high in spans)
    source = tuple(
        slice(low - int(at), max(low, high) - int(at))
        for (low, high), at in zip(spans, corner, strict=True)
    )
    canvas[(slice(None), *target)] = small[source].transpose(2, 0, 1) / np.float32(255)
    return canvas


def distorted(image: Any, hue: float, saturation: float, exposure: float) -> Any:
    """Turn the hue of an image by a part of the circle, and multiply saturation and value.

    Args:
        image: float32 (3, height, width), from 0 to 1, in the order RGB.
        hue: the part of the circle.
        saturation, exposure: the factors.
    """
    value, least = image.max(0), image.min(0)
    delta = value - least
    safe = np.where(delta == 0, 1, delta)
    red, green, blue = image
    angle = np.where(
        value == red,
        (green - blue) / safe,
        np.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    part = np.where(value == 0, 0, delta / np.where(value == 0, 1, value)) * saturation
    angle, value = (angle + 6 * hue) % 6, value * exposure
    made = [
        value * (1 - part * np.clip(np.minimum(at := (turn + angle) % 6, 4 - at), 0, 1))
        for turn in (5, 3, 1)
    ]
    return np.clip(np.stack(made), 0, 1).astype(np.float32)


def moved(boxes: Any, flip: bool, scale: Any, shift: Any, most: int) -> Any:
    """Return true boxes (x, y, w, h, class) after a move of the picture, clipped to the canvas."""
    center, half = boxes[:, 1:3], boxes[:, 3:5] / 2
    low, high = (np.clip(x * scale - shift, 0, 1) for x in (center - half, center + half))
    if flip:
        low[:, 0], high[:, 0] = 1 - high[:, 0], 1 - low[:, 0]
    size = high - low
    kept = (size >= SMALLEST).all(1)
    return np.concatenate([(low + high) / 2, size, boxes[:, :1]], 1)[kept][:most]


def train_sample(path: str, attrs: Mapping[str, Any], draw: random.Random) -> tuple[Any, Any]:
    """Return a randomly cropped, distorted and flipped picture, and its true boxes."""
    pixels = read_picture(path)
    shape = attrs["image_height"], attrs["image_width"]
    jitter = [attrs["jitter"] * n for n in pixels.shape[:2]]
    high, wide = (n + draw.uniform(-d, d) for n, d in zip(pixels.shape, jitter, strict=False))
    aspect = wide / high
    size = (shape[0], int(shape[0] * aspect)) if aspect < 1 else (int(shape[1] / aspect), shape[1])
    corner = tuple(draw.uniform(0, full - n) for full, n in zip(shape, size, strict=True))
    factors = [
        draw.uniform(1, attrs[name]) ** draw.choice((1, -1)) for name in ("saturation", "exposure")
    ]
    hue = draw.uniform(-attrs["hue"], attrs["hue"])
    image = distorted(placed(pixels, size, corner, shape), hue, *factors)
    flip = draw.random() < 0.5
    boxes = read_boxes(path)
    order = list(range(len(boxes)))
    draw.shuffle(order)
    scale = np.array([size[1] / shape[1], size[0] / shape[0]])
    shift = np.array([-corner[1] / shape[1], -corner[0] / shape[0]])
    made = moved(boxes[order], flip, scale, shift, attrs["num_boxes"])
    return image[:, :, ::-1] if flip else image, made


def _rows(ctx: BindContext) -> Sequence[int]:
    part, size = ctx.attrs["region"], ctx.attrs["batch_size"]
    return range(*part[0]) if part else range(size)


def train_decoder(ctx: BindContext) -> Launch:
    """Return a launch that reads random pictures of a list, with their true boxes."""
    text = _read(ctx.attrs["image_path_file"])
    paths = [line.strip() for line in text.decode(errors="surrogateescape").splitlines()]
    paths = [path for path in paths if path]
    if not paths:
        allowed = "a path per line"
        raise DataError(f"reading {ctx.attrs['image_path_file']}", found="nothing", allowed=allowed)
    return partial(_train, paths, ctx.attrs, _rows(ctx), ctx.seed, ctx.step, *ctx.outputs)


def _train(
    paths: Sequence[str],
    attrs: Any,
    rows: Any,
    seed: int,
    step: Any,
    data: Any,
    truth: Any,
    count: Any,
) -> None:
    truth[:] = 0
    for i, row in enumerate(rows):
        draw = random.Random(f"{seed}/{int(step)}/{row}")
        data[i], boxes = train_sample(draw.choice(paths), attrs, draw)
        if len(boxes) and not 0 <= boxes[:, 4].min() <= boxes[:, 4].max() < attrs["classes"]:
            allowed = f"classes below {attrs['classes']}"
            raise DataError("reading true boxes", found=f"{boxes[:, 4].tolist()}", allowed=allowed)
        truth[i, : len(boxes)], count[i] = boxes, len(boxes)


def predict_decoder(ctx: BindContext) -> Launch:
    """Return a launch that reads the next pictures of a list, in the middle of a gray canvas."""
    rows, paths = _rows(ctx), ctx.attrs["image_paths"]
    return partial(_predict, paths, ctx.attrs["batch_size"], rows, ctx.step, *ctx.outputs)


def _predict(paths: Any, batch: int, rows: Any, step: Any, data: Any, original: Any) -> None:
    shape = data.shape[2:]
    for i, row in enumerate(rows):
        pixels = read_picture(paths[(int(step) * batch + row) % len(paths)])
        high, wide = pixels.shape[:2]
        size = (
            (high * shape[1] // wide, shape[1])
            if shape[1] / wide < shape[0] / high
            else (shape[0], wide * shape[0] // high)
        )
        corner = tuple((full - n) // 2 for full, n in zip(shape, size, strict=True))
        data[i], original[i] = placed(pixels, size, corner, shape), (high, wide)
