"""Kernels for bounding boxes and polygons."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext
from flow_data.headers import check_pixels
from flow_data.instances import Array, describe, instance_error, pooled_copy
from flow_data.kernels.images import flip_codes
from flow_data.kernels.polygons import FARTHEST, fill
from flow_data.rows import for_each_row


def _check(op: str, row: int, x: Array, columns: int) -> None:
    if x.ndim != 2 or x.shape[1] != columns or x.dtype.kind != "f":
        raise instance_error(op, row, describe(x), f"a floating type, shape (count, {columns})")


def bbox_flip(ctx: BindContext) -> Launch:
    """Return a launch that flips boxes (xmin, ymin, xmax, ymax) in pixel coordinates."""
    boxes, size, out = ctx.inputs[0], ctx.inputs[1], ctx.outputs[0]
    codes = flip_codes(ctx, 2, len(boxes))

    def one(row: int) -> None:
        _check("object_bbox_flip", row, boxes[row], 4)
        made = pooled_copy(boxes[row])
        for axis, bit in ((0, 0x01), (1, 0x10)):
            if int(codes[row]) & bit:
                last = size[row, axis] - 1
                made[:, axis] = last - boxes[row][:, axis + 2]
                made[:, axis + 2] = last - boxes[row][:, axis]
        out[row] = made

    return for_each_row("object_bbox_flip", len(boxes), one)


def polygon_flip(ctx: BindContext) -> Launch:
    """Return a launch that flips points (x, y)."""
    points, size, out = ctx.inputs[0], ctx.inputs[1], ctx.outputs[0]
    codes = flip_codes(ctx, 2, len(points))

    def one(row: int) -> None:
        _check("object_segmentation_polygon_flip", row, points[row], 2)
        made = pooled_copy(points[row])
        for axis, bit in ((0, 0x01), (1, 0x10)):
            if int(codes[row]) & bit:
                np.subtract(size[row, axis], points[row][:, axis], out=made[:, axis])
        out[row] = made

    return for_each_row("object_segmentation_polygon_flip", len(points), one)


def _scale(ctx: BindContext, op: str, columns: int) -> Launch:
    x, scale, out = ctx.inputs[0], ctx.inputs[1], ctx.outputs[0]

    def one(row: int) -> None:
        _check(op, row, x[row], columns)
        made = pooled_copy(x[row])
        made *= np.tile(scale[row], columns // 2)
        out[row] = made

    return for_each_row(op, len(x), one)


def bbox_scale(ctx: BindContext) -> Launch:
    """Return a launch that scales boxes by factors (width, height)."""
    return _scale(ctx, "object_bbox_scale", 4)


def polygon_scale(ctx: BindContext) -> Launch:
    """Return a launch that scales points by factors (width, height)."""
    return _scale(ctx, "object_segmentation_polygon_scale", 2)


def polygon_to_mask(ctx: BindContext) -> Launch:
    """Return a launch that rasterizes polygons to masks, one per object."""
    (points, index, size), out = ctx.inputs, ctx.outputs[0]
    op = "object_segmentation_polygon_to_mask"

    def one(row: int) -> None:
        _check(op, row, points[row], 2)
        where = index[row]
        if where.shape != (len(points[row]), 3) or where.dtype.kind != "i":
            raise instance_error(
                op, row, describe(where), f"integers of shape ({len(points[row])}, 3)"
            )
        width, height = int(size[row, 0]), int(size[row, 1])
        check_pixels(width, height)
        if not (np.abs(points[row]) <= FARTHEST).all():
            raise instance_error(op, row, "a point beyond", f"coordinates up to {FARTHEST:g}")
        objects = list(_objects(points[row], where))
        masks = np.zeros((len(objects), height, width), np.int8)
        for mask, polygons in zip(masks, objects, strict=True):
            for polygon in polygons:
                fill(mask, polygon)
        out[row] = masks

    return for_each_row(op, len(points), one)


def _objects(points: Array, index: Array) -> Iterator[list[Array]]:
    """Yield the polygons of each object; points have indices (point, polygon, object) from 0."""
    keys = index[:, 2].astype(np.int64) * (index[:, 1].max(initial=0) + 1) + index[:, 1]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    polygons = np.split(points, starts[1:]) if len(starts) else []
    owners = index[starts, 2]
    for number in range(int(owners.max(initial=-1)) + 1):
        found = [p for p, owner in zip(polygons, owners, strict=True) if owner == number]
        if not found:
            raise ValueError(f"no polygon of object {number}")
        yield found
