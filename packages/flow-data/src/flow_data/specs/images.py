"""Op specs for batches of images of different sizes."""

from __future__ import annotations

from flow_core.authoring.op_rules import specs
from flow_core.authoring.specs import REQUIRED, InferContext, TensorType
from flow_core.base.dtypes import as_dtype, float32, int8, uint8
from flow_data.codec import INTERPOLATIONS
from flow_data.specs.decoders import RANDOM_CROP, check_color, check_crop
from flow_data.specs.rules import RowOp, dense, ragged, require_buffers, require_equal_counts


def _same(ctx: InferContext) -> tuple[TensorType, ...]:
    return (require_buffers(ctx),)


def _pixel_type(ctx: InferContext) -> None:
    dtype = as_dtype(ctx.attrs["data_type"])
    ctx.check(dtype in (uint8, float32), f"images of {dtype}", "uint8 or float32")


def _interpolation(ctx: InferContext) -> None:
    found = ctx.attrs["interpolation_type"]
    ctx.check(found in INTERPOLATIONS, f"interpolation {found!r}", ", ".join(INTERPOLATIONS))


def _mirror(ctx: InferContext) -> None:
    if len(ctx.inputs) > 1:
        require_equal_counts(ctx)
        mirror = ctx.inputs[1]
        ok = mirror.dtype is int8 and len(mirror.shape) == 1
        ctx.check(ok, f"mirror {mirror}", "int8, one number per image", "flow.random.CoinFlip")


def _normalized(ctx: InferContext, height: int, width: int) -> tuple[TensorType, ...]:
    channels = check_color(ctx)
    for name in ("mean", "std"):
        found = ctx.attrs[name]
        ctx.check(len(found) in (1, channels), f"{name} {found}", f"1 or {channels} numbers")
    layout = ctx.attrs["output_layout"]
    ctx.check(layout in ("NCHW", "NHWC"), f"output_layout {layout!r}", "NCHW or NHWC")
    output = as_dtype(ctx.attrs["output_dtype"])
    ctx.check(output is float32, f"output_dtype {output}", "float32")
    planar = layout == "NCHW"
    shape = (channels, height, width) if planar else (height, width, channels)
    return (dense(ctx.inputs[0].shape[0], shape, float32),)


NORMALIZE = {
    "color_space": "BGR",
    "output_layout": "NCHW",
    "mean": (0.0,),
    "std": (1.0,),
    "crop_h": 0,
    "crop_w": 0,
    "crop_pos_x": 0.5,
    "crop_pos_y": 0.5,
    "output_dtype": "float32",
}


class ImageDecode(RowOp):
    """Decode image files to pixels (height, width, channels)."""

    schema = "image_decode(in) -> out"
    attrs = {"color_space": "BGR", "data_type": "uint8"}

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        check_color(ctx)
        _pixel_type(ctx)
        return (require_buffers(ctx),)


class ImageResizeToFixed(RowOp):
    """Resize images to one size, as a dense batch; scale is (width, height) factors."""

    schema = "image_resize_to_fixed(in) -> out, scale"
    attrs = {
        "target_width": 0, "target_height": 0, "channels": 3, "data_type": "uint8",
        "interpolation_type": "bilinear",
    }  # fmt: skip

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        n = require_buffers(ctx).shape[0]
        width, height = (ctx.attrs["target_width"], ctx.attrs["target_height"])
        channels = ctx.attrs["channels"]
        ctx.check(width > 0 and height > 0, f"target size {(width, height)}", "positive sizes")
        ctx.check(channels in (1, 3), f"{channels} channels", "1 or 3")
        _pixel_type(ctx)
        _interpolation(ctx)
        pixels = dense(n, (height, width, channels), as_dtype(ctx.attrs["data_type"]))
        return (pixels, dense(n, (2,), float32))


class ImageResizeKeepAspectRatio(RowOp):
    """Resize the shorter (or longer) side to the target size; sizes are (width, height)."""

    schema = "image_resize_keep_aspect_ratio(in) -> out, size, scale"
    attrs = {
        "target_size": REQUIRED, "min_size": 0, "max_size": 0, "resize_longer": False,
        "interpolation_type": "bilinear",
    }  # fmt: skip

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        n = require_buffers(ctx).shape[0]
        target, limit = ctx.attrs["target_size"], ctx.attrs["max_size"]
        ctx.check(target > 0, f"target_size {target}", "a positive size")
        ctx.check(
            not 0 < limit < target, f"max_size {limit}", f"at least target_size {target}, or 0"
        )
        _interpolation(ctx)
        return (ragged(n),) * 3


class ImageRandomCrop(RowOp):
    """Crop each image at random."""

    schema = "image_random_crop(in) -> out"
    attrs = RANDOM_CROP
    random = True

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        check_crop(ctx)
        return (require_buffers(ctx),)


class CropMirrorNormalizeFromTensorbuffer(RowOp):
    """A part of each image, mirrored where asked, as (pixel - mean) / std."""

    schema = "crop_mirror_normalize_from_tensorbuffer(in, mirror?) -> out"
    attrs = NORMALIZE

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        require_buffers(ctx)
        _mirror(ctx)
        height, width = ctx.attrs["crop_h"], ctx.attrs["crop_w"]
        ctx.check(
            height > 0 and width > 0, f"crop {(height, width)}", "crop_h and crop_w, positive"
        )
        return _normalized(ctx, height, width)


class CropMirrorNormalizeFromUint8(RowOp):
    """A part of each image, mirrored where asked, as (pixel - mean) / std."""

    schema = "crop_mirror_normalize_from_uint8(in, mirror?) -> out"
    attrs = NORMALIZE

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        x = ctx.inputs[0]
        ctx.check(x.dtype is uint8, f"input of type {x}", "uint8")
        channels = check_color(ctx)
        ok = len(x.shape) == 4 and x.shape[3] == channels
        ctx.check(ok, f"shape {x.shape}", f"(count, height, width, {channels})")
        _mirror(ctx)
        wanted = (ctx.attrs["crop_h"], ctx.attrs["crop_w"])
        height, width = x.shape[1:3]
        if all(wanted):
            height, width = min(wanted[0], height), min(wanted[1], width)
        return _normalized(ctx, height, width)


class ImageBatchAlign(RowOp):
    """Copy images to the upper left corner of a batch of zeros."""

    schema = "image_batch_align(in) -> out"
    attrs = {"shape": REQUIRED, "data_type": REQUIRED, "alignment": REQUIRED}

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        n = require_buffers(ctx).shape[0]
        shape, alignment = tuple(ctx.attrs["shape"]), ctx.attrs["alignment"]
        ctx.check(len(shape) == 3, f"shape {shape}", "(height, width, channels)")
        power = alignment >= 0 and alignment & (alignment - 1) == 0
        ctx.check(power, f"alignment {alignment}", "a power of two, or 0")
        _pixel_type(ctx)
        return (dense(n, shape, as_dtype(ctx.attrs["data_type"])),)


class ImageNormalize(RowOp):
    """Compute (pixel - mean) / std of floating images."""

    schema = "image_normalize(in) -> out"
    attrs = {"std": REQUIRED, "mean": REQUIRED}

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        same = len(ctx.attrs["std"]) == len(ctx.attrs["mean"])
        ctx.check(same, "std and mean of different lengths", "one number per channel in both")
        return (require_buffers(ctx),)


class ImageFlip(RowOp):
    """Flip images by a code for each or for all: 0x01 horizontally, 0x10 vertically."""

    schema = "image_flip(in, flip_code?) -> out"
    attrs = {"code": 0}

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        require_equal_counts(ctx)
        return (require_buffers(ctx),)


OPS = specs(
    ImageDecode, ImageResizeToFixed, ImageResizeKeepAspectRatio, ImageRandomCrop,
    CropMirrorNormalizeFromTensorbuffer, CropMirrorNormalizeFromUint8, ImageBatchAlign,
    ImageNormalize, ImageFlip,
)  # fmt: skip
