"""COCO data sets: pictures in a folder, objects in a JSON file."""

from __future__ import annotations

import json
import math
import os
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flow_core.errors import DataError
from flow_data.records.record import Origin, corrupt

_KEYPOINTS = 10
"""A picture of a keypoint data set counts when this many points of it are visible."""


class CocoAnnotations:
    """The pictures of an annotation file and the objects in them, crowds left out.

    Args:
        path: the JSON file.
        image_dir: folder of the pictures.
        only_annotated: leave out pictures without a usable object.
    """

    def __init__(self, path: str, image_dir: str, only_annotated: bool) -> None:
        self._folder = image_dir
        data = _load(path)
        self._images = {int(image["id"]): image for image in data["images"]}
        self._objects: dict[int, list[Any]] = {i: [] for i in self._images}
        for thing in data["annotations"]:
            if not thing["iscrowd"]:
                self._objects[int(thing["image_id"])].append(thing)
        categories = sorted(int(c["id"]) for c in data["categories"])
        self._labels = {c: i for i, c in enumerate(categories, 1)}
        wanted = (i for i in self._images if not only_annotated or _usable(self._objects[i]))
        self.ids: list[int] = sorted(wanted)
        if not self.ids:
            raise DataError(f"reading {path}", found="no picture with objects")

    def path(self, image_id: int) -> str:
        """The file of a picture."""
        return os.path.join(self._folder, self._images[image_id]["file_name"])

    def size(self, image_id: int) -> tuple[int, int]:
        """Height and width of a picture."""
        image = self._images[image_id]
        return int(image["height"]), int(image["width"])

    def boxes(self, image_id: int) -> tuple[Any, Any]:
        """Boxes (xmin, ymin, xmax, ymax) within the picture, and labels from 1 on."""
        height, width = self.size(image_id)
        boxes, labels = [], []
        for thing in self._objects[image_id]:
            box = _corners(thing["bbox"], height, width)
            labels.append(self._labels[int(thing["category_id"])])
            if box is not None:
                boxes.append(box)
        return np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int32)

    def polygons(self, image_id: int) -> tuple[Any, Any]:
        """Points (x, y), and for each (point, polygon, object), all counted from 0."""
        points: list[Any] = []
        index: list[tuple[int, int, int]] = []
        for number, thing in enumerate(self._objects[image_id]):
            outlines = thing["segmentation"]
            for i, outline in enumerate(outlines if isinstance(outlines, list) else ()):
                pairs = list(zip(outline[::2], outline[1::2], strict=True))
                points += pairs
                index += [(k, i, number) for k in range(len(pairs))]
        shape = np.array(points, np.float32).reshape(-1, 2)
        return shape, np.array(index, np.int32).reshape(-1, 3)


def _load(path: str) -> Mapping[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            data: Mapping[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise DataError(
            f"reading {path}",
            found=f"{type(error).__name__}: {error}",
            allowed="COCO annotations: JSON with images, annotations and categories",
        ) from error
    absent = [k for k in ("images", "annotations", "categories") if k not in data]
    if absent:
        raise DataError(f"reading {path}", found=f"no {', '.join(absent)}")
    return data


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


class CocoSource:
    """The pictures of a COCO data set, each device's in an order of its own as OneFlow has it.

    Args:
        attrs: attributes of the op.
        rows: pictures per step of this device.
    """

    skip = False

    def __init__(self, attrs: Mapping[str, Any], rows: int) -> None:
        self._known = CocoAnnotations(
            attrs["annotation_file"], attrs["image_dir"], attrs["remove_images_without_annotations"]
        )
        self._attrs = attrs
        self._rows = rows
        region = attrs["region"]
        self._shards = attrs["batch_size"] // rows
        self._shard = (region[0][0] if region else 0) // rows
        self._lock = threading.Lock()
        self._next = 0
        self._batches = self._grouped()
        self._ready: dict[int, list[int]] = {}

    def _positions(self) -> Iterator[int]:
        """Positions in the endless sequence of epochs that this shard reads."""
        count = len(self._known.ids)
        if self._attrs["stride_partition"]:
            position = self._shard
            while True:
                yield position
                position += self._shards
        size = math.ceil(count / self._shards)
        start = self._shard * size
        while True:
            yield from range(start, start + size)
            start += self._shards * size

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

    def _grouped(self) -> Iterator[list[int]]:
        """Batches of pictures that are all higher than wide, or all not.

        A picture of the other kind waits for the next batch that begins with its kind; the kind
        of the picture that has waited longest comes next.
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

    def refs(self, step: int) -> list[int]:
        """Ids of the pictures of a step."""
        with self._lock:
            if step in self._ready:
                return self._ready.pop(step)
            if step < self._next:
                self._batches, self._next = self._grouped(), 0
                self._ready.clear()
            while self._next < step:
                self._ready[self._next] = next(self._batches)
                self._next += 1
            self._next += 1
            return next(self._batches)

    def put(self, ref: int, row: int, outputs: Sequence[Any]) -> None:
        """Reads a picture and its objects."""
        image, image_id, size, boxes, labels, points, index = outputs
        path = self._known.path(ref)
        try:
            image[row] = np.fromfile(path, np.uint8)
        except OSError as error:
            raise corrupt(Origin(path, -1, ref), f"{error.strerror}", "a picture") from error
        image_id[row] = ref
        size[row] = self._known.size(ref)
        boxes[row], labels[row] = self._known.boxes(ref)
        points[row], index[row] = self._known.polygons(ref)

    def broken(self) -> Sequence[str]:
        """Nothing is left out."""
        return ()
