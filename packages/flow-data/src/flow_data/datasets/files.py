"""Where the files of data sets are, their digests, and what a data set consists of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flow_core.base.errors import DataError
from flow_data.download import check_digest, download
from flow_data.instances import Array

SETTING = "FLOW_DATASETS"
PLACES = ("data", "~/.keras/datasets", "~/.cache/flow-data")
"""The folders that are searched, of which the last one receives downloads."""


class Examples(NamedTuple):
    """Inputs and labels of one length: `flow_data.batches` takes them as they are.

    Attributes:
        inputs: for images, float32 from 0 to 1.
        labels: int32.
    """

    inputs: Array
    labels: Array

    def __repr__(self) -> str:
        return f"{len(self.inputs)} x {self.inputs.dtype}{list(self.inputs.shape[1:])}"


class DataSet(NamedTuple):
    """Examples for training and for tests, and the names of the classes."""

    train: Examples
    test: Examples
    classes: tuple[str, ...]

    def __repr__(self) -> str:
        classes = ", ".join(self.classes[:3]) + (", ..." if len(self.classes) > 3 else "")
        return f"DataSet(train={self.train}, test={self.test}, classes={classes})"


@dataclass(frozen=True)
class Files:
    """The files of a data set in one of its forms."""

    # The digest of each file, "kind:hexadecimal"; empty if none is published.
    digests: Mapping[str, str]
    layouts: Sequence[str] = ("",)  # the sub-folders in which programs keep them
    url: str = ""  # where they can be downloaded; empty if nowhere

    def find(self, roots: Sequence[Path]) -> Path | None:
        """Return the first folder that has all files, after a comparison of their digests."""
        for folder in self.places(roots):
            if all((folder / name).is_file() for name in self.digests):
                for name in self.digests:
                    self.check(name, folder / name)
                return folder
        return None

    def places(self, roots: Sequence[Path]) -> list[Path]:
        return [root / layout for root in roots for layout in self.layouts]

    def check(self, name: str, path: Path) -> None:
        """Raise `DataError` if a file differs from the published one."""
        kind, _, expected = self.digests[name].partition(":")
        if kind:
            check_digest(path, kind, expected, f"remove {path}, or pass another folder")

    def fetch(self, folder: Path) -> Path:
        """Download the files that are missing in a folder."""
        for name in self.digests:
            if not (folder / name).is_file():
                download(self.url + name, folder / name, partial(self.check, name))
        return folder


def roots_of(what: str, folder: str | os.PathLike[str] | None) -> list[Path]:
    """Return the folders to search: the given one, that of the setting, or the usual ones."""
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise DataError.at_caller(what, found=f"folder={folder!r:.60}", allowed="a path")
    chosen = [folder] if folder is not None else [os.environ.get(SETTING, "")]
    return [Path(root).expanduser() for root in (chosen if chosen[0] else PLACES)]


def located(
    what: str, forms: Sequence[Files], folder: str | os.PathLike[str] | None, fetch: bool
) -> tuple[Files, Path]:
    """Return the form and the folder in which a data set is found.

    Raises `DataError` if it is found nowhere, or a file differs from the published one.
    """
    roots = roots_of(what, folder)
    for form in forms:
        if (place := form.find(roots)) is not None:
            return form, place
    if fetch:
        form = next(form for form in forms if form.url)
        return form, form.fetch(roots[-1] / form.layouts[0])
    names = " or ".join(", ".join(form.digests) for form in forms)
    places = dict.fromkeys(str(p.absolute()) for form in forms for p in form.places(roots))
    raise DataError.at_caller(
        what,
        found="no files in " + ", ".join(places),
        allowed=names,
        hint=f"pass their folder, set {SETTING}, or pass download=True",
    )


def check_format(data_format: str, what: str) -> None:
    """Raise `DataError` if there is no such order of axes."""
    if data_format not in ("NCHW", "NHWC"):
        found = f"data_format={data_format!r:.40}"
        raise DataError.at_caller(what, found=found, allowed='"NCHW" or "NHWC"')


def scaled(images: Array, data_format: str, what: str) -> Array:
    """Return uint8 images (count, channels, height, width) as float32 from 0 to 1."""
    check_format(data_format, what)
    if data_format == "NHWC":
        images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    return np.multiply(images, np.float32(1 / 255), dtype=np.float32)
