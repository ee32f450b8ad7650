"""Pictures of each codec, through each library that is installed and each op that decodes."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.dtypes import tensor_buffer
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.plugins.specs import BindContext, KernelQuery
from flow_data import codec
from flow_data.kernels import decoders, images
from flow_data.records.record import Origin, Record
from fuzzing.mutations import EXTREMES, mutate_bytes
from fuzzing.target import Target

_MODES = {
    "jpeg": (("RGB", {}), ("L", {}), ("CMYK", {}), ("RGB", {"progressive": True})),
    "png": (
        ("RGB", {}),
        ("L", {}),
        ("RGBA", {}),
        ("P", {}),
        ("1", {}),
        ("I;16", {}),
        ("RGB", {"save_all": True}),
    ),
    "gif": (("P", {}), ("L", {}), ("P", {"save_all": True})),
    "bmp": (("RGB", {}), ("L", {}), ("P", {}), ("1", {})),
    "webp": (("RGB", {}), ("RGBA", {"lossless": True}), ("RGB", {"save_all": True})),
    "tiff": (("RGB", {}), ("L", {"compression": "tiff_lzw"}), ("RGB", {"compression": "jpeg"})),
    "ppm": (("RGB", {}), ("L", {}), ("1", {})),
}


def _seeds(codec_name: str) -> list[bytes]:
    from PIL import Image

    y, x = np.mgrid[:21, :34]
    base = Image.fromarray(np.stack([x * 7, y * 12, (x + y) * 4], 2).astype(np.uint8))
    found = []
    for mode, options in _MODES[codec_name]:
        image = base.convert("I").convert("I;16") if mode == "I;16" else base.convert(mode)
        more = {"append_images": [image.rotate(90)]} if "save_all" in options else {}
        file = io.BytesIO()
        image.save(file, codec_name.upper(), **options, **more)
        found.append(file.getvalue())
    return found


def _sides(rng: random.Random, bits: int) -> tuple[int, int]:
    """A width and a height: extremes, or areas around common limits."""
    top = (1 << bits) - 1
    if rng.random() < 0.5:
        return rng.choice(EXTREMES) & top, rng.choice(EXTREMES) & top
    width = rng.randint(1, min(top, 1 << 20))
    return width, rng.choice((1 << 20, 1 << 25, 1 << 27, 1 << 30)) // width & top


def _jpeg_sides(data: bytearray, rng: random.Random) -> None:
    for marker in range(0xC0, 0xCF):
        at = data.find(bytes((0xFF, marker)))
        if at > 0 and marker not in (0xC4, 0xC8, 0xCC):
            width, height = _sides(rng, 16)
            data[at + 5 : at + 9] = struct.pack(">HH", height, width)
            return


def _png_sides(data: bytearray, rng: random.Random) -> None:
    data[16:24] = struct.pack(">II", *_sides(rng, 32))
    _seal_chunk(data, 8)


def _seal_chunk(data: bytearray, at: int) -> None:
    size = int.from_bytes(data[at : at + 4], "big")
    if at + 12 + size <= len(data):
        crc = zlib.crc32(data[at + 4 : at + 8 + size])
        data[at + 8 + size : at + 12 + size] = struct.pack(">I", crc)


def _seal_png(data: bytearray, rng: random.Random) -> None:
    """Mutate the contents of a chunk and give it a sound checksum."""
    at, chunks = 8, []
    while at + 12 <= len(data):
        chunks.append(at)
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    for at in rng.sample(chunks, min(len(chunks), 2)):
        size = int.from_bytes(data[at : at + 4], "big")
        if size:
            data[at + 8 + rng.randrange(size)] ^= 1 << rng.randrange(8)
        _seal_chunk(data, at)


def _gif_sides(data: bytearray, rng: random.Random) -> None:
    at = rng.choice((6, data.find(b"\x2c") + 5))
    data[at : at + 4] = struct.pack("<HH", *_sides(rng, 16))


def _bmp_sides(data: bytearray, rng: random.Random) -> None:
    data[18:26] = struct.pack("<II", *_sides(rng, 32))


def _webp_sides(data: bytearray, rng: random.Random) -> None:
    width, height = _sides(rng, 14)
    if data[12:16] == b"VP8X":
        data[24:30] = width.to_bytes(3, "little") + height.to_bytes(3, "little")
    elif data[12:16] == b"VP8L":
        data[21:25] = struct.pack("<I", width | height << 14)
    else:
        data[26:30] = struct.pack("<HH", width, height)


def _tiff_sides(data: bytearray, rng: random.Random) -> None:
    for tag in (256, 257):
        at = data.find(struct.pack("<H", tag))
        if at > 0:
            data[at + 8 : at + 12] = struct.pack("<I", _sides(rng, 32)[0])


def _ppm_sides(data: bytearray, rng: random.Random) -> None:
    width, height = _sides(rng, 32)
    at = data.find(b"34 21")
    data[at : at + 5] = b"%d %d" % (width, height)


_SIDES: dict[str, Callable[[bytearray, random.Random], None]] = {
    "jpeg": _jpeg_sides,
    "png": _png_sides,
    "gif": _gif_sides,
    "bmp": _bmp_sides,
    "webp": _webp_sides,
    "tiff": _tiff_sides,
    "ppm": _ppm_sides,
}


def _mutation(name: str) -> Callable[[bytes, random.Random], bytes]:
    def mutate(data: bytes, rng: random.Random) -> bytes:
        draw = rng.random()
        if draw < 0.9 and not (name == "png" and draw < 0.4):
            return mutate_bytes(data, rng)
        made = bytearray(data)
        (_seal_png if draw < 0.4 else _SIDES[name])(made, rng)
        return bytes(made) if rng.random() < 0.5 else mutate_bytes(bytes(made), rng)

    return mutate


# ---------------------------------------------------------------------------------------- readers

_INSTALLED = (codec.opencv, codec._simplejpeg)


def _libraries(number: int) -> None:
    """Use all installed libraries, no simplejpeg, or Pillow alone."""
    opencv, turbo = _INSTALLED
    codec._simplejpeg = turbo if number % 3 == 0 else lambda: None  # type: ignore[assignment]
    codec.opencv = opencv if number % 3 < 2 else lambda: None  # type: ignore[assignment]


def _bound(
    bind: Callable[[BindContext], Any], op: str, values: Any, attrs: dict[str, Any]
) -> Sequence[Any]:
    out = np.empty(1, object)
    kind = tensor_type((1,), tensor_buffer)
    query = KernelQuery(op, Attrs(attrs), (kind,), (kind,))
    bound = bind(BindContext(query, (values,), (out,), step=np.zeros((), np.int64), seed=1))
    return bound if isinstance(bound, tuple | list) else (bound,)


_CROP = {
    "field": "image",
    "num_attempts": 4,
    "seed": 1,
    "has_seed": True,
    "random_area": (0.1, 1.0),
    "random_aspect_ratio": (0.7, 1.4),
    "region": None,
}


def _open(folder: Path) -> Callable[[bytes, int], object]:
    def read(data: bytes, number: int) -> None:
        _libraries(number // 3)
        color = codec.COLORS[number // 9 % 3]
        record = Record({"image": data}, Origin("case", 0, 0), _parse)
        records = np.empty(1, object)
        records[0] = record if number % 3 else np.frombuffer(data, np.uint8)
        attrs = {"field": "image", "color_space": color, "data_type": "uint8"}
        kernels = (
            (images.decode, "image_decode", attrs),
            (decoders.image, "ofrecord_image_decoder", attrs),
            (decoders.image_random_crop, "ofrecord_image_decoder_random_crop", attrs | _CROP),
        )
        bind, op, options = kernels[number % 3]
        for launch in _bound(bind, op, records, options):
            launch()

    return read


def _parse(payload: Any) -> dict[str, Any]:
    return {name: ("bytes_list", (value,)) for name, value in payload.items()}


TARGETS = tuple(
    Target(name, lambda name=name: _seeds(name), _open, _mutation(name), weight)  # type: ignore[misc]
    for name, weight in (
        ("jpeg", 1.5), ("png", 1.5), ("gif", 1), ("bmp", 1), ("webp", 1), ("tiff", 0.5),
        ("ppm", 0.5),
    )
)  # fmt: skip
