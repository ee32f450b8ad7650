"""Image sizes are read from headers and limited before decoding."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flow_core.base.dtypes import tensor_buffer
from flow_core.base.errors import ConfigError
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.plugins.specs import BindContext, KernelQuery
from flow_data import codec, headers
from flow_data.headers import SCANS_AT_LIMIT, SETTING, check_header
from flow_data.instances import RowError
from flow_data.kernels import decoders, images
from flow_data.records.record import Origin, Record

KINDS: list[tuple[str, str, dict[str, Any]]] = [
    ("JPEG", "RGB", {}), ("JPEG", "L", {"progressive": True}), ("JPEG", "CMYK", {}),
    ("PNG", "RGBA", {}), ("PNG", "1", {}), ("PNG", "RGB", {"save_all": True}),
    ("GIF", "P", {}), ("BMP", "RGB", {}), ("BMP", "1", {}),
    ("WEBP", "RGB", {}), ("WEBP", "RGBA", {"lossless": True}), ("WEBP", "RGB", {"save_all": True}),
    ("TIFF", "RGB", {}), ("PPM", "L", {}),
]  # fmt: skip


def picture(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    image = Image.new("RGB", (34, 21), (200, 30, 90)).convert(mode)
    if "save_all" in options:
        options["append_images"] = [image.rotate(180)]
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_of(width: int, height: int) -> bytes:
    """Return a file of about 70 bytes whose header declares a size."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(9))), (b"IEND", b"")]
    made = b"\x89PNG\r\n\x1a\n"
    for name, body in chunks:
        crc = zlib.crc32(name + body)
        made += struct.pack(">I", len(body)) + name + body + struct.pack(">I", crc)
    return made


def enlarged(kind: str) -> bytes:
    """Return a small image whose header declares far more pixels."""
    data = bytearray(picture(kind))
    if kind == "PNG":
        return png_of(65000, 65000)
    if kind == "JPEG":
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", 65000, 65000)
    elif kind == "GIF":
        data[6:10] = struct.pack("<HH", 65000, 65000)
    elif kind == "BMP":
        data[18:26] = struct.pack("<ii", 65000, -65000)
    elif kind == "WEBP":
        data[26:30] = struct.pack("<HH", 16383, 16383)
    elif kind == "PPM":
        data = bytearray(data.replace(b"34 21", b"9000 9000"))
    return bytes(data)


BOMBS = {kind: enlarged(kind) for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "PPM")}


@pytest.mark.parametrize(("kind", "mode", "options"), KINDS)
def test_limit_applies_to_the_actual_size(
    kind: str, mode: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = picture(kind, mode, **options)
    monkeypatch.setenv(SETTING, "714")
    check_header(data)
    assert codec.decode(data).shape == (21, 34, 3)
    monkeypatch.setenv(SETTING, "713")
    with pytest.raises(ValueError, match="34 x 21 pixels; FLOW_DATA_MAX_PIXELS allows 713"):
        codec.decode(data)


@pytest.fixture
def no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make any use of a decoder fail."""

    def used(*_: Any) -> None:
        raise AssertionError("a decoder was called")

    for name in ("_by_turbo", "_by_opencv", "_by_pillow"):
        monkeypatch.setattr(codec, name, used)


@pytest.mark.usefixtures("no_decoder")
@pytest.mark.parametrize("kind", BOMBS)
def test_oversized_image_reaches_no_decoder(kind: str) -> None:
    assert len(BOMBS[kind]) < 2500
    with pytest.raises(ValueError, match="FLOW_DATA_MAX_PIXELS"):
        codec.decode(BOMBS[kind])


@pytest.mark.usefixtures("no_decoder")
@pytest.mark.parametrize("op", ["image_decode", "ofrecord_image_decoder", "crop", "blob"])
def test_limit_applies_to_all_decoding_ops(op: str) -> None:
    record = Record(
        {"x": BOMBS["PNG"]}, Origin("a", 0, 0), lambda f: {"x": ("bytes_list", (f["x"],))}
    )
    rows = np.empty(1, object)
    rows[0] = np.frombuffer(BOMBS["PNG"], np.uint8) if op == "image_decode" else record
    attrs = {
        "field": "x", "color_space": "RGB", "data_type": "uint8", "num_attempts": 1, "seed": 1,
        "has_seed": True, "random_area": (0.1, 1.0), "random_aspect_ratio": (0.7, 1.4),
        "region": None, "codec": "image", "steps": (), "image_steps": (),
    }  # fmt: skip
    bind = {
        "image_decode": images.decode,
        "ofrecord_image_decoder": decoders.image,
        "crop": decoders.image_random_crop,
        "blob": decoders.blob,
    }[op]
    out = np.empty((1, 4, 4, 3), np.float32) if op == "blob" else np.empty(1, object)
    kind = tensor_type((1,), tensor_buffer)
    query = KernelQuery(op, Attrs(attrs), (kind,), (kind,))
    bound: Any = bind(BindContext(query, (rows,), (out,), step=np.zeros((), np.int64), seed=1))
    *before, launch = bound if isinstance(bound, tuple) else (bound,)
    for other in before:
        other()
    with pytest.raises(RowError, match="65000 x 65000 pixels"):
        launch()


def test_frame_must_not_exceed_an_allowed_canvas() -> None:
    data = bytearray(picture("GIF"))
    at = data.index(b"\x2c", 13)
    data[at + 5 : at + 9] = struct.pack("<HH", 65000, 65000)
    with pytest.raises(ValueError, match="65000 x 65000"):
        check_header(bytes(data))


@pytest.mark.usefixtures("no_decoder")
@pytest.mark.parametrize("chunk", [b"IHDR", b"IDAT", b"IEND"])
def test_chunk_must_not_exceed_its_file(chunk: bytes) -> None:
    data = bytearray(picture("PNG"))
    at = data.index(chunk) - 4
    data[at : at + 4] = struct.pack(">I", 0x7FFFFFFF)
    with pytest.raises(ValueError, match="a chunk of 2147483647 bytes"):
        codec.decode(bytes(data))
    check_header(picture("PNG") + b"anything behind the end")


def test_jpeg_scan_count_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    data = picture("JPEG", progressive=True)
    count, scan = data.count(b"\xff\xda"), data.index(b"\xff\xda")
    assert 1 < count < SCANS_AT_LIMIT

    def with_scans(n: int) -> bytes:
        return data[:scan] + data[scan : scan + 10] * (n - count) + data[scan:]

    check_header(with_scans(100))
    with pytest.raises(ValueError, match="101 scans and 714 pixels; 100 scans are allowed"):
        check_header(with_scans(101))
    monkeypatch.setenv(SETTING, "1428")  # twice the pixels of the image
    check_header(with_scans(32))
    with pytest.raises(ValueError, match="33 scans and 714 pixels; 32 scans are allowed"):
        check_header(with_scans(33))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "PPM", "TIFF"])
def test_truncated_headers_are_handled(kind: str) -> None:
    data = picture(kind)
    for end in range(60):
        try:
            check_header(data[:end])
        except ValueError as error:
            assert str(error)  # noqa: PT017 - some formats have short headers


@pytest.mark.parametrize("data", [b"", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\xd7\xcd\xc6\x9a" * 9])
def test_other_formats_reach_no_decoder(data: bytes) -> None:
    with pytest.raises(ValueError, match="none of BMP, GIF, JPEG"):
        codec.decode(data)


@pytest.mark.parametrize("text", ["-1", "0", "many"])
def test_invalid_setting_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, text)
    with pytest.raises(ConfigError, match=SETTING):
        headers.max_pixels()


@pytest.mark.parametrize(("width", "height"), [(0, 5), (5, 0), (1 << 20, 1 << 20)])
def test_resizing_is_limited(width: int, height: int) -> None:
    with pytest.raises(ValueError, match="pixels"):
        codec.resize(np.zeros((4, 4, 3), np.uint8), width, height, "bilinear")


class FakeOpenCV:
    """A library with its own exception class, like OpenCV."""

    class error(Exception):
        pass

    IMREAD_COLOR = IMREAD_IGNORE_ORIENTATION = 1

    @staticmethod
    def imdecode(*_: Any) -> None:
        raise FakeOpenCV.error("assertion failed")


def test_pillow_decodes_what_opencv_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_simplejpeg", lambda: None)
    monkeypatch.setattr(codec, "opencv", lambda: None)
    expected = codec.decode(picture("JPEG"))
    monkeypatch.setattr(codec, "opencv", lambda: FakeOpenCV)
    np.testing.assert_array_equal(codec.decode(picture("JPEG")), expected)
