"""Kernels for batches of images of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext
from flow_core.base.dtypes import as_dtype
from flow_data import codec
from flow_data.instances import POOL, Array, describe, instance_error
from flow_data.kernels.crops import RowDraws, crop_box, crop_limits
from flow_data.rows import StepLaunch, for_each_instance, for_each_row


def _check_image(op: str, row: int, x: Array, channels: int | None = None) -> None:
    if x.ndim != 3 or (channels is not None and x.shape[2] != channels):
        wanted = "C" if channels is None else channels
        raise instance_error(op, row, describe(x), f"an image (height, width, {wanted})")


def decode(ctx: BindContext) -> Launch:
    """Return a launch that decodes image files."""
    color, dtype = ctx.attrs["color_space"], as_dtype(ctx.attrs["data_type"]).numpy

    def work(x: Array) -> Array:
        return codec.decode(x.tobytes(), color).astype(dtype, copy=False)

    return for_each_instance("image_decode", ctx.inputs[0], ctx.outputs[0], work)


def resize_to_fixed(ctx: BindContext) -> Launch:
    """Return a launch that resizes images to one size and writes directly to the batch."""
    (x,), (out, scale) = ctx.inputs, ctx.outputs
    _, height, width, channels = out.shape
    kind = ctx.attrs["interpolation_type"]

    def one(row: int) -> None:
        image = x[row]
        _check_image("image_resize_to_fixed", row, image, channels)
        codec.resize(image, width, height, kind, out[row])
        scale[row] = width / image.shape[1], height / image.shape[0]

    return for_each_row("image_resize_to_fixed", len(out), one)


def size_keeping_ratio(
    height: int, width: int, target: int, minimum: int, maximum: int, longer: bool
) -> tuple[int, int]:
    """Return (width, height) with the shorter (or longer) side resized to ``target``.

    ``maximum`` bounds the longer side, and ``minimum`` bounds the shorter side; 0 means no bound.

    >>> size_keeping_ratio(480, 640, 800, 0, 1000, False)
    (1000, 750)
    """
    ratio = min(height, width) / max(height, width)
    if longer:
        large, small = target, round(target * ratio)
        if minimum > 0 and small < minimum:
            small, large = minimum, round(minimum / ratio)
    else:
        small, large = target, round(target / ratio)
        if 0 < maximum < large:
            large, small = maximum, round(maximum * ratio)
    return (small, large) if width < height else (large, small)


def resize_keep_ratio(ctx: BindContext) -> Launch:
    """Return a launch that resizes images and keeps their aspect ratios."""
    (x,), (out, size, scale) = ctx.inputs, ctx.outputs
    attrs = ctx.attrs
    options = [attrs[k] for k in ("target_size", "min_size", "max_size", "resize_longer")]

    def one(row: int) -> None:
        image = x[row]
        _check_image("image_resize_keep_aspect_ratio", row, image)
        height, width = image.shape[:2]
        w, h = size_keeping_ratio(height, width, *options)
        out[row] = codec.resize(image, w, h, attrs["interpolation_type"])
        size[row] = np.array([w, h], np.int32)
        scale[row] = np.array([w / width, h / height], np.float32)

    return for_each_row("image_resize_keep_aspect_ratio", len(x), one)


def random_crop(ctx: BindContext) -> Sequence[Launch]:
    """Return launches that crop images at random."""
    (x,), (out,) = ctx.inputs, ctx.outputs
    limits = crop_limits(ctx.attrs)
    draws = RowDraws(ctx, len(x), limits.draws)

    def one(row: int) -> None:
        _check_image("image_random_crop", row, x[row])
        top, left, h, w = crop_box(x[row].shape[:2], limits, draws.numbers[row].tolist())
        out[row] = x[row][top : top + h, left : left + w]

    return (StepLaunch(draws.draw), for_each_row("image_random_crop", len(x), one))


def crop_mirror_normalize(ctx: BindContext) -> Launch:
    """Return a launch that crops at a fixed position, mirrors some images, and normalizes."""
    images, out, attrs = ctx.inputs[0], ctx.outputs[0], ctx.attrs
    mirrored = ctx.inputs[1] if len(ctx.inputs) > 1 else np.zeros(len(out), np.int8)
    planar = attrs["output_layout"] == "NCHW"
    channels, (height, width) = (
        (out.shape[1], out.shape[2:]) if planar else (out.shape[3], out.shape[1:3])
    )
    mean, std = (np.broadcast_to(np.array(attrs[k], np.float32), channels) for k in ("mean", "std"))
    normalize = codec.Normalizer(mean, std, planar)
    at = (attrs["crop_pos_y"], attrs["crop_pos_x"])

    def one(row: int) -> None:
        part = _part(images[row], row, (height, width, channels), at)
        normalize(part, bool(mirrored[row]), out[row])

    return for_each_row("crop_mirror_normalize", len(out), one)


def _part(x: Array, row: int, wanted: tuple[int, int, int], at: tuple[float, float]) -> Array:
    height, width, channels = wanted
    _check_image("crop_mirror_normalize", row, x, channels)
    if x.shape[0] < height or x.shape[1] < width:
        hint = "resize images to at least the size of the crop"
        allowed = f"at least {height} x {width}"
        raise instance_error("crop_mirror_normalize", row, describe(x), allowed, hint)
    top, left = int((x.shape[0] - height) * at[0]), int((x.shape[1] - width) * at[1])
    return x[top : top + height, left : left + width]


def batch_align(ctx: BindContext) -> Launch:
    """Return a launch that copies images to the upper left corner of a batch of zeros."""
    (x,), (out,) = ctx.inputs, ctx.outputs

    def one(row: int) -> None:
        image = x[row]
        _check_image("image_batch_align", row, image, out.shape[3])
        height, width = image.shape[:2]
        if height > out.shape[1] or width > out.shape[2]:
            allowed = f"at most {out.shape[1:]}"
            raise instance_error(
                "image_batch_align", row, describe(image), allowed, "raise the shape"
            )
        out[row] = 0
        np.copyto(out[row, :height, :width], image, casting="unsafe")

    return for_each_row("image_batch_align", len(out), one)


def normalize(ctx: BindContext) -> Launch:
    """Return a launch that computes (pixel - mean) / std."""
    mean, std = (np.array(ctx.attrs[k], np.float32) for k in ("mean", "std"))

    def work(x: Array) -> Array:
        if x.ndim != 3 or x.shape[2] != mean.size or x.dtype.kind != "f":
            raise ValueError(f"{describe(x)}, not a floating type of {mean.size} channels")
        out = POOL.allocate(x.shape, x.dtype)
        np.subtract(x, mean, out=out)
        np.divide(out, std, out=out)
        return out

    return for_each_instance("image_normalize", ctx.inputs[0], ctx.outputs[0], work)


def flip_codes(ctx: BindContext, position: int, count: int) -> Any:
    """Return the flip code of each sample: an input's values, or the attribute's value for all."""
    if len(ctx.inputs) > position:
        return ctx.inputs[position]
    return np.full(count, ctx.attrs["code"], np.int8)


def flip(ctx: BindContext) -> Launch:
    """Return a launch that flips images."""
    x, out = ctx.inputs[0], ctx.outputs[0]
    codes = flip_codes(ctx, 1, len(x))

    def one(row: int) -> None:
        _check_image("image_flip", row, x[row])
        out[row] = codec.flip(x[row], int(codes[row])) if codes[row] else x[row]

    return for_each_row("image_flip", len(x), one)
