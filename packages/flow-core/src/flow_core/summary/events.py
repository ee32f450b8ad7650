"""Event files: summaries of scalars, histograms and images, and the writer of the files."""

from __future__ import annotations

import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.errors import DataError
from flow_core.base.planning import is_planning
from flow_core.base.shutdown import call_at_shutdown, cancel_at_shutdown
from flow_core.summary.messages import Fields, encoded, parsed

VERSION = "brain.Event:2"
"""The version of the file format, as readers expect it in the first event."""

MOST_WAITING, LONGEST_WAIT = 10, 120.0
"""How many events may wait to be written, and for how many seconds at most."""


# --------------------------------------------------------------------------- checksums, framing


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) checksum of some bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    """Return a record of an event file: length and data, each with its masked checksum."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


# ---------------------------------------------------------------------------- values of summaries


def _value(tag: str, plugin: str, **fields: object) -> Fields:
    return {"tag": tag, "metadata": {"plugin_data": {"plugin_name": plugin}}, **fields}


def scalar(tag: str, value: float) -> Fields:
    """Return the summary of a number."""
    return {"value": [_value(tag, "scalars", simple_value=float(value))]}


def _limits() -> Any:
    """Return the upper limits of buckets: 1e-12 times powers of 1.1, zero, and the negatives."""
    positive = 1e-12 * 1.1 ** np.arange(500)
    largest = np.finfo(np.float64).max
    return np.concatenate([[-largest], -positive[::-1], [0.0], positive, [largest]])


_LIMITS = _limits()


def histogram(tag: str, values: object) -> Fields:
    """Return the summary of numbers as a histogram; adjacent empty buckets are merged."""
    numbers = np.asarray(values, np.float64).reshape(-1)
    places = np.searchsorted(_LIMITS[:-1], numbers, side="right")
    counts = np.bincount(places, minlength=len(_LIMITS))
    last = np.append((counts[:-1] > 0) | (counts[1:] > 0), True)
    empty = numbers.size == 0
    histo = {
        "min": 0.0 if empty else numbers.min(),
        "max": 0.0 if empty else numbers.max(),
        "num": float(numbers.size),
        "sum": numbers.sum(),
        "sum_squares": (numbers * numbers).sum(),
        "bucket_limit": _LIMITS[last].tolist(),
        "bucket": counts[last].astype(np.float64).tolist(),
    }
    return {"value": [_value(tag, "histograms", histo=histo)]}


def images(tag: str, pixels: Any) -> Fields:
    """Return the summary of uint8 images of shape (N, H, W, channels); number several tags."""
    tags = [tag] if len(pixels) == 1 else [f"{tag}{i}" for i in range(len(pixels))]
    return {
        "value": [_value(t, "images", image=_image(x)) for t, x in zip(tags, pixels, strict=True)]
    }


def _image(pixels: Any) -> Fields:
    height, width, channels = pixels.shape
    return {
        "height": height,
        "width": width,
        "colorspace": channels,
        "encoded_image_string": png(pixels),
    }


_COLORS = {1: 0, 2: 4, 3: 2, 4: 6}
"""PNG's color type for each number of channels."""


def png(pixels: Any) -> bytes:
    """Return a uint8 image of shape (H, W, channels) as the bytes of a PNG file."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLORS[channels], 0, 0, 0)
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 1:] = pixels.reshape(height, -1)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + checksum


def from_text(text: str) -> Fields:
    """Parse a summary from its text form."""
    return parsed("Summary", text)


# ------------------------------------------------------------------------------------- the files


class EventsWriter:
    """A writer of events to a new file below a folder.

    Args:
        logdir: the folder; the path of the file in it is ``event/event.*.tfevents.log``.
    """

    def __init__(self, logdir: str | Path) -> None:
        folder = Path(logdir) / "event"
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        self.path = self._free(folder, int(now))
        self._lock = threading.Lock()
        self._waiting: list[bytes] = [
            record(encoded("Event", {"wall_time": now, "file_version": VERSION}))
        ]
        self._flushed = 0.0
        self.flush()

    @staticmethod
    def _free(folder: Path, second: int) -> Path:
        path, number = folder / f"event.{second}.tfevents.log", 1
        while path.exists():
            path, number = folder / f"event.{second}-{number}.tfevents.log", number + 1
        return path

    def add(self, step: int, summary: Fields) -> None:
        """Add an event, which is written to the file soon, or when `flush` is called."""
        event = {"wall_time": time.time(), "step": int(step), "summary": summary}
        data = record(encoded("Event", event))
        with self._lock:
            self._waiting.append(data)
            due = time.monotonic() - self._flushed > LONGEST_WAIT
            if due or len(self._waiting) > MOST_WAITING:
                self._write()

    def flush(self) -> None:
        """Write all pending events."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        with self.path.open("ab") as file:
            file.write(b"".join(self._waiting))
        self._waiting.clear()
        self._flushed = time.monotonic()


class Unwritten:
    """A writer that discards events, for planning."""

    def add(self, step: int, summary: Fields) -> None:
        """Discard an event."""

    def flush(self) -> None:
        """Do nothing."""


_writers: list[EventsWriter | Unwritten] = []


def open_writer(logdir: str) -> None:
    """Create the process's event writer; flush the previous one, if any."""
    close_writer()
    cancel_at_shutdown(close_writer)
    call_at_shutdown(close_writer)
    _writers.append(Unwritten() if is_planning() else EventsWriter(logdir))


def close_writer() -> None:
    """Flush and drop the process's writer, if any."""
    while _writers:
        _writers.pop().flush()


def writer() -> EventsWriter | Unwritten:
    """Return the process's event writer; raise `DataError` if there is none."""
    if not _writers:
        raise DataError(
            "writing a summary",
            found="no event file",
            allowed="flow.summary.create_summary_writer(logdir) in a job that has run",
        )
    return _writers[-1]
