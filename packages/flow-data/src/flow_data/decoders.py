"""The decoders of ``flow.data``, which convert fields of records to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flow_core.authoring.specs import emit
from flow_core.base.dtypes import as_dtype, int32
from flow_data.formats import find_decoder
from flow_data.readers import ofrecord_reader

Blob = Any


def ofrecord_raw_decoder(
    input_blob: Blob,
    blob_name: str,
    shape: Sequence[int],
    dtype: Any,
    dim1_varying_length: bool = False,
    auto_zero_padding: bool = False,
    name: str | None = None,
) -> Blob:
    """Decode a field to a tensor; the field has numbers, or bytes that are read as numbers.

    A number that ``dtype`` does not have, such as 1.5 as an integer or 300 as int8, a text, and
    bytes above 127 unless ``dtype`` is uint8 are errors of the record; OneFlow converts them to
    other numbers.

    Args:
        input_blob: records.
        blob_name: name of the field.
        shape: shape of a sample.
        dtype: element type of the result.
        dim1_varying_length, auto_zero_padding: allow shorter fields, and pad them with zeros. In
            OFRecord and TFRecord files, this includes fields without values and absent fields.
        name: name of the op.
    """
    return emit(
        "ofrecord_raw_decoder",
        input_blob,
        name=name,
        **{
            "field": blob_name,
            "shape": tuple(shape),
            "data_type": as_dtype(dtype).name,
            "dim1_varying_length": dim1_varying_length,
            "auto_zero_padding": auto_zero_padding,
        },
    )


def ofrecord_bytes_decoder(input_blob: Blob, blob_name: str, name: str | None = None) -> Blob:
    """Return a field of bytes as uint8 instances of a TensorBuffer."""
    return emit("ofrecord_bytes_decoder", input_blob, field=blob_name, name=name)


def record_decoder(
    input_blob: Blob,
    blob_name: str,
    decoder: str,
    dtype: Any,
    shape: Sequence[int] | None = None,
    name: str | None = None,
) -> Blob:
    """Decode a field of bytes with the decoder of a plugin.

    Args:
        input_blob: records.
        blob_name: name of the field.
        decoder: the name under which a plugin registered the decoder.
        dtype: element type to which the decoder's result is cast.
        shape: shape of all samples; None if it varies.
        name: name of the op.

    Returns:
        A tensor of shape (records, *shape); without a shape, instances of a TensorBuffer.

    Raises:
        DataError: no plugin registered the decoder; or, in a step, the decoder rejects the bytes or
            returns another shape. The latter error has the file and the number of the record.
    """
    return emit(
        "record_decoder",
        input_blob,
        field=blob_name,
        decoder=find_decoder(decoder),
        data_type=as_dtype(dtype).name,
        shape=None if shape is None else tuple(shape),
        name=name,
    )


def ofrecord_image_decoder(
    input_blob: Blob, blob_name: str, color_space: str = "BGR", name: str | None = None
) -> Blob:
    """Decode the image file in a field to an instance of a TensorBuffer per record.

    Args:
        input_blob: records.
        blob_name: name of the field.
        color_space: "BGR", "RGB" or "GRAY".
        name: name of the op.

    Returns:
        uint8 instances (height, width, channels).
    """
    return emit(
        "ofrecord_image_decoder", input_blob, field=blob_name, color_space=color_space, name=name
    )


def crop_attrs(
    seed: int | None, num_attempts: int, area: Sequence[float], ratio: Sequence[float]
) -> dict[str, Any]:
    """Check the arguments of a random crop and return them as op attributes."""
    return {
        "num_attempts": num_attempts,
        "seed": -1 if seed is None else int(seed),
        "has_seed": seed is not None,
        "random_area": tuple(map(float, area)),
        "random_aspect_ratio": tuple(map(float, ratio)),
    }


def ofrecord_image_decoder_random_crop(
    input_blob: Blob,
    blob_name: str,
    color_space: str = "BGR",
    num_attempts: int = 10,
    seed: int | None = None,
    random_area: Sequence[float] = (0.08, 1.0),
    random_aspect_ratio: Sequence[float] = (0.75, 1.333333),
    name: str = "OFRecordImageDecoderRandomCrop",
) -> Blob:
    """Decode a random crop of the image file in a field.

    Args:
        input_blob: records.
        blob_name: name of the field.
        color_space: "BGR", "RGB" or "GRAY".
        num_attempts: number of random draws before the largest valid crop is used.
        seed: seed of the draws; by default derived from the job's seed and the op's name.
        random_area: minimum and maximum fraction of the image's area.
        random_aspect_ratio: minimum and maximum ratio of width to height.
        name: name of the op.
    """
    attrs = crop_attrs(seed, num_attempts, random_area, random_aspect_ratio)
    own_name = None if name == "OFRecordImageDecoderRandomCrop" else name
    return emit(
        "ofrecord_image_decoder_random_crop",
        input_blob,
        field=blob_name,
        color_space=color_space,
        name=own_name,
        **attrs,
    )


def image_decoder_random_crop_resize(
    input_blob: Blob,
    target_width: int,
    target_height: int,
    num_attempts: int | None = None,
    seed: int | None = None,
    random_area: Sequence[float] | None = None,
    random_aspect_ratio: Sequence[float] | None = None,
    num_workers: int | None = None,
    warmup_size: int | None = None,
    max_num_pixels: int | None = None,
    name: str | None = None,
) -> Blob:
    """Decode images, crop them at random, and resize the crops to one size.

    Args:
        input_blob: TensorBuffer of encoded image files, such as the result of
            `ofrecord_bytes_decoder`.
        target_width, target_height: size of the result.
        num_attempts, seed, random_area, random_aspect_ratio: see
            `ofrecord_image_decoder_random_crop`.
        num_workers, warmup_size, max_num_pixels: no effect, because the loader's threads decode.
        name: name of the op.

    Returns:
        A uint8 tensor (count, target_height, target_width, 3) in RGB.
    """
    pixels = emit("image_decode", input_blob, color_space="RGB", name=name)
    ratio = random_aspect_ratio or (0.75, 1.333333)
    attrs = crop_attrs(seed, num_attempts or 10, random_area or (0.08, 1.0), ratio)
    part = emit("image_random_crop", pixels, **attrs)
    resized = emit(
        "image_resize_to_fixed", part, target_width=target_width, target_height=target_height
    )
    return resized[0]


def onerec_decoder(
    input_blob: Blob,
    key: str,
    dtype: Any,
    shape: Sequence[int],
    is_dynamic: bool = False,
    reshape: Sequence[int] | None = None,
    batch_padding: Sequence[int] | None = None,
    name: str | None = None,
) -> Blob:
    """Decode a tensor of OneRec records, such as those of `onerec_reader`.

    Args:
        input_blob: records.
        key: name of the tensor.
        dtype: element type of the tensor: int8, int32, int64, float or double.
        shape: shape of a sample.
        is_dynamic: allow samples that are smaller along any axis, and pad them with zeros.
        reshape: shape to which samples are reshaped before padding; one size may be -1.
        batch_padding: padding per axis; only that of the first axis may be nonzero. -1 allows
            samples that are shorter than ``shape``; n limits their size to n. Shorter samples are
            padded with zeros.
        name: name of the op.
    """
    return emit(
        "onerec_decoder",
        input_blob,
        key=key,
        data_type=as_dtype(dtype).name,
        shape=tuple(shape),
        is_dynamic=is_dynamic,
        reshape=None if reshape is None else tuple(reshape),
        batch_padding=None if batch_padding is None else tuple(batch_padding),
        name=name,
    )


def ofrecord_image_classification_reader(
    ofrecord_dir: str,
    image_feature_name: str,
    label_feature_name: str,
    batch_size: int = 1,
    data_part_num: int = 1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    random_shuffle: bool = False,
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    color_space: str = "BGR",
    decode_buffer_size_per_thread: int = 32,
    num_decode_threads_per_machine: int | None = None,
    name: str | None = None,
    *,
    on_error: str = "raise",
) -> tuple[Blob, Blob]:
    """Read images and labels from OFRecord files.

    Args:
        image_feature_name: field of the encoded image.
        label_feature_name: field of the label.
        color_space: "BGR", "RGB" or "GRAY".
        decode_buffer_size_per_thread, num_decode_threads_per_machine: no effect; the environment
            variables FLOW_DATA_WORKERS and FLOW_DATA_PREFETCH configure all loaders.

    See `ofrecord_reader` for the other arguments.

    Returns:
        uint8 instances (height, width, channels), and int32 labels (batch_size,).
    """
    records = ofrecord_reader(
        ofrecord_dir,
        batch_size,
        data_part_num,
        part_name_prefix,
        part_name_suffix_length,
        random_shuffle,
        shuffle_buffer_size,
        shuffle_after_epoch,
        name=name,
        on_error=on_error,
    )
    image = ofrecord_image_decoder(records, image_feature_name, color_space)
    label = ofrecord_raw_decoder(records, label_feature_name, (1,), int32)
    return image, emit("reshape", label, shape=(batch_size,))


OneRecDecoder = onerec_decoder
OFRecordRawDecoder = ofrecord_raw_decoder
OFRecordBytesDecoder = ofrecord_bytes_decoder
OFRecordImageDecoder = ofrecord_image_decoder
OFRecordImageDecoderRandomCrop = ofrecord_image_decoder_random_crop
ImageDecoderRandomCropResize = image_decoder_random_crop_resize
