"""Op specs of decoders, which convert fields of records to arrays."""

from __future__ import annotations

from flow_core.authoring.op_rules import specs
from flow_core.authoring.specs import REQUIRED, InferContext, TensorType
from flow_core.base.dtypes import as_dtype, float32, uint8
from flow_data.codec import COLORS
from flow_data.specs.rules import RowOp, dense, ragged, require_records

RANDOM_CROP = {
    "num_attempts": 10,
    "seed": -1,
    "has_seed": False,
    "random_area": (0.08, 1.0),
    "random_aspect_ratio": (0.75, 1.333333),
    "region": None,
}


def _numbers(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = tuple(ctx.attrs["shape"])
    ctx.check(all(n > 0 for n in shape), f"shape {shape}", "positive sizes")
    return (dense(require_records(ctx), shape, as_dtype(ctx.attrs["data_type"])),)


def _ragged(ctx: InferContext) -> tuple[TensorType, ...]:
    return (ragged(require_records(ctx)),)


def check_color(ctx: InferContext) -> int:
    """Check the op's color space and return its number of channels."""
    color = ctx.attrs["color_space"]
    ctx.check(color in COLORS, f"color_space {color!r}", ", ".join(COLORS))
    return 1 if color == "GRAY" else 3


def check_crop(ctx: InferContext) -> None:
    """Check the attributes that limit random crops."""
    low, high = ctx.attrs["random_area"]
    narrow, wide = ctx.attrs["random_aspect_ratio"]
    ctx.check(0 < low <= high <= 1, f"random_area {(low, high)}", "0 < low <= high <= 1")
    ctx.check(0 < narrow <= wide, f"random_aspect_ratio {(narrow, wide)}", "0 < low <= high")


def _image(ctx: InferContext) -> tuple[TensorType, ...]:
    check_color(ctx)
    if "random_area" in ctx.attrs:
        check_crop(ctx)
    return _ragged(ctx)


_ONEREC_TYPES = ("int8", "int32", "int64", "float32", "float64")


class OfrecordRawDecoder(RowOp):
    """Decode a field of numbers, or of bytes as numbers."""

    schema = "ofrecord_raw_decoder(in) -> out"
    infer = staticmethod(_numbers)
    attrs = {
        "field": REQUIRED, "shape": REQUIRED, "data_type": REQUIRED, "dim1_varying_length": False,
        "auto_zero_padding": False,
    }  # fmt: skip


class OfrecordBytesDecoder(RowOp):
    """Return a field of bytes."""

    schema = "ofrecord_bytes_decoder(in) -> out"
    infer = staticmethod(_ragged)
    attrs = {"field": REQUIRED}


class RecordDecoder(RowOp):
    """Decode a field of bytes by a plugin's decoder, a lazy "module:function"."""

    schema = "record_decoder(in) -> out"
    attrs = {"field": REQUIRED, "decoder": REQUIRED, "data_type": REQUIRED, "shape": None}

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        return _ragged(ctx) if ctx.attrs["shape"] is None else _numbers(ctx)


class OfrecordImageDecoder(RowOp):
    """Decode a field with an image file: uint8 (height, width, channels)."""

    schema = "ofrecord_image_decoder(in) -> out"
    infer = staticmethod(_image)
    attrs = {"field": REQUIRED, "color_space": "BGR"}


class OfrecordImageDecoderRandomCrop(RowOp):
    """Decode a random crop of a field with an image file."""

    schema = "ofrecord_image_decoder_random_crop(in) -> out"
    infer = staticmethod(_image)
    attrs = {"field": REQUIRED, "color_space": "BGR", **RANDOM_CROP}
    random = True


class OfrecordBlobDecoder(RowOp):
    """One blob of the deprecated decode_ofrecord: a codec, then preprocessing steps."""

    schema = "ofrecord_blob_decoder(in) -> out"
    attrs = {
        "field": REQUIRED, "shape": REQUIRED, "data_type": REQUIRED, "codec": REQUIRED,
        "auto_zero_padding": False, "image_steps": (), "steps": (),
    }  # fmt: skip

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        codec = ctx.attrs["codec"]
        ctx.check(
            codec in ("image", "raw", "bytes_list"), f"codec {codec!r}", "image, raw, bytes_list"
        )
        dtype = as_dtype(ctx.attrs["data_type"])
        if codec == "image":
            shape = tuple(ctx.attrs["shape"])
            ctx.check(dtype in (float32, uint8), f"images of {dtype}", "float32 or uint8")
            ctx.check(len(shape) == 3, f"shape {shape}", "(height, width, channels)")
        return _numbers(ctx)


class OnerecDecoder(RowOp):
    """Decode a tensor of OneRec records, optionally padded with zeros."""

    schema = "onerec_decoder(in) -> out"
    attrs = {
        "key": REQUIRED, "data_type": REQUIRED, "shape": REQUIRED, "is_dynamic": False,
        "reshape": None, "batch_padding": None,
    }  # fmt: skip

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        shape, dtype = tuple(ctx.attrs["shape"]), as_dtype(ctx.attrs["data_type"])
        ctx.check(dtype.name in _ONEREC_TYPES, f"dtype {dtype}", ", ".join(_ONEREC_TYPES))
        for name in ("reshape", "batch_padding"):
            sizes = ctx.attrs[name]
            same = sizes is None or len(sizes) == len(shape)
            ctx.check(same, f"{name} {sizes} of shape {shape}", "as many sizes")
        sizes = ctx.attrs["reshape"] or ()
        valid = all(n > 0 or n == -1 for n in sizes) and list(sizes).count(-1) <= 1
        ctx.check(valid, f"reshape {sizes}", "positive sizes, one of which may be -1")
        first, *others = ctx.attrs["batch_padding"] or (0,)
        valid = -1 <= first <= (shape[0] if shape else 0) and not any(others)
        allowed = "-1, 0 or a size up to the shape's, then zeros"
        ctx.check(valid, f"batch_padding {ctx.attrs['batch_padding']}", allowed)
        return _numbers(ctx)


OPS = specs(
    OfrecordRawDecoder, OfrecordBytesDecoder, RecordDecoder, OfrecordImageDecoder,
    OfrecordImageDecoderRandomCrop, OfrecordBlobDecoder, OnerecDecoder,
)  # fmt: skip
