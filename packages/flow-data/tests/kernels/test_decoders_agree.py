"""Images are the same whichever decoders are installed."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flow_data import codec
from flow_data.headers import is_plain_jpeg, orientation

_OPENCV, _TURBO = codec.opencv, codec._simplejpeg
LIBRARIES = ("simplejpeg", "OpenCV", "Pillow")
INSTALLED = [n for n, m in zip(LIBRARIES, (_TURBO(), _OPENCV(), 1), strict=True) if m]

Y, X = np.mgrid[:48, :64]
SMOOTH = np.stack([X * 4, Y * 5, (X + Y) * 2], 2).astype(np.uint8)
NOISE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)


@pytest.fixture(params=INSTALLED)
def library(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    use(request.param, monkeypatch)
    return str(request.param)


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one library decode JPEGs."""
    monkeypatch.setattr(codec, "_simplejpeg", _TURBO if name == "simplejpeg" else lambda: None)
    monkeypatch.setattr(codec, "opencv", _OPENCV if name != "Pillow" else lambda: None)


def encoded(pixels: Any, kind: str, mode: str | None = None, **options: Any) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    file = io.BytesIO()
    (image.convert(mode) if mode else image).save(file, kind, **options)
    return file.getvalue()


LOSSLESS = {"PNG": {}, "WEBP": {"lossless": True}, "TIFF": {}}


@pytest.mark.parametrize("value", range(10))
@pytest.mark.parametrize("kind", [*LOSSLESS, "JPEG"])
def test_images_are_turned_upright(library: str, kind: str, value: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = value
    options: dict[str, Any] = LOSSLESS.get(kind, {"quality": 100, "subsampling": 0})
    found = codec.decode(encoded(SMOOTH, kind, exif=exif, **options), "RGB")
    turned = {
        2: SMOOTH[:, ::-1], 3: SMOOTH[::-1, ::-1], 4: SMOOTH[::-1], 5: np.rot90(SMOOTH)[::-1],
        6: np.rot90(SMOOTH, 3), 7: np.rot90(SMOOTH, 3)[::-1], 8: np.rot90(SMOOTH),
    }.get(value, SMOOTH)  # fmt: skip
    assert found.shape == turned.shape
    assert np.abs(found.astype(int) - turned).max() <= (3 if kind == "JPEG" else 0)


def exif_of(order: str, kind: int = 3, count: int = 1, value: int = 6, tag: int = 0x0112) -> bytes:
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, 1)
    return head + struct.pack(f"{order}HHIHH", tag, kind, count, value, 0) + bytes(4)


def png_with(exif: bytes) -> bytes:
    data = encoded(SMOOTH, "PNG")
    crc = struct.pack(">I", zlib.crc32(b"eXIf" + exif))
    return data[:33] + struct.pack(">I", len(exif)) + b"eXIf" + exif + crc + data[33:]


def test_damaged_orientations_count_as_none() -> None:
    assert orientation(png_with(exif_of("<"))) == orientation(png_with(exif_of(">"))) == 6
    assert orientation(png_with(b"Exif\0\0" + exif_of(">"))) == 6
    wrong = [exif_of("<", value=9), exif_of("<", kind=4), exif_of("<", count=2), b"", b"II*\0"]
    wrong += [exif_of("<", tag=0x0100), b"JJ" + exif_of("<")[2:], exif_of("<")[:15]]
    wrong += [b"II*\0" + struct.pack("<I", 1 << 31)]
    for exif in wrong:
        data = png_with(exif)
        assert orientation(data) == 1
        assert codec.decode(data).shape == SMOOTH.shape
    for data in (
        b"",
        b"\xff\xd8",
        b"\xff\xd8\xff\xe1",
        b"\x89PNG\r\n\x1a\n\0",
        b"RIFF0000WEBPEXIF",
    ):
        assert orientation(data) == 1


LEVELS = (np.arange(256, dtype=np.uint16) * 257 + 3).clip(0, 65535).reshape(16, 16)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_upper_bits_of_16_bit_gray_are_kept(library: str, kind: str) -> None:
    if kind == "PPM":  # Pillow 10 does not write it
        data = b"P5 16 16 65535\n" + LEVELS.astype(">u2").tobytes()
    else:
        data = encoded(LEVELS, kind)
    for color in codec.COLORS:
        found = codec.decode(data, color)
        for channel in range(found.shape[2]):
            np.testing.assert_array_equal(found[..., channel], LEVELS >> 8)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_samples_of_32_bits_are_refused(library: str, dtype: Any) -> None:
    with pytest.raises(ValueError, match="samples of 32 bits"):
        codec.decode(encoded(LEVELS.astype(dtype), "TIFF"))


@pytest.mark.parametrize("kind", [*LOSSLESS, "JPEG"])
def test_gray_is_the_luma_of_the_colors(library: str, kind: str) -> None:
    data = encoded(NOISE, kind, **LOSSLESS.get(kind, {}))
    red, green, blue = codec.decode(data, "RGB").astype(float).transpose(2, 0, 1)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    found = codec.decode(data, "GRAY")
    assert found.shape == (48, 64, 1)
    assert np.abs(found[..., 0] - luma).max() <= 0.51


def test_gray_images_are_unchanged(library: str) -> None:
    gray = SMOOTH[..., 0]
    assert np.array_equal(codec.decode(encoded(gray, "PNG"), "GRAY")[..., 0], gray)
    found = codec.decode(encoded(gray, "JPEG", quality=100), "GRAY")[..., 0]
    assert np.abs(found.astype(int) - gray).max() <= 1


def test_transparency_is_dropped(library: str) -> None:
    alpha = np.concatenate([SMOOTH, X[..., None].astype(np.uint8)], 2)
    for kind, options in LOSSLESS.items():
        exact = {"exact": True} if kind == "WEBP" else {}
        found = codec.decode(encoded(alpha, kind, **options, **exact), "RGB")
        np.testing.assert_array_equal(found, SMOOTH)


def test_cut_jpegs_are_refused(library: str) -> None:
    data = encoded(NOISE, "JPEG", quality=95)
    assert is_plain_jpeg(data)
    for cut in (data[: len(data) // 2], data[:-2000]):
        assert not is_plain_jpeg(cut)
        with pytest.raises(ValueError, match="not an image"):
            codec.decode(cut)


def damaged(seed: int) -> bytes:
    """Return a small JPEG with damage in the samples or, of every fourth, anywhere."""
    rng = np.random.default_rng(seed)
    pixels = (NOISE if seed % 2 else SMOOTH)[: rng.integers(1, 49), : rng.integers(1, 65)]
    options = {"progressive": seed % 3 == 0, "subsampling": seed % 5 % 3}
    data = bytearray(encoded(pixels, "JPEG", "RGB" if seed % 7 else "L", **options))
    start = 2 if seed % 4 == 0 else data.find(b"\xff\xda") + 14
    at = int(rng.integers(start, len(data) - 2))
    some = rng.integers(0, 256, rng.integers(1, 20), np.uint8).tobytes()
    replaced, new = [
        (2, b"\xff" + some[:1]),  # a marker
        (2, b"\xff\xd9"),  # an end
        (20, bytes(20)),
        (len(some), some),
        (len(some), b""),
        (0, some),
    ][seed % 6]
    data[at : at + replaced] = new
    return bytes(data)


def test_damaged_jpegs_are_decoded_or_refused_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = set()
    for seed in range(600):
        data, found = damaged(seed), []
        for name in INSTALLED:
            use(name, monkeypatch)
            try:
                pixels = codec.decode(data)
                found.append((pixels.shape, pixels.tobytes()))
            except ValueError as error:
                found.append((str(error), b""))
        assert found == found[:1] * len(INSTALLED), f"damaged({seed})"
        kinds.add(found[0][1] == b"")
    assert kinds == {False, True}


# ------------------------------------------------------------------------------- what may differ

PICTURES: dict[str, Callable[[Any], bytes]] = {
    "JPEG, 4:4:4": lambda x: encoded(x, "JPEG", quality=90, subsampling=0),
    "JPEG, 4:2:0": lambda x: encoded(x, "JPEG", quality=90, subsampling=2),
    "JPEG, progressive": lambda x: encoded(x, "JPEG", quality=90, progressive=True),
    "JPEG, gray": lambda x: encoded(x, "JPEG", "L"),
    "JPEG, CMYK": lambda x: encoded(x, "JPEG", "CMYK"),
    "PNG, WebP, TIFF": lambda x: encoded(x, "WEBP", quality=80),
}
MOST = dict.fromkeys(PICTURES, 0) | {"JPEG, 4:4:4": 2, "JPEG, 4:2:0": 2, "JPEG, progressive": 2}
"""The largest difference of a pixel from that of Pillow, as in the table of docs/data.md."""


@pytest.mark.parametrize("color", codec.COLORS)
@pytest.mark.parametrize("picture", PICTURES)
def test_differences_between_decoders(
    picture: str, color: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pixels in (SMOOTH, NOISE):
        data, found = PICTURES[picture](pixels), {}
        for name in INSTALLED:
            use(name, monkeypatch)
            found[name] = codec.decode(data, color).astype(int)
        for name, values in found.items():
            most = int(np.abs(values - found["Pillow"]).max())
            assert most <= MOST[picture], f"{name} differs by {most}"


def test_the_documented_differences_are_those_that_are_tested() -> None:
    text = (Path(__file__).parents[4] / "docs" / "data.md").read_text()
    for picture, most in MOST.items():
        assert f"| {picture} | 0 | {most} |" in text
