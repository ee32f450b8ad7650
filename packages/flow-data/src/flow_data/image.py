"""``flow.image``: ops on batches of images of different sizes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NoReturn

from flow_core.authoring.specs import emit
from flow_core.base.dtypes import DType, as_dtype, float32, int32, tensor_buffer, uint8
from flow_core.base.errors import InferenceError
from flow_data.decoders import crop_attrs
from flow_data.ragged import tensor_buffer_to_tensor

Blob = Any
log = logging.getLogger("flow_data")

__all__ = [
    "CropMirrorNormalize", "Resize", "batch_align", "crop_mirror_normalize", "decode", "flip",
    "normalize", "random_crop", "resize", "target_resize",
]  # fmt: skip


def _refuse(what: str, found: object, allowed: str) -> NoReturn:
    raise InferenceError.at_caller(what, found=found, allowed=allowed)


def decode(
    images_bytes_buffer: Blob,
    dtype: object = uint8,
    color_space: str = "BGR",
    name: str | None = None,
) -> Blob:
    """Decode image files.

    Args:
        images_bytes_buffer: TensorBuffer of the bytes of the files.
        dtype: uint8 or float32.
        color_space: "BGR", "RGB" or "GRAY".
        name: name of the op.

    Returns:
        Instances (height, width, channels).
    """
    dtype = as_dtype(dtype).name
    return emit(
        "image_decode", images_bytes_buffer, data_type=dtype, color_space=color_space, name=name
    )


_OLDER_INTERPOLATIONS = {"Linear": "bilinear", "NN": "nearest_neighbor", "Cubic": "bicubic"}
_CHANNELS = {"RGB": 3, "BGR": 3, "GRAY": 1}


def resize(
    image: Blob,
    target_size: int | Sequence[int] | None = None,
    min_size: int | None = None,
    max_size: int | None = None,
    keep_aspect_ratio: bool = False,
    resize_side: str = "shorter",
    channels: int = 3,
    dtype: object = None,
    interpolation_type: str = "auto",
    name: str | None = None,
    color_space: str | None = None,
    interp_type: str | None = None,
    resize_shorter: int = 0,
    resize_x: int = 0,
    resize_y: int = 0,
) -> Any:
    """Resize images.

    Args:
        image: TensorBuffer of images (height, width, channels) of uint8 or float32.
        target_size: (width, height); with ``keep_aspect_ratio``, the size of one side.
        min_size: minimum size of the shorter side if the longer side gets ``target_size``.
        max_size: maximum size of the longer side if the shorter side gets ``target_size``.
        keep_aspect_ratio: whether images keep their aspect ratios, so that their sizes differ.
        resize_side: "shorter" or "longer": the side that gets ``target_size``.
        channels: number of channels of all images; used only without ``keep_aspect_ratio``.
        dtype: uint8 (the default) or float32; used only without ``keep_aspect_ratio``.
        interpolation_type: "auto" (bilinear to enlarge images, area to shrink them), "bilinear",
            "nearest_neighbor", "bicubic" or "area".
        name: name of the op.
        color_space, interp_type, resize_shorter, resize_x, resize_y: deprecated arguments; if one
            of them is passed, only the images are returned.

    Returns:
        The images, their scale and their new size. If all images get one size, these are a tensor
        (count, height, width, channels), float32 factors (count, 2) of width and height, and None.
        With ``keep_aspect_ratio``, these are a TensorBuffer, the factors, and an int32 tensor
        (count, 2) of width and height.
    """
    older = any((color_space, interp_type, resize_shorter > 0, resize_x > 0 and resize_y > 0))
    if color_space is not None:
        channels = _choose("color_space", color_space.upper(), _CHANNELS)
    if interp_type is not None:
        interpolation_type = _choose("interp_type", interp_type, _OLDER_INTERPOLATIONS)
    if resize_x > 0 and resize_y > 0:
        target_size, keep_aspect_ratio = (resize_x, resize_y), False
    if resize_shorter > 0:
        target_size, keep_aspect_ratio, resize_side = resize_shorter, True, "shorter"
    if older:
        log.warning("image.Resize: deprecated arguments; use target_size, channels and dtype")
    if keep_aspect_ratio:
        sides = (min_size or 0, max_size or 0)
        found = _resize_sides(image, target_size, sides, resize_side, interpolation_type, name)
    else:
        wanted = uint8 if dtype is None else as_dtype(dtype)
        found = _resize_fixed(image, target_size, channels, wanted, interpolation_type, name)
    return found[0] if older else found


def _choose(what: str, value: str, table: dict[str, Any]) -> Any:
    if value not in table:
        _refuse(f"image.Resize with {what}", repr(value), ", ".join(table))
    return table[value]


def _resize_sides(
    image: Blob, target: Any, sides: tuple[int, int], side: str, kind: str, name: str | None
) -> tuple[Blob, Blob, Blob]:
    if not isinstance(target, int):
        _refuse("image.Resize with keep_aspect_ratio", f"target_size {target!r}", "an int")
    if side not in ("shorter", "longer"):
        _refuse("image.Resize", f"resize_side {side!r}", '"shorter" or "longer"')
    resized, size, scale = emit(
        "image_resize_keep_aspect_ratio",
        image,
        target_size=target,
        min_size=sides[0],
        max_size=sides[1],
        resize_longer=side == "longer",
        interpolation_type=kind,
        name=name,
    )
    scale = tensor_buffer_to_tensor(scale, float32, (2,))
    return resized, scale, tensor_buffer_to_tensor(size, int32, (2,))


def _resize_fixed(
    image: Blob, target: Any, channels: int, dtype: DType, kind: str, name: str | None
) -> tuple[Blob, Blob, None]:
    sizes = isinstance(target, list | tuple) and len(target) == 2
    if not sizes or not all(isinstance(n, int) for n in target):
        _refuse("image.Resize", f"target_size {target!r}", "(width, height)")
    resized, scale = emit(
        "image_resize_to_fixed",
        image,
        target_width=target[0],
        target_height=target[1],
        channels=channels,
        data_type=dtype.name,
        interpolation_type=kind,
        name=name,
    )
    return resized, scale, None


def target_resize(
    images: Blob,
    target_size: int,
    min_size: int | None = None,
    max_size: int | None = None,
    resize_side: str = "shorter",
    interpolation_type: str = "auto",
    name: str | None = None,
) -> tuple[Blob, Blob, Blob]:
    """Resize images with their aspect ratios kept; return the images, their new size and scale."""
    resized, scale, size = resize(
        images,
        target_size=target_size,
        min_size=min_size,
        max_size=max_size,
        keep_aspect_ratio=True,
        resize_side=resize_side,
        interpolation_type=interpolation_type,
        name=name,
    )
    return resized, size, scale


def crop_mirror_normalize(
    input_blob: Blob,
    mirror_blob: Blob | None = None,
    color_space: str = "BGR",
    output_layout: str = "NCHW",
    crop_h: int = 0,
    crop_w: int = 0,
    crop_pos_y: float = 0.5,
    crop_pos_x: float = 0.5,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    output_dtype: object = float32,
    name: str | None = None,
) -> Blob:
    """Crop images, mirror some of them, and compute ``(pixel - mean) / std``.

    Args:
        input_blob: uint8 images: a TensorBuffer, or a tensor (count, height, width, channels).
        mirror_blob: int8 (count,): 1 for images to mirror horizontally.
        color_space: "BGR", "RGB" or "GRAY"; it determines the number of channels.
        output_layout: "NCHW" or "NHWC".
        crop_h, crop_w: size of the crop; 0 for no crop, if the images are a tensor.
        crop_pos_y, crop_pos_x: position of the crop, from 0 (top or left) to 1 (bottom or right).
        mean, std: one number, or one number per channel.
        output_dtype: float32.
        name: name of the op.
    """
    kinds = {tensor_buffer.name: "tensorbuffer", uint8.name: "uint8"}
    kind = kinds.get(input_blob.dtype.name)
    if kind is None:
        _refuse("image.CropMirrorNormalize", f"{input_blob!r}", "uint8 images or a TensorBuffer")
    return emit(
        f"crop_mirror_normalize_from_{kind}",
        *([input_blob] if mirror_blob is None else [input_blob, mirror_blob]),
        color_space=color_space,
        output_layout=output_layout,
        mean=tuple(map(float, mean)),
        std=tuple(map(float, std)),
        crop_h=crop_h,
        crop_w=crop_w,
        crop_pos_y=float(crop_pos_y),
        crop_pos_x=float(crop_pos_x),
        output_dtype=as_dtype(output_dtype).name,
        name=name,
    )


def random_crop(
    input_blob: Blob,
    num_attempts: int = 10,
    seed: int | None = None,
    random_area: Sequence[float] | None = None,
    random_aspect_ratio: Sequence[float] | None = None,
    name: str = "ImageRandomCrop",
) -> Blob:
    """Crop each image of a TensorBuffer at random.

    See `flow_data.decoders.ofrecord_image_decoder_random_crop` for the arguments.
    """
    ratio = random_aspect_ratio or (0.75, 1.333333)
    attrs = crop_attrs(seed, num_attempts, random_area or (0.08, 1.0), ratio)
    own_name = None if name == "ImageRandomCrop" else name
    return emit("image_random_crop", input_blob, name=own_name, **attrs)


def batch_align(
    images: Blob, shape: Sequence[int], dtype: object, alignment: int, name: str | None = None
) -> Blob:
    """Copy images to the upper left corner of a batch of zeros.

    Args:
        images: TensorBuffer of images.
        shape: (height, width, channels) of the batch, at least as large as every image.
        dtype: uint8 or float32.
        alignment: a power of two, or 0. No effect: the batch has the same shape in each step,
            whereas OneFlow rounds up the shape of the step's largest image.
        name: name of the op.
    """
    shape, dtype = tuple(shape), as_dtype(dtype).name
    return emit(
        "image_batch_align", images, shape=shape, data_type=dtype, alignment=alignment, name=name
    )


def normalize(
    image: Blob, std: Sequence[float], mean: Sequence[float], name: str | None = None
) -> Blob:
    """Compute ``(pixel - mean) / std`` per channel for a TensorBuffer of floating-point images."""
    means, stds = tuple(map(float, mean)), tuple(map(float, std))
    return emit("image_normalize", image, std=stds, mean=means, name=name)


def emit_flip(op: str, blobs: Sequence[Blob], flip_code: Blob | int, name: str | None) -> Blob:
    """Emit an op with a flip code: a number for all samples, or a blob with a number per sample."""
    if isinstance(flip_code, int):
        return emit(op, *blobs, code=flip_code, name=name)
    return emit(op, *blobs, flip_code, name=name)


def flip(image: Blob, flip_code: Blob | int, name: str | None = None) -> Blob:
    """Flip images of a TensorBuffer.

    Args:
        image: the images.
        flip_code: 0x01 for a horizontal flip, 0x10 for a vertical flip, 0x11 for both flips, 0 for
            no flip; or an int8 blob (count,) of such numbers.
        name: name of the op.
    """
    return emit_flip("image_flip", [image], flip_code, name)


Resize = resize
CropMirrorNormalize = crop_mirror_normalize
