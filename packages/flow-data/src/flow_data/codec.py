"""Decode, resize and normalize images with the fastest installed library.

JPEG files of 1 or 3 components are decoded by simplejpeg (flow-data[turbo]), OpenCV
(flow-data[opencv]) or Pillow, which take 0.8, 1.1 and 1.8 ms for an image of 500x375. Pillow
decodes all other images, JPEGs that simplejpeg refuses, and JPEGs of several scans in place of
OpenCV. What else decides the pixels is done here, whichever libraries are installed:

- images are turned upright by the EXIF orientation of JPEG, PNG, WebP and TIFF files;
- of 16-bit samples, the upper 8 bits are kept; 32-bit samples are refused;
- gray is the luma 0.299 R + 0.587 G + 0.114 B of ITU-R BT.601, rounded;
- transparency is dropped.

Decoding into pooled memory saves a fifth of the time of a JPEG. OpenCV resizes images if it is
installed; otherwise, Pillow resizes them and, unlike OpenCV, applies a filter when it shrinks an
image.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from flow_core.base.errors import install_command
from flow_data.headers import (
    FORMATS,
    check_header,
    check_pixels,
    has_one_scan,
    is_plain_jpeg,
    orientation,
)
from flow_data.instances import POOL, Array, pooled_copy

COLORS = ("BGR", "RGB", "GRAY")
INTERPOLATIONS = ("bilinear", "nearest_neighbor", "nn", "bicubic", "area", "auto")


@cache
def opencv() -> Any:
    """Return the module cv2 with its threads disabled; None if it is not installed."""
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
    """Return the library in use for each task, with hints about faster libraries."""
    turbo, cv2 = _simplejpeg(), opencv()
    slower = "OpenCV" if cv2 else "Pillow"
    jpeg = "simplejpeg" if turbo else f"{slower} (faster: {install_command('flow-data[turbo]')})"
    return {
        "jpeg": jpeg,
        "resize": "OpenCV" if cv2 else f"Pillow (faster: {install_command('flow-data[opencv]')})",
    }


def decode(data: bytes | bytearray | memoryview, color_space: str = "BGR") -> Array:
    """Decode an image file to uint8 (height, width, channels), with 1 channel for "GRAY".

    See the module for the rules of orientation, 16-bit samples and gray.  Raises `ValueError` if
    the bytes are not a readable image, or the image has more pixels than `flow_data.headers`
    allows.
    """
    data = data if isinstance(data, bytes) else bytes(data)
    check_header(data)
    order = "RGB" if color_space == "GRAY" else color_space
    pixels = _upright(_decoded(data, order), orientation(data))
    return _gray(pixels) if color_space == "GRAY" else pixels


def _decoded(data: bytes, order: str) -> Array:
    turbo, cv2, pixels = _simplejpeg(), opencv(), None
    if is_plain_jpeg(data):
        if turbo is not None:
            pixels = _by_turbo(turbo, data, order)
        elif cv2 is not None and has_one_scan(data):
            pixels = _by_opencv(cv2, data, order)
    return _by_pillow(data, order) if pixels is None else pixels


_TURNED: Mapping[int, Callable[[Array], Array]] = {
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: x.swapaxes(0, 1)[:, ::-1],
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: lambda x: x.swapaxes(0, 1)[::-1],
}
"""For each EXIF orientation except 1: the function that turns an image upright."""


def _upright(pixels: Array, found: int) -> Array:
    return pooled_copy(_TURNED[found](pixels)) if found in _TURNED else pixels


def _gray(pixels: Array) -> Array:
    from PIL import Image

    return pooled_copy(np.asarray(Image.fromarray(pixels).convert("L"))[..., None])


def _by_turbo(turbo: Any, data: bytes, order: str) -> Array | None:
    """Return the pixels; None for a damaged image, of which Pillow may decode a part."""
    try:
        height, width, *_ = turbo.decode_jpeg_header(data)
        pixels = POOL.allocate((height, width, 3), np.uint8)
        turbo.decode_jpeg(data, colorspace=order, buffer=pixels)
    except ValueError:
        return None
    return pixels


def _by_opencv(cv2: Any, data: bytes, order: str) -> Array | None:
    encoded = np.frombuffer(data, np.uint8)
    flag = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        pixels: Array | None = cv2.imdecode(encoded, flag)
    except cv2.error:
        return None
    if pixels is not None and order == "RGB":
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    return pixels


def _by_pillow(data: bytes, order: str) -> Array:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            check_pixels(*image.size)
            pixels = _eight_bits(image)
            if pixels is None:
                pixels = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    except Exception as error:  # Pillow raises many types
        raise ValueError(f"{len(data)} bytes that are not an image: {error}") from error
    return pooled_copy(pixels[..., ::-1] if order == "BGR" else pixels)


def _eight_bits(image: Any) -> Array | None:
    """Return the upper 8 bits of 16-bit gray as RGB; None for images of 8 bits.

    Pillow itself clips such images, and keeps the upper bits of other 16-bit images.
    """
    if not image.mode.startswith(("I", "F")):
        return None
    if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):
        raise ValueError(f"samples of 32 bits (mode {image.mode})")
    levels = (np.asarray(image).astype(np.int64) >> 8).astype(np.uint8)
    return np.repeat(levels[..., None], 3, 2)


def encode_jpeg(pixels: Array, quality: int = 90) -> bytes:
    """Encode an RGB image as a JPEG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue()


def resize(
    x: Array, width: int, height: int, interpolation: str, out: Array | None = None
) -> Array:
    """Resize an image (height, width, channels) of uint8 or float32, into ``out`` if given.

    Raises:
        ValueError: the new size is empty, or has more pixels than `flow_data.headers` allows.
    """
    check_pixels(width, height)
    target = POOL.allocate((height, width, x.shape[2]), x.dtype) if out is None else out
    cv2 = opencv()
    if cv2 is None:
        _resize_by_pillow(x, target, interpolation)
        return target
    flag = _flags(cv2)[_interpolation(interpolation, x, target)]
    same = target.dtype == x.dtype
    made = cv2.resize(x, (width, height), dst=target if same else None, interpolation=flag)
    if made is not target:  # OpenCV cannot write to this type or layout
        np.copyto(target, made.reshape(target.shape), casting="unsafe")
    return target


def _interpolation(interpolation: str, x: Array, target: Array) -> str:
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
    }[_interpolation(interpolation, x, target)]  # fmt: skip
    size = (target.shape[1], target.shape[0])
    for channel in range(x.shape[2]):
        plane = Image.fromarray(np.ascontiguousarray(x[..., channel])).resize(size, kind)
        np.copyto(target[..., channel], np.asarray(plane), casting="unsafe")


def flip(x: Array, code: int) -> Array:
    """Mirror an image: horizontally for bit 0x01 of the code, vertically for bit 0x10."""
    vertical, horizontal = bool(code & 0x10), bool(code & 0x01)
    target = POOL.allocate(x.shape, x.dtype)
    np.copyto(target, x[:: -1 if vertical else 1, :: -1 if horizontal else 1])
    return target


class Normalizer:
    """A function that maps uint8 pixels to float32 ``(pixel - mean) / std``, plane by plane.

    Args:
        mean, std: one number per channel.
        planar: whether outputs are (channels, height, width); otherwise, they are (height, width,
            channels).
    """

    def __init__(self, mean: Any, std: Any, planar: bool) -> None:
        self._scale = np.float32(1) / np.asarray(std, np.float32)
        self._mean = np.asarray(mean, np.float32)
        self._planar = planar
        levels = np.arange(256, dtype=np.float32)
        self._tables = [(levels - m) * s for m, s in zip(self._mean, self._scale, strict=True)]

    def __call__(self, pixels: Array, mirror: bool, out: Array) -> None:
        """Normalize an image (height, width, channels), optionally mirrored, into ``out``."""
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
        """Compute the same numbers with one lookup table per channel, in half the time."""
        for channel, plane in enumerate(cv2.split(pixels)):
            made = cv2.LUT(plane, self._tables[channel], dst=out[channel])
            if not np.may_share_memory(made, out):
                np.copyto(out[channel], made.reshape(plane.shape))
