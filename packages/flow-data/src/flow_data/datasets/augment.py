"""Augmentation of batches of images: ``flow.data.augment``.

Images are arrays (count, channels, height, width), or (count, height, width, channels) with
``data_format="NHWC"``.  Random functions draw from a generator, which `flow_data.batches` passes to
its ``transform``: an epoch has the same numbers in each run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flow_core.base.errors import DataError
from flow_data.instances import Array

__all__ = ["flip", "normalize", "random_crop", "resize"]


def _fail(function: str, found: str, allowed: str) -> DataError:
    return DataError.at_caller(f"flow.data.augment.{function}", found=found, allowed=allowed)


def _as_rows(function: str, images: Array, data_format: str) -> Array:
    """Return a view (count, height, width, channels)."""
    if data_format not in ("NCHW", "NHWC"):
        raise _fail(function, f"data_format={data_format!r:.40}", '"NCHW" or "NHWC"')
    if not isinstance(images, np.ndarray) or images.ndim != 4:
        found = getattr(images, "shape", None) or repr(images)[:60]
        raise _fail(function, f"images {found}", f"an array of shape {data_format}")
    return images if data_format == "NHWC" else images.transpose(0, 2, 3, 1)


def _in_format(rows: Array, data_format: str) -> Array:
    return np.ascontiguousarray(rows if data_format == "NHWC" else rows.transpose(0, 3, 1, 2))


def _sides(function: str, size: int | Sequence[int]) -> tuple[int, int]:
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(isinstance(n, int) and n > 0 for n in sides):
        raise _fail(function, f"size={size!r:.40}", "a positive integer, or height and width")
    return sides[0], sides[1]


def random_crop(
    images: Array,
    size: int | Sequence[int],
    rng: np.random.Generator,
    padding: int = 0,
    data_format: str = "NCHW",
) -> Array:
    """Cut a section of each image at a place of its own.

    Args:
        images: the images.
        size: height and width of the sections; one number for both.
        rng: the generator.
        padding: zeros that are added at each side before.
        data_format: "NCHW" or "NHWC".

    Returns:
        The sections, of the element type of ``images``.

    Raises:
        DataError: the sections are larger than the padded images, or an argument is invalid.

    >>> images = np.arange(16.0).reshape(1, 1, 4, 4)
    >>> random_crop(images, 2, np.random.default_rng(0))
    array([[[[ 9., 10.],
             [13., 14.]]]])
    """
    rows = _as_rows("random_crop", images, data_format)
    height, width = _sides("random_crop", size)
    if not isinstance(padding, int) or padding < 0:
        raise _fail("random_crop", f"padding={padding!r:.40}", "0 or more pixels")
    rows = np.pad(rows, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    down, across = rows.shape[1] - height, rows.shape[2] - width
    if down < 0 or across < 0:
        found = f"size {(height, width)} of padded images {rows.shape[1:3]}"
        raise _fail("random_crop", found, "at most the size of the padded images")
    i, j = rng.integers(0, [[down + 1], [across + 1]], (2, len(rows)))
    windows = np.lib.stride_tricks.sliding_window_view(rows, (height, width), (1, 2))
    return _in_format(windows[np.arange(len(rows)), i, j].transpose(0, 2, 3, 1), data_format)


def flip(
    images: Array, rng: np.random.Generator, probability: float = 0.5, data_format: str = "NCHW"
) -> Array:
    """Mirror images, left to right, each with a probability.

    Args:
        images: the images.
        rng: the generator.
        probability: 0 to 1.
        data_format: "NCHW" or "NHWC".

    Returns:
        Images of the same shape and element type.

    Raises:
        DataError: an argument is invalid.

    >>> flip(np.array([[[[1.0, 2.0]]]]), np.random.default_rng(0), probability=1)
    array([[[[2., 1.]]]])
    """
    rows = _as_rows("flip", images, data_format)
    if not isinstance(probability, int | float) or not 0 <= probability <= 1:
        raise _fail("flip", f"probability={probability!r:.40}", "0 to 1")
    chosen = rng.uniform(size=len(rows)) < probability
    mirrored = np.where(chosen[:, None, None, None], rows[:, :, ::-1], rows)
    return _in_format(mirrored, data_format)


def normalize(
    images: Array,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    data_format: str = "NCHW",
) -> Array:
    """Return ``(images - mean) / std`` as float32.

    Args:
        images: the images.
        mean, std: a number per channel, or one for all; ``std`` is positive.
        data_format: "NCHW" or "NHWC".

    Returns:
        Images of the same shape.

    Raises:
        DataError: an argument is invalid.

    >>> normalize(np.ones((1, 1, 1, 2)), mean=0.5, std=0.25)
    array([[[[2., 2.]]]], dtype=float32)
    """
    rows = _as_rows("normalize", images, data_format)
    channels = rows.shape[3]
    try:
        numbers = [np.broadcast_to(np.asarray(x, np.float32), (channels,)) for x in (mean, std)]
    except (TypeError, ValueError):
        numbers = []
    if not numbers or not np.isfinite(numbers).all() or not (numbers[1] > 0).all():
        found = f"mean={mean!r:.40}, std={std!r:.40}"
        raise _fail("normalize", found, f"a number, or {channels} numbers; std above 0")
    return _in_format((rows.astype(np.float32) - numbers[0]) / numbers[1], data_format)


def resize(images: Array, size: int | Sequence[int], data_format: str = "NCHW") -> Array:
    """Resize images by bilinear interpolation between the centers of pixels.

    This is ``torch.nn.functional.interpolate`` without ``align_corners`` and ``antialias``.

    Args:
        images: the images.
        size: height and width; one number for both.
        data_format: "NCHW" or "NHWC".

    Returns:
        Images of the element type of ``images``; integers are rounded.

    Raises:
        DataError: an argument is invalid.

    >>> resize(np.array([[[[0.0, 4.0]]]]), (1, 4))
    array([[[[0., 1., 3., 4.]]]])
    """
    rows = _as_rows("resize", images, data_format)
    if 0 in rows.shape[1:3]:
        raise _fail("resize", f"images of shape {images.shape}", "at least one pixel")
    is_double = rows.dtype == np.float64
    found = rows.astype(np.float64 if is_double else np.float32)
    for axis, length in zip((1, 2), _sides("resize", size), strict=True):
        found = _interpolated(found, axis, length)
    if rows.dtype.kind in "iu":
        found = np.rint(found)
    return _in_format(found.astype(rows.dtype), data_format)


def _interpolated(x: Array, axis: int, length: int) -> Array:
    before = x.shape[axis]
    place = ((np.arange(length) + 0.5) * (before / length) - 0.5).clip(0, before - 1)
    low = place.astype(np.int64)
    share = (place - low).astype(x.dtype).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    above = np.take(x, np.minimum(low + 1, before - 1), axis)
    return np.take(x, low, axis) * (1 - share) + above * share
