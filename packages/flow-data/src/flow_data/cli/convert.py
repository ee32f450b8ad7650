"""Convert data sets to OFRecord part files atomically, on several threads."""

from __future__ import annotations

import csv
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from flow_core.base.errors import DataError
from flow_core.base.formats.regular_files import open_regular
from flow_data.arrays import read_archive
from flow_data.records.folder import image_files
from flow_data.records.ofrecord import OFRecordWriter, part_path

SUFFIX_LENGTH = 5
"""The number of digits of the part number in a file name."""


class Samples(Protocol):
    """A data set with random access."""

    classes: Sequence[str] = ()  # names of the classes of its samples; none if it has no classes

    def __len__(self) -> int:
        """Return the number of samples."""

    def fields(self, number: int) -> Mapping[str, Any]:
        """Return the fields of a sample in the form that `flow_data.encode_record` takes."""


class FolderSamples(Samples):
    """Images in folders, with one folder per class.

    Fields: ``encoded``, ``class/label``, ``class/text`` and ``filename``.
    """

    def __init__(self, folder: str) -> None:
        self.classes, self._files = image_files(folder)

    def __len__(self) -> int:
        return len(self._files)

    def fields(self, number: int) -> Mapping[str, Any]:
        """Return the bytes of an image file, and the fields of its class."""
        path, label = self._files[number]
        name = self.classes[label] if self.classes else ""
        return {
            "encoded": Path(path).read_bytes(),
            "class/label": label,
            "class/text": name.encode(),
            "filename": os.path.basename(path).encode(),
        }


class CsvSamples(Samples):
    """The rows of a CSV file with a header line; each column holds integers, floats or text."""

    def __init__(self, path: str) -> None:
        try:
            with TextIOWrapper(open_regular(path), "utf-8", newline="") as file:
                rows = list(csv.reader(file))
        except (OSError, ValueError, csv.Error) as error:
            allowed = "a CSV file in UTF-8"
            raise DataError(f"reading {path}", found=str(error), allowed=allowed) from error
        if len(rows) < 2:
            raise DataError(
                f"reading {path}", found=f"{len(rows)} lines", allowed="header and rows"
            )
        names, self._rows = rows[0], rows[1:]
        for number, row in enumerate(self._rows, 2):
            if len(row) != len(names):
                raise DataError(
                    f"reading line {number} of {path}",
                    found=f"{len(row)} columns",
                    allowed=f"{len(names)} columns, as in the header line",
                )
        columns = zip(*self._rows, strict=True)
        self._columns = {name: _column(values) for name, values in zip(names, columns, strict=True)}

    def __len__(self) -> int:
        return len(self._rows)

    def fields(self, number: int) -> Mapping[str, Any]:
        """Return the values of a row by column."""
        return {name: column[number] for name, column in self._columns.items()}


def _column(values: Sequence[str]) -> Sequence[Any]:
    """Return a column as int64, float32 or bytes: the first type that represents all its values.

    >>> _column(["1", "2"])[1], _column(["1", "2.5"])[1], _column(["1", "b"])[1]
    (np.int64(2), np.float32(2.5), b'b')
    """
    for kind in (np.int64, np.float32):
        try:
            found: Sequence[Any] = np.array([kind(v) for v in values])  # type: ignore[assignment]
            return found
        except (ValueError, OverflowError):
            continue
    return [v.encode() for v in values]


class NpzSamples(Samples):
    """The samples of an .npz file, whose arrays are the fields; axis 0 is the sample axis."""

    def __init__(self, path: str) -> None:
        try:
            self._arrays = read_archive(path)
        except (OSError, ValueError) as error:
            raise DataError(f"reading {path}", found=str(error), allowed="an .npz file") from error
        counts = {len(x) if x.ndim else 0 for x in self._arrays.values()}
        if len(counts) != 1 or not counts - {0}:
            shapes = ", ".join(f"{k} {v.shape}" for k, v in self._arrays.items())
            raise DataError(
                f"reading {path}", found=shapes or "no array", allowed="arrays of one length"
            )
        self._count = counts.pop()

    def __len__(self) -> int:
        return self._count

    def fields(self, number: int) -> Mapping[str, Any]:
        """Return one row of each array."""
        return {name: array[number] for name, array in self._arrays.items()}


def open_samples(source: str) -> Samples:
    """Open a folder of images, a .csv or an .npz file.

    Raises `DataError` if the source is none of these, or cannot be read.
    """
    if os.path.isdir(source):
        return FolderSamples(source)
    suffix = os.path.splitext(source)[1].lower()
    kinds: Mapping[str, Callable[[str], Samples]] = {".csv": CsvSamples, ".npz": NpzSamples}
    kind = kinds.get(suffix)
    if kind is None or not os.path.isfile(source):
        found = f"a {suffix or 'suffixless'} file" if os.path.exists(source) else "no such file"
        raise DataError(
            f"converting {source!r}", found=found, allowed="a folder of images, .csv or .npz"
        )
    return kind(source)


def convert(
    samples: Samples,
    target: str,  # the folder, which must not exist or must be empty
    parts: int,
    *,
    workers: int = 2,
    seed: int | None = None,  # seed with which to shuffle the samples; None to keep their order
    progress: Callable[[], object] = lambda: None,  # called after each sample
) -> list[str]:
    """Write samples as OFRecord part files ``part-00000`` ... in a new folder.

    The folder appears only when it is complete; a failure leaves no files behind.

    Returns:
        The paths of the files.

    Raises:
        DataError: the target exists and is not empty, or a sample cannot be read or written.
    """
    folder = Path(target)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"writing {target!r}", found="it exists", allowed="a new or empty folder")
    if not 1 <= parts <= len(samples):
        found = f"{parts} parts for {len(samples)} samples"
        raise DataError(f"writing {target!r}", found=found, allowed=f"1 to {len(samples)} parts")
    order = list(range(len(samples)))
    if seed is not None:
        random.Random(seed).shuffle(order)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    partial.mkdir(parents=True)
    try:
        _write_all(samples, partial, [order[i::parts] for i in range(parts)], workers, progress)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [part_path(target, i, suffix_length=SUFFIX_LENGTH) for i in range(parts)]


def _write_all(
    samples: Samples,
    folder: Path,
    parts: Sequence[Sequence[int]],
    workers: int,
    progress: Callable[[], object],
) -> None:
    with ThreadPoolExecutor(workers) as pool:
        writes = [
            pool.submit(
                _write,
                samples,
                part_path(str(folder), i, suffix_length=SUFFIX_LENGTH),
                numbers,
                progress,
            )
            for i, numbers in enumerate(parts)
        ]
        try:
            for write in writes:
                write.result()
        except BaseException:
            for write in writes:
                write.cancel()
            raise
    _write_classes(samples, folder)


def _write(
    samples: Samples, path: str, numbers: Sequence[int], progress: Callable[[], object]
) -> None:
    with OFRecordWriter(path) as writer:
        for number in numbers:
            try:
                writer.write(samples.fields(number))
            except OSError as error:
                raise DataError(f"converting sample {number}", found=str(error)) from error
            progress()


def _write_classes(samples: Samples, folder: Path) -> None:
    if samples.classes:
        (folder / "classes.txt").write_text("".join(f"{name}\n" for name in samples.classes))
