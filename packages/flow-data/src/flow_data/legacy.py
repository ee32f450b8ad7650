"""The deprecated ``flow.data.decode_ofrecord``, with its codecs and preprocessors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from flow_core.authoring.specs import emit
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import InferenceError, UnsupportedError
from flow_data.readers import ofrecord_reader

Blob = Any


def _refuse(what: str, found: object, allowed: str) -> NoReturn:
    raise InferenceError.at_caller(what, found=found, allowed=allowed)


def _message(what: object, proto: Any) -> Any:
    """Return the message that the caller passed; raise `UnsupportedError` for None."""
    if proto is None:
        raise UnsupportedError.at_caller(
            f"{type(what).__name__}.to_proto",
            found="no message to fill",
            allowed="a message with OneFlow's fields",
            hint="pass the object itself to flow.data.decode_ofrecord",
        )
    return proto


@dataclass(frozen=True)
class ImagePreprocessor:
    """A preprocessing step: "bgr2rgb" reverses the channels, "mirror" flips horizontally.

    Attributes:
        preprocessor: the name of the step.
    """

    preprocessor: str

    def __post_init__(self) -> None:
        if self.preprocessor.lower() not in ("bgr2rgb", "mirror"):
            _refuse("ImagePreprocessor", repr(self.preprocessor), '"bgr2rgb" or "mirror"')

    @property
    def literal(self) -> tuple[Any, ...]:
        """The preprocessing step as the value of an op attribute."""
        return (self.preprocessor.lower(),)

    def to_proto(self, proto: Any = None) -> Any:
        """Fill a message of OneFlow's type with the preprocessing step; return the message."""
        proto = _message(self, proto)
        getattr(proto, self.preprocessor.lower()).SetInParent()
        return proto


@dataclass(frozen=True)
class ImageResizePreprocessor:
    """A preprocessing step that resizes an image.

    Attributes:
        width, height: the new size.
    """

    width: int
    height: int

    @property
    def literal(self) -> tuple[Any, ...]:
        """The preprocessing step as the value of an op attribute."""
        return ("resize", self.width, self.height)

    def to_proto(self, proto: Any = None) -> Any:
        """Fill a message of OneFlow's type with the preprocessing step; return the message."""
        proto = _message(self, proto)
        proto.resize.width, proto.resize.height = self.width, self.height
        return proto


@dataclass(frozen=True)
class NormByChannelPreprocessor:
    """A preprocessing step that computes ``(x - mean) / std`` per channel.

    Attributes:
        mean_values, std_values: one number per channel.
        data_format: "channels_last" or "channels_first".
    """

    mean_values: Sequence[float]
    std_values: Sequence[float] = (1.0, 1.0, 1.0)
    data_format: str = "channels_last"

    def __post_init__(self) -> None:
        if self.data_format not in ("channels_last", "channels_first"):
            _refuse("NormByChannelPreprocessor", self.data_format, "channels_last, channels_first")

    @property
    def literal(self) -> tuple[Any, ...]:
        """The preprocessing step as the value of an op attribute."""
        mean, std = tuple(map(float, self.mean_values)), tuple(map(float, self.std_values))
        return ("normalize", mean, std, self.data_format)

    def to_proto(self, proto: Any = None) -> Any:
        """Fill a message of OneFlow's type with the preprocessing step; return the message."""
        proto = _message(self, proto)
        proto.norm_by_channel_conf.mean_value.extend(self.mean_values)
        proto.norm_by_channel_conf.std_value.extend(self.std_values)
        proto.norm_by_channel_conf.data_format = self.data_format
        return proto


@dataclass(frozen=True)
class ImageCodec:
    """A codec that decodes an image file to BGR.

    Attributes:
        image_preprocessors: preprocessing steps on the decoded image.
    """

    image_preprocessors: Sequence[ImagePreprocessor | ImageResizePreprocessor] | None = None
    kind: str = field(default="image", init=False)

    @property
    def steps(self) -> tuple[tuple[Any, ...], ...]:
        """The steps in the form of an op attribute."""
        return tuple(p.literal for p in self.image_preprocessors or ())

    def to_proto(self, proto: Any = None) -> Any:
        """Fill a message of OneFlow's type with the codec and the steps, and return it."""
        proto = _message(self, proto)
        proto.jpeg.SetInParent()
        for step in self.image_preprocessors or ():
            step.to_proto(proto.jpeg.preprocess.add())
        return proto


@dataclass(frozen=True)
class RawCodec:
    """A codec that decodes numbers.

    Attributes:
        auto_zero_padding: whether shorter fields are padded with zeros.
    """

    auto_zero_padding: bool = False
    kind: str = field(default="raw", init=False)

    def to_proto(self, proto: Any = None) -> Any:
        """Fill a message of OneFlow's type with the codec, and return it."""
        proto = _message(self, proto)
        proto.raw.dim1_varying_length = False
        proto.raw.auto_zero_padding = self.auto_zero_padding
        return proto


@dataclass(frozen=True)
class BytesListCodec:
    """A codec that decodes bytes and pads them with zeros."""

    kind: str = field(default="bytes_list", init=False)

    def to_proto(self, proto: Any = None) -> Any:
        """Fill a message of OneFlow's type with the codec, and return it."""
        proto = _message(self, proto)
        proto.bytes_list.SetInParent()
        return proto


@dataclass(frozen=True)
class BlobConf:
    """The description of one blob of `decode_ofrecord`.

    Attributes:
        name: name of the field.
        shape: shape of a sample.
        dtype: element type of the blob.
        codec: the encoding of the field.
        preprocessors: preprocessing steps on the decoded array.
    """

    name: str
    shape: Sequence[int]
    dtype: Any
    codec: ImageCodec | RawCodec | BytesListCodec
    preprocessors: Sequence[Any] | None = None


def decode_ofrecord(
    ofrecord_dir: str,
    blobs: Sequence[BlobConf],
    batch_size: int = 1,
    data_part_num: int = 1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    shuffle: bool = False,
    buffer_size: int = 1024,
    name: str | None = None,
    *,
    on_error: str = "raise",
) -> tuple[Blob, ...]:
    """Read and decode records; deprecated: use `ofrecord_reader` and separate decoders.

    Args:
        blobs: the fields to decode.
        shuffle: whether to shuffle within a buffer.
        buffer_size: number of records in the buffer.

    See `ofrecord_reader` for the other arguments.

    Returns:
        One tensor for each blob, of shape (batch_size, ...).
    """
    records = ofrecord_reader(
        ofrecord_dir,
        batch_size,
        data_part_num,
        part_name_prefix,
        part_name_suffix_length,
        shuffle,
        buffer_size,
        name=name,
        on_error=on_error,
    )
    return tuple(_decode(records, blob) for blob in blobs)


def _decode(records: Blob, blob: BlobConf) -> Blob:
    steps = list(blob.preprocessors or ())
    image_steps = [s for s in steps if not isinstance(s, NormByChannelPreprocessor)]
    if image_steps and not isinstance(blob.codec, ImageCodec):
        _refuse(f"blob {blob.name!r}", f"{image_steps[0]} on {blob.codec}", "an ImageCodec")
    codec_steps = blob.codec.steps if isinstance(blob.codec, ImageCodec) else ()
    return emit(
        "ofrecord_blob_decoder",
        records,
        field=blob.name,
        shape=tuple(blob.shape),
        data_type=as_dtype(blob.dtype).name,
        codec=blob.codec.kind,
        auto_zero_padding=isinstance(blob.codec, RawCodec) and blob.codec.auto_zero_padding,
        image_steps=(*codec_steps, *(s.literal for s in image_steps)),
        steps=tuple(s.literal for s in steps if isinstance(s, NormByChannelPreprocessor)),
    )
