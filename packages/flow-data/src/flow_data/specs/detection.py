"""Op specs for bounding boxes and polygons of objects in images."""

from __future__ import annotations

from flow_core.authoring.specs import InferContext, OpSpec, TensorType
from flow_core.base.dtypes import float32, int32
from flow_data.specs.rules import require_buffers, require_dtype, require_equal_counts, row_op


def _with_size(ctx: InferContext) -> tuple[TensorType, ...]:
    count = require_equal_counts(ctx)
    size = require_dtype(ctx, 1, int32, "(width, height) of each image")
    ctx.check(size.shape == (count, 2), f"image_size {size}", f"shape {(count, 2)}")
    return (require_buffers(ctx),)


def _with_scale(ctx: InferContext) -> tuple[TensorType, ...]:
    count = require_equal_counts(ctx)
    scale = require_dtype(ctx, 1, float32, "(width, height) factors of each image")
    ctx.check(scale.shape == (count, 2), f"scale {scale}", f"shape {(count, 2)}")
    return (require_buffers(ctx),)


def _to_mask(ctx: InferContext) -> tuple[TensorType, ...]:
    count = require_equal_counts(ctx)
    require_buffers(ctx, 1)
    size = require_dtype(ctx, 2, int32, "(width, height) of each image")
    ctx.check(size.shape == (count, 2), f"image_size {size}", f"shape {(count, 2)}")
    return (require_buffers(ctx),)


def _flip(type_: str, objects: str) -> OpSpec:
    return row_op(
        type=type_,
        inputs=(objects, "image_size", "flip_code?"),
        infer=_with_size,
        attrs={"code": 0},
        doc="Flip coordinates with their images, of size (width, height).",
    )


def _scale(type_: str, objects: str) -> OpSpec:
    return row_op(
        type=type_,
        inputs=(objects, "scale"),
        infer=_with_scale,
        doc="Scale coordinates by (width, height) factors of their images.",
    )


OPS: tuple[OpSpec, ...] = (
    _flip("object_bbox_flip", "bbox"),
    _flip("object_segmentation_polygon_flip", "poly"),
    _scale("object_bbox_scale", "bbox"),
    _scale("object_segmentation_polygon_scale", "poly"),
    row_op(
        type="object_segmentation_polygon_to_mask",
        inputs=("poly", "poly_index", "image_size"),
        infer=_to_mask,
        doc="Rasterize each object's polygons: int8 (objects, height, width).",
    ),
)
