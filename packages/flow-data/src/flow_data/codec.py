"""Decoding, resizing and normalising of images, by the fastest library that is installed.

JPEG: simplejpeg (flow-data[turbo]), OpenCV (flow-data[opencv]), Pillow; measured on pictures of
500x375: 0.8, 1.1 and 1.8 ms, with the same pixels.  They decode into pooled memory, which takes
off a fifth.  Resizing: OpenCV, else Pillow, which smooths where it shrinks and OpenCV does not.
"""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np

from flow_data.headers import FORMATS, check_picture, check_pixels
from flow_data.instances import POOL, Array, copied

COLORS = ("BGR", "RGB", "GRAY")
INTERPOLATIONS = ("bilinear", "nearest_neighbor", "nn", "bicubic", "area", "auto")


@cache
def opencv() -> Any:
    """The module cv2, None when it is not there.  Its own threads are off: the loader has some."""
    try:
        import cv2
    except ImportError:
        return None
    cv2.setNumThreads(0)
    return cv2


@cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def libraries() -> dict[str, str]:
    """The libraries that are used, by task, and what would be faster."""
    turbo, cv2 = _simplejpeg(), opencv()
    slower = "OpenCV" if cv2 else "Pillow"
    jpeg = "simplejpeg" if turbo else f"{slower} (faster: uv add flow-data[turbo])"
    return {
        "jpeg": jpeg,
        "resize": "OpenCV" if cv2 else "Pillow (faster: uv add flow-data[opencv])",
    }


def decode(data: Any, color_space: str = "BGR") -> Array:
    """An image file's pixels: uint8 of shape (height, width, channels), 1 channel for "GRAY".

    Raises:
        ValueError: the bytes are no image that a library can read, or one of more pixels than
            `flow_data.headers` allows.
    """
    data = data if isinstance(data, bytes) else bytes(data)
    check_picture(data)
    turbo = _simplejpeg()
    if turbo is not None and data[:2] == b"\xff\xd8":
        try:
            return _by_turbo(turbo, data, color_space)
        except ValueError as error:
            if not _worth_another_try(str(error)):
                raise
    cv2 = opencv()
    return _by_pillow(data, color_space) if cv2 is None else _by_opencv(cv2, data, color_space)


def _by_turbo(turbo: Any, data: Any, color_space: str) -> Array:
    height, width, *_ = turbo.decode_jpeg_header(data)
    channels = 1 if color_space == "GRAY" else 3
    pixels = POOL.take((height, width, channels), np.uint8)
    turbo.decode_jpeg(data, colorspace=color_space, buffer=pixels)
    return pixels


def _worth_another_try(message: str) -> bool:
    """Four-channel JPEGs are read by the others."""
    return "colorspace" in message.lower()


def _by_opencv(cv2: Any, data: Any, color_space: str) -> Array:
    encoded = np.frombuffer(data, np.uint8)
    flag = cv2.IMREAD_GRAYSCALE if color_space == "GRAY" else cv2.IMREAD_COLOR
    try:
        pixels = cv2.imdecode(encoded, flag)
    except cv2.error as error:
        raise ValueError(f"{encoded.size} bytes that are no image: {error}") from error
    if pixels is None:
        raise ValueError(f"{encoded.size} bytes that are no image")
    if color_space == "RGB":
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    return pixels.reshape(*pixels.shape[:2], -1)


def _by_pillow(data: Any, color_space: str) -> Array:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            check_pixels(*image.size)
            mode = "L" if color_space == "GRAY" else "RGB"
            pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    except Exception as error:  # foreign code
        raise ValueError(f"{len(data)} bytes that are no image: {error}") from error
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    return copied(pixels[..., ::-1] if color_space == "BGR" else pixels)


def encode_jpeg(pixels: Array, quality: int = 90) -> bytes:
    """An RGB image as a JPEG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue()


def resize(
    x: Array, width: int, height: int, interpolation: str, out: Array | None = None
) -> Array:
    """An image (height, width, channels) of uint8 or float32 in another size, into ``out``.

    Raises:
        ValueError: the new size has no pixels, or more than `flow_data.headers` allows.
    """
    check_pixels(width, height)
    target = POOL.take((height, width, x.shape[2]), x.dtype) if out is None else out
    cv2 = opencv()
    if cv2 is None:
        _resize_by_pillow(x, target, interpolation)
        return target
    flag = _flags(cv2)[_chosen(interpolation, x, target)]
    same = target.dtype == x.dtype
    made = cv2.resize(x, (width, height), dst=target if same else None, interpolation=flag)
    if made is not target:  # a type or a layout that OpenCV does not write to
        np.copyto(target, made.reshape(target.shape), casting="unsafe")
    return target


def _chosen(interpolation: str, x: Array, target: Array) -> str:
    if interpolation == "auto":
        grows = target.shape[0] * target.shape[1] >= x.shape[0] * x.shape[1]
        return "bilinear" if grows else "area"
    return "nn" if interpolation == "nearest_neighbor" else interpolation


@cache
def _flags(cv2: Any) -> dict[str, int]:
    return {
        "bilinear": cv2.INTER_LINEAR,
        "nn": cv2.INTER_NEAREST,
        "bicubic": cv2.INTER_CUBIC,
        "area": cv2.INTER_AREA,
    }


def _resize_by_pillow(x: Array, target: Array, interpolation: str) -> None:
    from PIL import Image

    kinds = Image.Resampling
    kind = {
        "bilinear": kinds.BILINEAR, "nn": kinds.NEAREST, "bicubic": kinds.BICUBIC, "area": kinds.BOX
    }[_chosen(interpolation, x, target)]  # fmt: skip
    size = (target.shape[1], target.shape[0])
    for channel in range(x.shape[2]):
        plane = Image.fromarray(np.ascontiguousarray(x[..., channel])).resize(size, kind)
        np.copyto(target[..., channel], np.asarray(plane), casting="unsafe")


def flip(x: Array, code: int) -> Array:
    """An image mirrored: left and right for bit 0x01 of the code, up and down for 0x10."""
    vertical, horizontal = bool(code & 0x10), bool(code & 0x01)
    target = POOL.take(x.shape, x.dtype)
    np.copyto(target, x[:: -1 if vertical else 1, :: -1 if horizontal else 1])
    return target


class Normalizer:
    """``(pixel - mean) / std`` from uint8 rows into float32, plane by plane.

    Args:
        mean, std: one number per channel.
        planar: whether targets are (channels, height, width), else (height, width, channels).
    """

    def __init__(self, mean: Any, std: Any, planar: bool) -> None:
        self._scale = np.float32(1) / np.asarray(std, np.float32)
        self._mean = np.asarray(mean, np.float32)
        self._planar = planar
        levels = np.arange(256, dtype=np.float32)
        self._tables = [(levels - m) * s for m, s in zip(self._mean, self._scale, strict=True)]

    def __call__(self, pixels: Array, mirror: bool, out: Array) -> None:
        """Normalises an image (height, width, channels), mirrored when asked, into ``out``."""
        cv2 = opencv() if self._planar and pixels.shape[2] == 3 else None
        if cv2 is not None:
            self._look_up(cv2, cv2.flip(pixels, 1) if mirror else pixels, out)
            return
        for channel in range(pixels.shape[2]):
            plane = pixels[:, ::-1, channel] if mirror else pixels[..., channel]
            target = out[channel] if self._planar else out[..., channel]
            np.subtract(plane, self._mean[channel], out=target, dtype=np.float32)
            np.multiply(target, self._scale[channel], out=target)

    def _look_up(self, cv2: Any, pixels: Array, out: Array) -> None:
        """The same numbers from a table per channel, in half the time."""
        for channel, plane in enumerate(cv2.split(pixels)):
            made = cv2.LUT(plane, self._tables[channel], dst=out[channel])
            if not np.may_share_memory(made, out):
                np.copyto(out[channel], made.reshape(plane.shape))
