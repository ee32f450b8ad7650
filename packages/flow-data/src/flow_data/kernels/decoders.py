"""Kernels that decode fields of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import AttrValue, BindContext, load
from flow_core.base.dtypes import as_dtype
from flow_data import codec
from flow_data.formats import failure
from flow_data.instances import Array
from flow_data.kernels.crops import RowDraws, crop_box, crop_limits
from flow_data.records.record import Record, corrupt
from flow_data.rows import StepLaunch, for_each_instance, for_each_row


def numbers_into(record: Record, name: str, out: Array, varying: bool, padded: bool) -> None:
    """Write the numbers of a field to a flat array; in a field of bytes, each byte is a number.

    Numbers that the array's type does not have, such as 1.5 or 300 in int8, are refused, and so are
    texts. With ``varying`` or ``padded``, a field without values, or absent from a record that need
    not have all fields, counts as empty.
    """
    shorter = varying or padded
    if shorter and record.sparse and name not in record.fields:
        out[:] = 0
        return
    kind, values = record.field(name)
    if kind == "text_list":
        hint = "write numbers, or read the text with ofrecord_bytes_decoder"
        raise corrupt(record.origin, f"a text in {name!r}", "numbers", hint)
    if kind == "bytes_list" and values:
        values = np.frombuffer(record.blob(name), np.uint8)[: out.size]
        if out.dtype != np.uint8 and values.max(initial=0) > _LARGEST:
            hint = "decode to uint8; OneFlow reads such bytes as negative numbers"
            found = f"a byte of {values.max()} in {name!r}"
            raise corrupt(record.origin, found, f"bytes up to {_LARGEST}", hint)
    large = isinstance(values, tuple) and kind == "int64_list" and max(values, default=0) >= 2**63
    values = np.asarray(values, np.uint64 if large else None).reshape(-1)
    count = len(values)
    if count > out.size or (count < out.size and not shorter):
        raise _wrong_count(record, name, count, out.size)
    with np.errstate(invalid="ignore", over="ignore"):
        out[:count] = values
    _check_values(record, name, out[:count], values)
    out[count:] = 0


_LARGEST = 127
"""The largest byte that is the same number in uint8 and in OneFlow's int8."""


def _check_values(record: Record, name: str, out: Array, values: Array) -> None:
    """Check that numbers have been converted without a change, apart from rounding to floats."""
    if np.issubdtype(out.dtype, np.integer):
        wrong = out != values
    elif values.dtype.kind == "f" and out.dtype.itemsize < values.dtype.itemsize:
        wrong = np.isfinite(values) & ~np.isfinite(out.astype(values.dtype))
    else:
        return
    if wrong.any():
        found = f"{values[wrong][0]} in {name!r}"
        raise corrupt(record.origin, found, f"numbers of {out.dtype}", "pass another dtype")


def _wrong_count(record: Record, name: str, found: int, wanted: int) -> Exception:
    hint = "pass the right shape, or auto_zero_padding=True for shorter fields"
    return corrupt(record.origin, f"{found} numbers in {name!r}", f"{wanted}", hint)


def raw(ctx: BindContext) -> Launch:
    """Return a launch that decodes a field of numbers to rows of the output."""
    records, out = ctx.inputs[0], ctx.outputs[0]
    flat = out.reshape(len(out), -1)
    name = ctx.attrs["field"]
    varying, padded = ctx.attrs["dim1_varying_length"], ctx.attrs["auto_zero_padding"]

    def one(row: int) -> None:
        numbers_into(records[row], name, flat[row], varying, padded)

    return for_each_row("ofrecord_raw_decoder", len(out), one)


def bytes_instances(ctx: BindContext) -> Launch:
    """Return a launch that copies a field of bytes to uint8 instances."""
    name = ctx.attrs["field"]

    def decode(record: Record) -> Array:
        return np.frombuffer(record.blob(name), np.uint8)

    return for_each_instance("ofrecord_bytes_decoder", ctx.inputs[0], ctx.outputs[0], decode)


def decoded(ctx: BindContext) -> Launch:
    """Return a launch of a plugin's decoder, which writes rows of the output or instances."""
    records, out, attrs = ctx.inputs[0], ctx.outputs[0], ctx.attrs
    decode, dtype = load(attrs["decoder"]), as_dtype(attrs["data_type"]).numpy

    def one(row: int) -> None:
        array = _called(decode, records[row], attrs).astype(dtype, copy=False)
        if attrs["shape"] is not None and array.shape != out.shape[1:]:
            raise corrupt(
                records[row].origin,
                f"an array {array.shape} in {attrs['field']!r}",
                f"shape {out.shape[1:]}",
                "pass the right shape, or none for samples of several shapes",
            )
        out[row] = array

    return for_each_row("record_decoder", len(out), one)


def _called(
    decode: Callable[[bytes], Any], record: Record, attrs: Mapping[str, AttrValue]
) -> Array:
    """Call a decoder; convert the decoder's exceptions to errors about the record."""
    data = record.blob(attrs["field"])
    try:
        return np.asarray(decode(data))
    except Exception as error:  # decoders raise many types
        found = f"{len(data)} bytes in {attrs['field']!r}: {type(error).__name__}: {error}"
        decoder = attrs["decoder"]
        allowed = f"bytes that {decoder} takes"
        made = failure(error, record.origin, decoder, "decoders", found, allowed)
        raise made from error


def decode_field(record: Record, name: str, color_space: str) -> Array:
    """Decode the image file in a field."""
    data = record.blob(name)
    try:
        return codec.decode(data, color_space)
    except ValueError as error:
        found = f"{len(data)} bytes in {name!r}: {error}"
        raise corrupt(record.origin, found, "a JPEG, PNG or other image file") from error


def image(ctx: BindContext) -> Launch:
    """Return a launch that decodes the image files in a field."""
    name, color = ctx.attrs["field"], ctx.attrs["color_space"]

    def decode(record: Record) -> Array:
        return decode_field(record, name, color)

    return for_each_instance("ofrecord_image_decoder", ctx.inputs[0], ctx.outputs[0], decode)


def image_random_crop(ctx: BindContext) -> Sequence[Launch]:
    """Return launches that decode random crops of the image files in a field."""
    records, out = ctx.inputs[0], ctx.outputs[0]
    name, color, limits = ctx.attrs["field"], ctx.attrs["color_space"], crop_limits(ctx.attrs)
    draws = RowDraws(ctx, len(out), limits.draws)

    def one(row: int) -> None:
        pixels = decode_field(records[row], name, color)
        top, left, h, w = crop_box(pixels.shape[:2], limits, draws.numbers[row].tolist())
        out[row] = pixels[top : top + h, left : left + w]

    return (
        StepLaunch(draws.draw),
        for_each_row("ofrecord_image_decoder_random_crop", len(out), one),
    )


# ------------------------------------------------------------------------------------ OneRec

_ONEREC_LISTS = {
    "int8": "int8_list",
    "int32": "int32_list",
    "int64": "int64_list",
    "float32": "float_list",
    "float64": "double_list",
}


def onerec(ctx: BindContext) -> Launch:
    """Return a launch that copies tensors to rows of the output and pads them with zeros."""
    records, out, attrs = ctx.inputs[0], ctx.outputs[0], ctx.attrs
    low, high = _limits(out.shape[1:], attrs)

    def one(row: int) -> None:
        values = _tensor_of(records[row], attrs)
        fits = values.ndim == len(high) and all(
            a <= n <= b for a, n, b in zip(low, values.shape, high, strict=True)
        )
        if not fits:
            allowed = f"shapes from {low} to {high}"
            found = f"shape {values.shape} of {attrs['key']!r}"
            hint = "pass the right shape, reshape, batch_padding or is_dynamic"
            raise corrupt(records[row].origin, found, allowed, hint)
        if values.shape != out.shape[1:]:
            out[row] = 0
        out[row, ...][tuple(map(slice, values.shape))] = values

    return for_each_row("onerec_decoder", len(out), one)


def _limits(
    shape: tuple[int, ...], attrs: Mapping[str, AttrValue]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the minimum and maximum sizes of a sample."""
    padding = (attrs["batch_padding"] or (0,))[0]
    high = (padding, *shape[1:]) if padding > 0 else shape
    if attrs["is_dynamic"]:
        return (0,) * len(shape), high
    return (0, *shape[1:]) if padding else shape, high


def _tensor_of(record: Record, attrs: Mapping[str, AttrValue]) -> Array:
    kind, values = record.field(attrs["key"])
    wanted = _ONEREC_LISTS[attrs["data_type"]]
    if kind != wanted:
        raise corrupt(record.origin, f"{kind} in {attrs['key']!r}", wanted, "pass the right dtype")
    return values if attrs["reshape"] is None else values.reshape(attrs["reshape"])


# --------------------------------------------------------------------------- decode_ofrecord

Step = tuple[Any, ...]


_IMAGE_STEPS: dict[str, Callable[..., Array]] = {
    "resize": lambda x, width, height: codec.resize(x, width, height, "bilinear"),
    "bgr2rgb": lambda x: x[..., ::-1],
    "mirror": lambda x: x[:, ::-1],
}


def _normalize(out: Array, mean: Sequence[float], std: Sequence[float], layout: str) -> None:
    per_channel = (-1, 1, 1) if layout == "channels_first" else (-1,)
    out -= np.asarray(mean, out.dtype).reshape(per_channel)
    out /= np.asarray(std, out.dtype).reshape(per_channel)


def blob(ctx: BindContext) -> Launch:
    """Return a launch that decodes one blob of the deprecated ``decode_ofrecord``."""
    records, out, attrs = ctx.inputs[0], ctx.outputs[0], ctx.attrs
    fill = {"image": _fill_image, "raw": _fill_numbers, "bytes_list": _fill_numbers}[attrs["codec"]]

    def one(row: int) -> None:
        sample = out[row, ...]  # an array even for a scalar
        fill(records[row], sample, attrs)
        for _, *arguments in attrs["steps"]:
            _normalize(sample, *arguments)

    return for_each_row("ofrecord_blob_decoder", len(out), one)


def _fill_image(record: Record, out: Array, attrs: Mapping[str, AttrValue]) -> None:
    pixels = decode_field(record, attrs["field"], "BGR" if out.shape[-1] == 3 else "GRAY")
    for kind, *arguments in attrs["image_steps"]:
        pixels = _IMAGE_STEPS[kind](pixels, *arguments)
    if pixels.shape != out.shape:
        found = f"an image {pixels.shape} in {attrs['field']!r}"
        hint = "add an ImageResizePreprocessor to the codec"
        raise corrupt(record.origin, found, f"shape {out.shape}", hint)
    np.copyto(out, pixels, casting="unsafe")


def _fill_numbers(record: Record, out: Array, attrs: Mapping[str, AttrValue]) -> None:
    padded = attrs["auto_zero_padding"] or attrs["codec"] == "bytes_list"
    if not attrs["auto_zero_padding"]:
        record.field(attrs["field"])  # its bytes may be short, but not absent
    numbers_into(record, attrs["field"], out.reshape(prod(out.shape)), False, padded)
