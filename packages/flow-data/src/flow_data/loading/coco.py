"""COCO data sets: images in a folder, and their objects in a JSON file."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flow_core.authoring.specs import AttrValue
from flow_core.base.arrays import Array
from flow_core.base.errors import DataError
from flow_core.base.formats.regular_files import open_regular
from flow_data.records.record import Origin, corrupt

_KEYPOINTS = 10
"""The minimum number of visible keypoints of an image in a keypoint data set."""

_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
_CONTENT = (
    "images with id, file_name below image_dir, height and width; annotations with image_id, "
    "category_id and bbox, and optionally iscrowd and segmentation; categories with id"
)

_MAX_SIDE = 2**31 - 1
"""The maximum number of pixels of a side, because sizes are int32."""

_KEPT = 1000
"""The maximum number of batches that are kept for later requests by other threads."""


class CocoAnnotations:
    """The images of an annotation file and their objects, except crowds.

    An object is left out with its box, label and polygons if its box, clipped to the image, is not
    more than a pixel wide and high; COCO has such boxes.

    Args:
        only_annotated: omit images without a valid object.
    """

    def __init__(self, path: str, image_dir: str, only_annotated: bool) -> None:
        self._folder = image_dir
        data = _load(path)
        try:
            self._index(data)
            wanted = (i for i in self._images if not only_annotated or _usable(self._objects[i]))
            self.ids: list[int] = sorted(wanted)
        except _MALFORMED as error:
            raise DataError(f"reading {path}", found=_described(error), allowed=_CONTENT) from error
        if not self.ids:
            raise DataError(f"reading {path}", found="no image with objects")

    def _index(self, data: Mapping[str, Any]) -> None:
        self._images = {int(image["id"]): image for image in data["images"]}
        self._objects: dict[int, list[Any]] = {i: [] for i in self._images}
        for thing in data["annotations"]:
            if not thing.get("iscrowd", 0):
                self._objects[int(thing["image_id"])].append(thing)
        categories = sorted(int(c["id"]) for c in data["categories"])
        self._labels = {c: i for i, c in enumerate(categories, 1)}
        for image_id in self._images:
            size, path = self.size(image_id), self.path(image_id)
            if not _is_below(self._images[image_id]["file_name"]):
                raise ValueError(f"the file_name {path!r} outside of image_dir")
            if b"\0" in os.fsencode(path) or not 1 <= min(size) <= max(size) <= _MAX_SIDE:
                raise ValueError(f"image {path} of {size} pixels")

    def path(self, image_id: int) -> str:
        return os.path.join(self._folder, self._images[image_id]["file_name"])

    def size(self, image_id: int) -> tuple[int, int]:
        image = self._images[image_id]
        return int(image["height"]), int(image["width"])

    def boxes(self, image_id: int) -> tuple[Array, Array]:
        """Return boxes (xmin, ymin, xmax, ymax) clipped to the image, and labels of at least 1."""
        found = self._boxed(image_id)
        labels = [self._labels[int(thing["category_id"])] for thing, _ in found]
        return _floats([box for _, box in found], 4), np.array(labels, np.int32)

    def _boxed(self, image_id: int) -> list[tuple[Any, tuple[float, ...]]]:
        """Return the objects whose box, clipped to the image, has an area, and these boxes."""
        height, width = self.size(image_id)
        found = [(o, _corners(o["bbox"], height, width)) for o in self._objects[image_id]]
        return [(thing, box) for thing, box in found if box is not None]

    def polygons(self, image_id: int) -> tuple[Array, Array]:
        """Return the polygon points (x, y), and indices (point, polygon, object) from 0."""
        points: list[Any] = []
        index: list[tuple[int, int, int]] = []
        for number, (thing, _) in enumerate(self._boxed(image_id)):
            outlines = thing.get("segmentation")
            for i, outline in enumerate(outlines if isinstance(outlines, list) else ()):
                pairs = list(zip(outline[::2], outline[1::2], strict=True))
                points += pairs
                index += [(k, i, number) for k in range(len(pairs))]
        return _floats(points, 2), np.array(index, np.int32).reshape(-1, 3)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _is_below(name: str) -> bool:
    """Return whether a path stays in the folder that it is relative to."""
    return not (os.path.isabs(name) or os.path.normpath(name).split(os.sep)[0] == os.pardir)


def _floats(rows: Sequence[Any], width: int) -> Array:
    with np.errstate(over="ignore"):
        found = np.array(rows, np.float32).reshape(-1, width)
    if not np.isfinite(found).all():
        raise ValueError("a coordinate that is not finite")
    return found


def _load(path: str) -> Mapping[str, Any]:
    try:
        with open_regular(path) as file:
            data: Mapping[str, Any] = json.loads(file.read().decode())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"reading {path}",
            found=_described(error),
            allowed="COCO annotations: JSON with images, annotations and categories",
        ) from error
    if not isinstance(data, dict):
        raise DataError(f"reading {path}", found=type(data).__name__, allowed="a JSON object")
    absent = [k for k in ("images", "annotations", "categories") if k not in data]
    if absent:
        raise DataError(f"reading {path}", found=f"no {', '.join(absent)}")
    return data


def _pixels(path: str) -> Array:
    with open_regular(path) as file:
        return np.fromfile(file, np.uint8)


def _usable(objects: Sequence[Any]) -> bool:
    if not any(thing["bbox"][2] > 1 and thing["bbox"][3] > 1 for thing in objects):
        return False
    if "keypoints" not in objects[0]:
        return True
    points = [v for thing in objects for v in thing.get("keypoints", ())[2::3]]
    return len([v for v in points if v > 0]) >= _KEYPOINTS


def _corners(box: Sequence[float], height: int, width: int) -> tuple[float, ...] | None:
    x, y, w, h = box
    left, top = min(max(x, 0), width - 1), min(max(y, 0), height - 1)
    right = min(max(x + max(w - 1, 0), 0), width - 1)
    bottom = min(max(y + max(h - 1, 0), 0), height - 1)
    return None if left >= right or top >= bottom else (left, top, right, bottom)


class _Shard:
    """The batches of one shard, which reads every n-th image or contiguous ranges of images."""

    def __init__(self, known: CocoAnnotations, attrs: Mapping[str, AttrValue], number: int) -> None:
        self._known = known
        self._attrs = attrs
        self._number = number
        self._rows = attrs["batch_size"] // attrs["shards"]

    def _positions(self) -> Iterator[int]:
        """Yield the positions of this shard in the infinite sequence of epochs."""
        count, shards = len(self._known.ids), self._attrs["shards"]
        if self._attrs["stride_partition"]:
            yield from itertools.count(self._number, shards)
        size = math.ceil(count / shards)
        for start in itertools.count(self._number * size, shards * size):
            yield from range(start, start + size)

    def _ids(self) -> Iterator[int]:
        ids = self._known.ids
        epoch, order = -1, ids
        for position in self._positions():
            if position // len(ids) != epoch:
                epoch = position // len(ids)
                order = self._shuffled(epoch)
            yield order[position % len(ids)]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(self._known.ids)
        if self._attrs["shuffle_after_epoch"]:
            random.Random(f"{self._attrs['random_seed']}-{epoch}").shuffle(order)
        return order

    def batches(self) -> Iterator[list[int]]:
        """Yield batches of images; all images of a batch have one group, portrait or other.

        Images wait until their group has enough images for a batch. The next batch is that of the
        group whose first image has waited longest.
        """
        waiting: dict[int, list[tuple[int, int]]] = {}
        for arrived, image_id in enumerate(self._ids()):
            height, width = self._known.size(image_id)
            kind = height // width if self._attrs["group_by_ratio"] else 0
            waiting.setdefault(kind, []).append((arrived, image_id))
            while True:
                first = min(w for w in waiting.values() if w)
                if len(first) < self._rows:
                    break
                yield [i for _, i in first[: self._rows]]
                del first[: self._rows]
                if not any(waiting.values()):
                    break


class CocoSource:
    """The source of a COCO data set.

    Args:
        rows: number of images that this device reads per step.
    """

    def __init__(self, attrs: Mapping[str, AttrValue], rows: int) -> None:
        self._known = CocoAnnotations(
            attrs["annotation_file"], attrs["image_dir"], attrs["remove_images_without_annotations"]
        )
        self.skip = attrs["on_error"] == "skip"
        region, size = attrs["region"], attrs["batch_size"] // attrs["shards"]
        start = region[0][0] if region else 0
        first, stop = start // size, -(-(start + rows) // size)
        self._shards = [_Shard(self._known, attrs, number) for number in range(first, stop)]
        self._window = slice(start - first * size, start - first * size + rows)
        self._lock = threading.Lock()
        self._restart()

    def _restart(self) -> None:
        self._batches = [shard.batches() for shard in self._shards]
        self._next = 0
        self._ready: dict[int, list[int]] = {}

    def _next_batch(self) -> list[int]:
        self._next += 1
        return list(itertools.chain.from_iterable(map(next, self._batches)))[self._window]

    def refs(self, step: int) -> list[int]:
        with self._lock:
            if step in self._ready:
                return self._ready.pop(step)
            if step < self._next:
                self._restart()
            while self._next < step:
                early = self._next
                self._ready[early] = self._next_batch()
                self._ready.pop(early - _KEPT, None)
            return self._next_batch()

    def read(self, ref: int, row: int, outputs: Sequence[Array]) -> None:
        """Read an image and its objects into a row of the outputs."""
        image, image_id, size, boxes, labels, points, index = outputs
        try:
            image[row] = _pixels(self._known.path(ref))
        except OSError as error:
            raise corrupt(self.origin(ref), f"{error.strerror}", "an image file") from error
        try:
            image_id[row], size[row] = ref, self._known.size(ref)
            boxes[row], labels[row] = self._known.boxes(ref)
            points[row], index[row] = self._known.polygons(ref)
        except _MALFORMED as error:
            found = f"annotations with {_described(error)}"
            raise corrupt(self.origin(ref), found, _CONTENT) from error

    def origin(self, ref: int) -> Origin:
        return Origin(self._known.path(ref), -1, ref)

    def broken(self) -> Sequence[str]:
        """Return no messages, because only whole images are skipped."""
        return ()
