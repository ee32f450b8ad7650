"""Read image sizes from file headers, before a decoder allocates memory.

The formats are those that `flow_data.codec` decodes. Files of other formats are rejected, so that
decoders receive only images of a known size.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from io import BytesIO

from flow_data.loading.workers import setting

SETTING = "FLOW_DATA_MAX_PIXELS"
DEFAULT_PIXELS = 1 << 26
"""The default maximum number of pixels per image, as in OneFlow."""

MAX_SCANS = 100
"""The maximum number of scans of a JPEG; progressive JPEGs have about ten, and each scan takes
time."""

SCANS_AT_LIMIT = 16
"""The maximum number of scans of a JPEG with the maximum number of pixels; smaller JPEGs may have
more."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow's names of the decoded formats."""

Size = tuple[int, int]


def max_pixels() -> int:
    """Return the maximum number of pixels per image.

    The environment variable ``FLOW_DATA_MAX_PIXELS`` sets the number.
    """
    return setting(SETTING, DEFAULT_PIXELS)


def check_header(data: bytes) -> None:
    """Check the header of an image file.

    Raises `ValueError` if the file is not an image, or has more pixels than the setting allows.
    """
    try:
        width, height = _size(data)
    except (struct.error, IndexError) as error:
        raise ValueError(f"{len(data)} bytes, a truncated header") from error
    check_pixels(width, height)


def check_pixels(width: int, height: int) -> None:
    """Check the size of an image.

    Raises:
        ValueError: the image has no pixels, or more than the setting allows.

    >>> check_pixels(1 << 20, 1 << 20)
    Traceback (most recent call last):
    ...
    ValueError: 1048576 x 1048576 pixels; FLOW_DATA_MAX_PIXELS allows 67108864 in all
    """
    if width < 1 or height < 1:
        raise ValueError(f"an image of {width} x {height} pixels")
    if width * height > (limit := max_pixels()):
        raise ValueError(f"{width} x {height} pixels; {SETTING} allows {limit} in all")


def _size(data: bytes) -> Size:
    for mark, at, read in _READERS:
        if data[at : at + len(mark)] == mark:
            return read(data)
    return _size_by_pillow(data)


def _jpeg(data: bytes) -> Size:
    """Return the size in the first frame header; decoders reject a second frame header."""
    for marker, at in _segments(data):
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 3)
            _check_scans(data.count(b"\xff\xda"), width * height)
            return width, height
    raise ValueError("a JPEG without a frame header")


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the marker of each segment of a JPEG, and the place of its length."""
    at = data.find(b"\xff", 2)
    while at >= 0:
        while data[at] == 0xFF:
            at += 1
        yield data[at], at + 1
        marker, at = data[at], at + 1
        if marker not in _BARE:
            at += max(2, struct.unpack_from(">H", data, at)[0])
        at = data.find(b"\xff", at)


_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""The markers of frame headers."""


def is_plain_jpeg(data: bytes) -> bool:
    """Return whether a file is a JPEG of 1 or 3 components of 8 bits that has an end.

    Libraries disagree about others: about inverted CMYK, and about JPEGs that are cut off.
    """
    if data[:2] != b"\xff\xd8" or data.rfind(b"\xff\xd9") < data.rfind(b"\xff\xda"):
        return False
    frame = next((at for marker, at in _segments(data) if marker in _FRAMES), None)
    return (
        frame is not None
        and data[frame + 2 : frame + 3] == b"\x08"
        and (data[frame + 7 : frame + 8] in (b"\x01", b"\x03"))
    )


def has_one_scan(data: bytes) -> bool:
    """Return whether the samples of a JPEG extend to its end, without markers but restarts.

    Of a JPEG with another marker there, which may be damage, OpenCV decodes a part that Pillow and
    simplejpeg refuse.
    """
    try:
        scan = next((at for marker, at in _segments(data) if marker == 0xDA), len(data))
    except (struct.error, IndexError):
        return False
    found = _MARKER.search(data, scan)
    return found is not None and found[0] == b"\xff\xd9"


_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""A marker that is not one of restarts; 0 and 255 after a byte 255 are no markers."""


def _check_scans(count: int, pixels: int) -> None:
    limit = min(MAX_SCANS, SCANS_AT_LIMIT * max_pixels() // max(1, pixels))
    if count > max(limit, SCANS_AT_LIMIT):
        raise ValueError(f"a JPEG of {count} scans and {pixels} pixels; {limit} scans are allowed")


_BARE = frozenset((0x00, 0x01, *range(0xD0, 0xDA)))
"""JPEG markers without a length; 0 is not a marker but follows a byte 255 of other data."""


def _png(data: bytes) -> Size:
    """Return the size in the first chunk; check the chunk lengths, which OpenCV does not check."""
    if data[12:16] != b"IHDR":
        raise ValueError("a PNG without a header")
    at, kind = 8, b""
    while at < len(data) and kind != b"IEND":
        size, kind = struct.unpack_from(">I4s", data, at)
        at += 12 + size
        if at > len(data):
            raise ValueError(f"a PNG with a chunk of {size} bytes in {len(data)}")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _gif(data: bytes) -> Size:
    """Return the size of the canvas, enlarged to contain the first frame, as some decoders do."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    while data[at] == 0x21:  # extension: a label, then blocks until an empty block
        at += 2
        while data[at]:
            at += 1 + data[at]
        at += 1
    if data[at] == 0x2C:
        left, top, wide, high = struct.unpack_from("<HHHH", data, at + 1)
        width, height = max(width, left + wide), max(height, top + high)
    return width, height


def _bmp(data: bytes) -> Size:
    """Return the size in the second header, whose fields have 16 bits in the oldest version."""
    if struct.unpack_from("<I", data, 14)[0] == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return abs(width), abs(height)


def _webp(data: bytes) -> Size:
    """Return the size in the first chunk, which bounds the sizes of all frames."""
    kind = data[12:16]
    if kind == b"VP8X":
        wide, high = data[24:27], data[27:30]
        return 1 + int.from_bytes(wide, "little"), 1 + int.from_bytes(high, "little")
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


_READERS: tuple[tuple[bytes, int, Callable[[bytes], Size]], ...] = (
    (b"\xff\xd8", 0, _jpeg),
    (b"\x89PNG\r\n\x1a\n", 0, _png),
    (b"GIF8", 0, _gif),
    (b"BM", 0, _bmp),
    (b"WEBP", 8, _webp),
)
"""For each format: its signature, the signature's offset in the file, and the function that reads
the size."""


def _size_by_pillow(data: bytes) -> Size:
    """Return the size in a PPM or TIFF header."""
    from PIL import Image

    try:
        with Image.open(BytesIO(data), formats=("PPM", "TIFF")) as image:
            size: Size = image.size
    except Exception as error:  # Pillow raises many types
        allowed = ", ".join(FORMATS)
        raise ValueError(f"{len(data)} bytes that are none of {allowed}: {error}") from error
    return size


# ------------------------------------------------------------------------------- orientation


def orientation(data: bytes) -> int:
    """Return the EXIF orientation of a JPEG, PNG or WebP file; 1 if it has none, or an invalid one.

    Pillow itself turns TIFF files upright.
    """
    for mark, at, find in _EXIF:
        if data[at : at + len(mark)] == mark:
            try:
                return _tag(next(find(data), b"").removeprefix(b"Exif\0\0"))
            except (struct.error, IndexError):  # damaged metadata
                return 1
    return 1


def _tag(exif: bytes) -> int:
    """Return the orientation in EXIF data, which is a TIFF file without pixels."""
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    (start,) = struct.unpack_from(f"{order}I", exif, 4)
    (count,) = struct.unpack_from(f"{order}H", exif, start)
    for at in range(start + 2, start + 2 + 12 * count, 12):
        tag, kind, values, value = struct.unpack_from(f"{order}HHIH", exif, at)
        if tag == _ORIENTATION:
            return value if (kind, values) == (3, 1) and 1 <= value <= 8 else 1
    return 1


_ORIENTATION = 0x0112


def _jpeg_exif(data: bytes) -> Iterator[bytes]:
    for marker, at in _segments(data):
        if marker == 0xE1 and data[at + 2 : at + 8] == b"Exif\0\0":
            yield data[at + 2 : at + struct.unpack_from(">H", data, at)[0]]
        elif marker == 0xDA:
            return


def _png_exif(data: bytes) -> Iterator[bytes]:
    at = 8
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"eXIf":
            yield data[at + 8 : at + 8 + size]
        at += 12 + size


def _webp_exif(data: bytes) -> Iterator[bytes]:
    at = 12
    while at < len(data):
        kind, size = struct.unpack_from("<4sI", data, at)
        if kind == b"EXIF":
            yield data[at + 8 : at + 8 + size]
        at += 8 + size + size % 2


_EXIF: tuple[tuple[bytes, int, Callable[[bytes], Iterator[bytes]]], ...] = (
    (b"\xff\xd8", 0, _jpeg_exif),
    (b"\x89PNG\r\n\x1a\n", 0, _png_exif),
    (b"WEBP", 8, _webp_exif),
)
"""For each format: its signature, the signature's offset, and the function that finds EXIF data."""
