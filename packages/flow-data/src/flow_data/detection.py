"""``flow.detection``: ops on bounding boxes and polygons of objects in images."""

from __future__ import annotations

from typing import Any

from flow_core.authoring.specs import emit
from flow_data.image import emit_flip

Blob = Any

__all__ = [
    "object_bbox_flip",
    "object_bbox_scale",
    "object_segmentation_polygon_flip",
    "object_segmentation_polygon_scale",
    "object_segmentation_polygon_to_mask",
]


def object_bbox_flip(bbox: Blob, image_size: Blob, flip_code: Any, name: str | None = None) -> Blob:
    """Flip boxes with their images.

    Args:
        bbox: TensorBuffer of floating boxes (objects, 4): xmin, ymin, xmax, ymax.
        image_size: int32 (count, 2): width and height of each image.
        flip_code: see `flow_data.image.flip`.
        name: name of the op.
    """
    return emit_flip("object_bbox_flip", [bbox, image_size], flip_code, name)


def object_bbox_scale(bbox: Blob, scale: Blob, name: str | None = None) -> Blob:
    """Scale boxes by float32 (count, 2) factors of width and height."""
    return emit("object_bbox_scale", bbox, scale, name=name)


def object_segmentation_polygon_flip(
    poly: Blob, image_size: Blob, flip_code: Any, name: str | None = None
) -> Blob:
    """Flip polygon points (points, 2); see `object_bbox_flip` for the arguments."""
    return emit_flip("object_segmentation_polygon_flip", [poly, image_size], flip_code, name)


def object_segmentation_polygon_scale(poly: Blob, scale: Blob, name: str | None = None) -> Blob:
    """Scale polygon points by float32 (count, 2) factors of width and height."""
    return emit("object_segmentation_polygon_scale", poly, scale, name=name)


def object_segmentation_polygon_to_mask(
    poly: Blob, poly_index: Blob, image_size: Blob, name: str | None = None
) -> Blob:
    """Rasterise the polygons of each object to a mask.

    Args:
        poly: TensorBuffer of points (points, 2).
        poly_index: TensorBuffer of integers (points, 3): index of the point in its polygon, of the
            polygon in its object, and of the object.
        image_size: int32 (count, 2): width and height of each image.
        name: name of the op.

    Returns:
        TensorBuffer of int8 (objects, height, width).
    """
    return emit("object_segmentation_polygon_to_mask", poly, poly_index, image_size, name=name)
