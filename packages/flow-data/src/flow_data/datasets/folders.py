"""Images in a folder per class: `image_folder`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

import numpy as np

from flow_core.base.errors import DataError, user_line
from flow_core.base.formats.regular_files import open_regular
from flow_data.datasets.files import scaled
from flow_data.instances import Array
from flow_data.records.folder import image_files


class ImageFolder:
    """Images that are decoded when they are read; see `image_folder`.

    Attributes:
        classes: the names of the classes.
        labels: the class of each image, int32.
    """

    def __init__(
        self,
        files: Sequence[tuple[str, int]],
        classes: tuple[str, ...],
        size: tuple[int, int],
        data_format: str,
    ) -> None:
        self._files, self._size, self._format = list(files), size, data_format
        self.classes = classes
        self.labels = np.array([label for _, label in files], np.int32)

    def __repr__(self) -> str:
        return f"ImageFolder({len(self)} images of {len(self.classes)} classes)"

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, place: int) -> tuple[Array, np.int32]:
        """Return an image, float32 from 0 to 1, and its class.

        Raises:
            DataError: the file is not a readable image.
        """
        codec = import_module("flow_data.codec")  # the facade imports this module, but no decoder
        path, label = self._files[place]
        try:
            with open_regular(path) as file:
                pixels = codec.decode(file.read(), "RGB")
        except (OSError, ValueError) as error:
            raise DataError.at_caller(f"reading {path}", found=str(error)) from error
        height, width = self._size
        target = codec.resize(pixels, width, height, "bilinear")
        image = scaled(target.transpose(2, 0, 1)[None], self._format, "flow.data.image_folder")
        return image[0], np.int32(label)

    def split(self, share: float = 0.2, seed: int = 0) -> tuple[ImageFolder, ImageFolder]:
        """Return the images for training, and a share of all for tests, drawn by a seed.

        Raises:
            DataError: the share is not between 0 and 1.
        """
        if not (isinstance(share, int | float) and 0 < share < 1):
            found = f"share={share!r:.40}"
            raise DataError.at_caller("ImageFolder.split", found=found, allowed="0 to 1")
        order = np.random.default_rng(seed).permutation(len(self))
        count = round(share * len(self))
        parts = (sorted(order[count:].tolist()), sorted(order[:count].tolist()))
        train, test = (
            ImageFolder([self._files[i] for i in part], self.classes, self._size, self._format)
            for part in parts
        )
        return train, test


def image_folder(
    folder: str | os.PathLike[str], size: tuple[int, int], *, data_format: str = "NCHW"
) -> ImageFolder:
    """Return the images of a folder, which has a sub-folder per class, for `flow_data.batches`.

    Args:
        folder: the folder.
        size: height and width to which each image is resized.
        data_format: "NCHW" or "NHWC".

    Returns:
        A sequence of pairs: an image of three channels, float32 from 0 to 1, and its class.

    Raises:
        DataError: the folder is missing or has no images, or an argument is invalid.
    """
    what = "flow.data.datasets.image_folder"
    fits = isinstance(size, Sequence) and len(size) == 2
    if not fits or not all(isinstance(n, int) and n > 0 for n in size):
        found = f"size={size!r:.40}"
        raise DataError.at_caller(what, found=found, allowed="height and width in pixels")
    if not isinstance(folder, str | os.PathLike):
        raise DataError.at_caller(what, found=f"{folder!r:.60}", allowed="a path")
    try:
        classes, files = image_files(os.fspath(folder))
    except DataError as error:
        raise error.with_context(at=user_line()) from None
    scaled(np.zeros((0, 3, 1, 1), np.uint8), data_format, what)  # checks the format
    names = tuple(classes) or (os.path.basename(os.path.abspath(folder)),)
    return ImageFolder(files, names, (size[0], size[1]), data_format)
