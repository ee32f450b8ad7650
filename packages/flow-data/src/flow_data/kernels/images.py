"""Kernels on batches of images of any sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext
from flow_core.base.dtypes import as_dtype
from flow_data import codec
from flow_data.instances import POOL, Array, describe, fail
from flow_data.kernels.crops import RowDraws, crop_box, limits_of
from flow_data.rows import FromStep, each, each_instance


def _check_image(op: str, row: int, x: Array, channels: int | None = None) -> None:
    if x.ndim != 3 or (channels is not None and x.shape[2] != channels):
        wanted = "C" if channels is None else channels
        raise fail(op, row, describe(x), f"an image (height, width, {wanted})")


def decode(ctx: BindContext) -> Launch:
    """Image files as pixels."""
    color, dtype = ctx.attrs["color_space"], as_dtype(ctx.attrs["data_type"]).numpy

    def work(x: Array) -> Array:
        return codec.decode(x.tobytes(), color).astype(dtype, copy=False)

    return each_instance("image_decode", ctx.inputs[0], ctx.outputs[0], work)


def resize_to_fixed(ctx: BindContext) -> Launch:
    """Images in one size, written straight into the batch."""
    (x,), (out, scale) = ctx.inputs, ctx.outputs
    _, height, width, channels = out.shape
    kind = ctx.attrs["interpolation_type"]

    def one(row: int) -> None:
        image = x[row]
        _check_image("image_resize_to_fixed", row, image, channels)
        codec.resize(image, width, height, kind, out[row])
        scale[row] = width / image.shape[1], height / image.shape[0]

    return each("image_resize_to_fixed", len(out), one)


def kept_ratio(
    height: int, width: int, target: int, least: int, most: int, longer: bool
) -> tuple[int, int]:
    """The (width, height) of an image whose shorter (or longer) side is to be ``target``.

    ``most`` bounds the longer side, ``least`` the shorter one; 0 is no bound.

    >>> kept_ratio(480, 640, 800, 0, 1000, False)
    (1000, 750)
    """
    ratio = min(height, width) / max(height, width)
    if longer:
        large, small = target, round(target * ratio)
        if least > 0 and small < least:
            small, large = least, round(least / ratio)
    else:
        small, large = target, round(target / ratio)
        if 0 < most < large:
            large, small = most, round(most * ratio)
    return (small, large) if width < height else (large, small)


def resize_keep_ratio(ctx: BindContext) -> Launch:
    """Images in sizes of their own."""
    (x,), (out, size, scale) = ctx.inputs, ctx.outputs
    attrs = ctx.attrs
    options = [attrs[k] for k in ("target_size", "min_size", "max_size", "resize_longer")]

    def one(row: int) -> None:
        image = x[row]
        _check_image("image_resize_keep_aspect_ratio", row, image)
        height, width = image.shape[:2]
        w, h = kept_ratio(height, width, *options)
        out[row] = codec.resize(image, w, h, attrs["interpolation_type"])
        size[row] = np.array([w, h], np.int32)
        scale[row] = np.array([w / width, h / height], np.float32)

    return each("image_resize_keep_aspect_ratio", len(x), one)


def random_crop(ctx: BindContext) -> Sequence[Launch]:
    """Random parts of images."""
    (x,), (out,) = ctx.inputs, ctx.outputs
    limits = limits_of(ctx.attrs)
    draws = RowDraws(ctx, len(x), limits.draws)

    def one(row: int) -> None:
        _check_image("image_random_crop", row, x[row])
        top, left, h, w = crop_box(x[row].shape[:2], limits, draws.numbers[row].tolist())
        out[row] = x[row][top : top + h, left : left + w]

    return (FromStep(draws.draw), each("image_random_crop", len(x), one))


def crop_mirror_normalize(ctx: BindContext) -> Launch:
    """A part at a fixed place, mirrored where asked, normalised."""
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

    return each("crop_mirror_normalize", len(out), one)


def _part(x: Array, row: int, wanted: tuple[int, int, int], at: tuple[float, float]) -> Array:
    height, width, channels = wanted
    _check_image("crop_mirror_normalize", row, x, channels)
    if x.shape[0] < height or x.shape[1] < width:
        hint = "resize images to at least the size of the crop"
        allowed = f"at least {height} x {width}"
        raise fail("crop_mirror_normalize", row, describe(x), allowed, hint)
    top, left = int((x.shape[0] - height) * at[0]), int((x.shape[1] - width) * at[1])
    return x[top : top + height, left : left + width]


def batch_align(ctx: BindContext) -> Launch:
    """Images in the corner of a batch of zeros."""
    (x,), (out,) = ctx.inputs, ctx.outputs

    def one(row: int) -> None:
        image = x[row]
        _check_image("image_batch_align", row, image, out.shape[3])
        height, width = image.shape[:2]
        if height > out.shape[1] or width > out.shape[2]:
            allowed = f"at most {out.shape[1:]}"
            raise fail("image_batch_align", row, describe(image), allowed, "raise the shape")
        out[row] = 0
        np.copyto(out[row, :height, :width], image, casting="unsafe")

    return each("image_batch_align", len(out), one)


def normalize(ctx: BindContext) -> Launch:
    """(pixel - mean) / std."""
    mean, std = (np.array(ctx.attrs[k], np.float32) for k in ("mean", "std"))

    def work(x: Array) -> Array:
        if x.ndim != 3 or x.shape[2] != mean.size or x.dtype.kind != "f":
            raise ValueError(f"{describe(x)}, not a floating type of {mean.size} channels")
        out = POOL.take(x.shape, x.dtype)
        np.subtract(x, mean, out=out)
        np.divide(out, std, out=out)
        return out

    return each_instance("image_normalize", ctx.inputs[0], ctx.outputs[0], work)


def flip_codes(ctx: BindContext, position: int, count: int) -> Any:
    """The code of each sample: an input, or the same for all."""
    if len(ctx.inputs) > position:
        return ctx.inputs[position]
    return np.full(count, ctx.attrs["code"], np.int8)


def flip(ctx: BindContext) -> Launch:
    """Images mirrored."""
    x, out = ctx.inputs[0], ctx.outputs[0]
    codes = flip_codes(ctx, 1, len(x))

    def one(row: int) -> None:
        _check_image("image_flip", row, x[row])
        out[row] = codec.flip(x[row], int(codes[row])) if codes[row] else x[row]

    return each("image_flip", len(x), one)
