"""Kernels that decode the fields of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, load
from flow_core.base.dtypes import as_dtype
from flow_data import codec
from flow_data.instances import Array
from flow_data.kernels.crops import RowDraws, crop_box, limits_of
from flow_data.records.record import Record, corrupt
from flow_data.rows import FromStep, each, each_instance


def numbers_into(record: Record, name: str, out: Array, varying: bool, padded: bool) -> None:
    """Writes a field's numbers into a flat array; bytes count as one number each."""
    kind, values = record.field(name)
    if kind == "bytes_list":
        data = np.frombuffer(record.blob(name), np.int8)[: out.size]
        if data.size < out.size and not (varying or padded):
            raise _wrong_count(record, name, data.size, out.size)
        count = data.size
        np.copyto(out[:count], data, casting="unsafe")
    else:
        values = values.reshape(-1) if isinstance(values, np.ndarray) else values
        count = len(values)
        if count > out.size or (count < out.size and not (varying or padded)):
            raise _wrong_count(record, name, count, out.size)
        out[:count] = values
    out[count:] = 0


def _wrong_count(record: Record, name: str, found: int, wanted: int) -> Exception:
    hint = "give the right shape, or auto_zero_padding=True for shorter fields"
    return corrupt(record.origin, f"{found} numbers in {name!r}", f"{wanted}", hint)


def raw(ctx: BindContext) -> Launch:
    """A field of numbers as rows of the output."""
    records, out = ctx.inputs[0], ctx.outputs[0]
    flat = out.reshape(len(out), -1)
    name = ctx.attrs["field"]
    varying, padded = ctx.attrs["dim1_varying_length"], ctx.attrs["auto_zero_padding"]

    def one(row: int) -> None:
        numbers_into(records[row], name, flat[row], varying, padded)

    return each("ofrecord_raw_decoder", len(out), one)


def bytes_of(ctx: BindContext) -> Launch:
    """A field of bytes as uint8 instances."""
    name = ctx.attrs["field"]

    def decode(record: Record) -> Array:
        return np.frombuffer(record.blob(name), np.uint8)

    return each_instance("ofrecord_bytes_decoder", ctx.inputs[0], ctx.outputs[0], decode)


def decoded(ctx: BindContext) -> Launch:
    """What a plugin's decoder makes of a field of bytes: rows of the output, or instances."""
    records, out, attrs = ctx.inputs[0], ctx.outputs[0], ctx.attrs
    decode, dtype = load(attrs["decoder"]), as_dtype(attrs["data_type"]).numpy

    def one(row: int) -> None:
        array = _called(decode, records[row], attrs).astype(dtype, copy=False)
        if attrs["shape"] is not None and array.shape != out.shape[1:]:
            raise corrupt(
                records[row].origin,
                f"an array {array.shape} in {attrs['field']!r}",
                f"shape {out.shape[1:]}",
                "give the right shape, or none for samples of several",
            )
        out[row] = array

    return each("record_decoder", len(out), one)


def _called(decode: Callable[[bytes], Any], record: Record, attrs: Any) -> Array:
    """The array of a record; what the decoder raises is about the record."""
    data = record.blob(attrs["field"])
    try:
        return np.asarray(decode(data))
    except Exception as error:  # foreign code
        found = f"{len(data)} bytes in {attrs['field']!r}: {type(error).__name__}: {error}"
        raise corrupt(record.origin, found, f"bytes that {attrs['decoder']} takes") from error


def pixels_of(record: Record, name: str, color_space: str) -> Array:
    """The pixels of a field that holds an image file."""
    data = record.blob(name)
    try:
        return codec.decode(data, color_space)
    except ValueError as error:
        found = f"{len(data)} bytes in {name!r}: {error}"
        raise corrupt(record.origin, found, "a JPEG, PNG or other image file") from error


def image(ctx: BindContext) -> Launch:
    """Encoded images as pixels."""
    name, color = ctx.attrs["field"], ctx.attrs["color_space"]

    def decode(record: Record) -> Array:
        return pixels_of(record, name, color)

    return each_instance("ofrecord_image_decoder", ctx.inputs[0], ctx.outputs[0], decode)


def image_random_crop(ctx: BindContext) -> Sequence[Launch]:
    """Random parts of encoded images."""
    records, out = ctx.inputs[0], ctx.outputs[0]
    name, color, limits = ctx.attrs["field"], ctx.attrs["color_space"], limits_of(ctx.attrs)
    draws = RowDraws(ctx, len(out), limits.draws)

    def one(row: int) -> None:
        pixels = pixels_of(records[row], name, color)
        top, left, h, w = crop_box(pixels.shape[:2], limits, draws.numbers[row].tolist())
        out[row] = pixels[top : top + h, left : left + w]

    return (FromStep(draws.draw), each("ofrecord_image_decoder_random_crop", len(out), one))


# ------------------------------------------------------------------------------------ OneRec

_ONEREC_LISTS = {
    "int8": "int8_list",
    "int32": "int32_list",
    "int64": "int64_list",
    "float32": "float_list",
    "float64": "double_list",
}


def onerec(ctx: BindContext) -> Launch:
    """Tensors as rows of the output, in a corner of zeros where they may be smaller."""
    records, out, attrs = ctx.inputs[0], ctx.outputs[0], ctx.attrs
    least, most = _limits(out.shape[1:], attrs)

    def one(row: int) -> None:
        values = _tensor_of(records[row], attrs)
        fits = values.ndim == len(most) and all(
            low <= n <= high for low, n, high in zip(least, values.shape, most, strict=True)
        )
        if not fits:
            allowed = f"shapes from {least} to {most}"
            found = f"shape {values.shape} of {attrs['key']!r}"
            hint = "give the right shape, reshape, batch_padding or is_dynamic"
            raise corrupt(records[row].origin, found, allowed, hint)
        if values.shape != out.shape[1:]:
            out[row] = 0
        out[row, ...][tuple(map(slice, values.shape))] = values

    return each("onerec_decoder", len(out), one)


def _limits(shape: tuple[int, ...], attrs: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Least and largest sizes of a sample."""
    padding = (attrs["batch_padding"] or (0,))[0]
    most = (padding, *shape[1:]) if padding > 0 else shape
    if attrs["is_dynamic"]:
        return (0,) * len(shape), most
    return (0, *shape[1:]) if padding else shape, most


def _tensor_of(record: Record, attrs: Any) -> Array:
    kind, values = record.field(attrs["key"])
    wanted = _ONEREC_LISTS[attrs["data_type"]]
    if kind != wanted:
        raise corrupt(record.origin, f"{kind} in {attrs['key']!r}", wanted, "give the right dtype")
    return values if attrs["reshape"] is None else values.reshape(attrs["reshape"])


# --------------------------------------------------------------------------- decode_ofrecord

Step = tuple[Any, ...]


def _resize(x: Array, width: int, height: int) -> Array:
    return codec.resize(x, width, height, "bilinear")


_IMAGE_STEPS: dict[str, Callable[..., Array]] = {
    "resize": _resize,
    "bgr2rgb": lambda x: x[..., ::-1],
    "mirror": lambda x: x[:, ::-1],
}


def _normalize(out: Array, mean: Sequence[float], std: Sequence[float], layout: str) -> None:
    per_channel = (-1, 1, 1) if layout == "channels_first" else (-1,)
    out -= np.asarray(mean, out.dtype).reshape(per_channel)
    out /= np.asarray(std, out.dtype).reshape(per_channel)


def blob(ctx: BindContext) -> Launch:
    """A blob of the older decode_ofrecord."""
    records, out, attrs = ctx.inputs[0], ctx.outputs[0], ctx.attrs
    fill = {"image": _fill_image, "raw": _fill_numbers, "bytes_list": _fill_numbers}[attrs["codec"]]

    def one(row: int) -> None:
        sample = out[row, ...]  # an array also where it is a single number
        fill(records[row], sample, attrs)
        for _, *arguments in attrs["steps"]:
            _normalize(sample, *arguments)

    return each("ofrecord_blob_decoder", len(out), one)


def _fill_image(record: Record, out: Array, attrs: Any) -> None:
    pixels = pixels_of(record, attrs["field"], "BGR" if out.shape[-1] == 3 else "GRAY")
    for kind, *arguments in attrs["image_steps"]:
        pixels = _IMAGE_STEPS[kind](pixels, *arguments)
    if pixels.shape != out.shape:
        found = f"an image {pixels.shape} in {attrs['field']!r}"
        hint = "add an ImageResizePreprocessor to the codec"
        raise corrupt(record.origin, found, f"shape {out.shape}", hint)
    np.copyto(out, pixels, casting="unsafe")


def _fill_numbers(record: Record, out: Array, attrs: Any) -> None:
    padded = attrs["auto_zero_padding"] or attrs["codec"] == "bytes_list"
    numbers_into(record, attrs["field"], out.reshape(prod(out.shape)), False, padded)
