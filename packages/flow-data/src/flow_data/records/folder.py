"""Folders of images as records, with one sub-folder per class."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from flow_core.base.errors import DataError
from flow_core.base.formats.regular_files import open_regular
from flow_data.records.record import Field, Origin, Record, corrupt

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def image_files(folder: str) -> tuple[list[str], list[tuple[str, int]]]:
    """Return the classes of a folder of images, and the image files with their class indices.

    The sub-folders are the classes, in the order of their names; without sub-folders, all images
    have class 0. The files are in the order of their classes, then of their names.  Raises
    `DataError` if the folder is missing, or contains no image.
    """
    if not os.path.isdir(folder):
        raise DataError(f"reading images from {folder!r}", found="no such folder")
    classes = sorted(e.name for e in os.scandir(folder) if e.is_dir())
    places = [(os.path.join(folder, c), i) for i, c in enumerate(classes)] or [(folder, 0)]
    files = [(path, label) for place, label in places for path in _images(place)]
    if not files:
        raise DataError(
            f"reading images from {folder!r}",
            found="no image in it",
            allowed=f"files {', '.join('*' + s for s in SUFFIXES)}, in a folder per class",
        )
    return classes, files


def _images(folder: str) -> Iterable[str]:
    entries = sorted(os.scandir(folder), key=lambda e: e.name)
    return [e.path for e in entries if e.is_file() and e.name.lower().endswith(SUFFIXES)]


class FolderFiles:
    """The images of folders as records with fields ``encoded`` (the file) and ``class/label``.

    Args:
        skip: no effect, because only decoders detect corrupt files.
    """

    def __init__(self, paths: Sequence[str], skip: bool = False) -> None:
        self.paths = tuple(paths)
        self.broken: list[str] = []
        self._files = [image_files(path)[1] for path in paths]

    def place(self, part: int, number: int) -> tuple[str, int] | None:
        """Return the path and the class of an image."""
        files = self._files[part]
        return files[number] if number < len(files) else None

    def read(self, part: int, number: int, place: tuple[str, int]) -> Record:
        path, label = place
        origin = self.origin(part, number, place)
        try:
            with open_regular(path) as file:
                payload: Mapping[str, object] = {"encoded": file.read(), "class/label": label}
        except OSError as error:
            raise corrupt(origin, str(error.strerror), "a readable file") from error
        return Record(payload, origin, parse_image)

    def origin(self, part: int, number: int, place: tuple[str, int]) -> Origin:
        return Origin(place[0], -1, number)


def parse_image(payload: Mapping[str, object]) -> dict[str, Field]:
    """Return the fields of an image's record."""
    return {
        "encoded": ("bytes_list", (payload["encoded"],)),
        "class/label": ("int32_list", (payload["class/label"],)),
    }
