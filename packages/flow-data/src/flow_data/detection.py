"""``flow.detection``: ops on bounding boxes and polygons of objects in images."""

from __future__ import annotations

from typing import Any

from flow_core.authoring.specs import emit
from flow_data.image import emit_flip

Blob = Any

__all__ = [
    "object_bbox_flip", "object_bbox_scale", "object_segmentation_polygon_flip",
    "object_segmentation_polygon_scale", "object_segmentation_polygon_to_mask",
]  # fmt: skip


def object_bbox_flip(bbox: Blob, image_size: Blob, flip_code: Any, name: str | None = None) -> Blob:
    """Flip boxes in the same way as their images.

    Args:
        bbox: TensorBuffer of floating-point boxes (objects, 4): xmin, ymin, xmax, ymax.
        image_size: int32 (count, 2): width and height of each image.
        flip_code: see `flow_data.image.flip`.
        name: name of the op.
    """
    return emit_flip("object_bbox_flip", [bbox, image_size], flip_code, name)


def object_bbox_scale(bbox: Blob, scale: Blob, name: str | None = None) -> Blob:
    """Scale boxes; ``scale`` (float32, (count, 2)) has a factor for the width and the height."""
    return emit("object_bbox_scale", bbox, scale, name=name)


def object_segmentation_polygon_flip(
    poly: Blob, image_size: Blob, flip_code: Any, name: str | None = None
) -> Blob:
    """Flip polygon points (points, 2); the arguments are those of `object_bbox_flip`."""
    return emit_flip("object_segmentation_polygon_flip", [poly, image_size], flip_code, name)


def object_segmentation_polygon_scale(poly: Blob, scale: Blob, name: str | None = None) -> Blob:
    """Scale polygons; ``scale`` (float32, (count, 2)) has a factor for the width and the height."""
    return emit("object_segmentation_polygon_scale", poly, scale, name=name)


def object_segmentation_polygon_to_mask(
    poly: Blob, poly_index: Blob, image_size: Blob, name: str | None = None
) -> Blob:
    """Rasterize the polygons of each object into a mask, by the rule of COCO's own tools.

    A pixel belongs to the mask if its center is in one of the object's polygons. Outlines are drawn
    on a grid of 5 x 5 points per pixel, as pycocotools does, whose masks are equal for coordinates
    with up to three decimals. OneFlow also fills the pixels of the outlines.

    Args:
        poly: TensorBuffer of points (points, 2).
        poly_index: TensorBuffer of integers (points, 3): the index of the point in its polygon, the
            index of the polygon in its object, and the index of the object.
        image_size: int32 (count, 2): width and height of each image.
        name: name of the op.

    Returns:
        A TensorBuffer of int8 masks (objects, height, width).
    """
    return emit("object_segmentation_polygon_to_mask", poly, poly_index, image_size, name=name)
