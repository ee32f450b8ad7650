"""Ops on boxes and polygons of the objects in images."""

from __future__ import annotations

from flow_core.authoring.specs import InferContext, OpSpec, TensorType
from flow_core.base.dtypes import float32, int32
from flow_data.specs.rules import buffers, need, own_region, rows, same_count


def _with_size(ctx: InferContext) -> tuple[TensorType, ...]:
    count = same_count(ctx)
    size = need(ctx, 1, int32, "(width, height) of each image")
    ctx.check(size.shape == (count, 2), f"image_size {size}", f"shape {(count, 2)}")
    return (buffers(ctx),)


def _with_scale(ctx: InferContext) -> tuple[TensorType, ...]:
    count = same_count(ctx)
    scale = need(ctx, 1, float32, "(width, height) factors of each image")
    ctx.check(scale.shape == (count, 2), f"scale {scale}", f"shape {(count, 2)}")
    return (buffers(ctx),)


def _to_mask(ctx: InferContext) -> tuple[TensorType, ...]:
    count = same_count(ctx)
    buffers(ctx, 1)
    size = need(ctx, 2, int32, "(width, height) of each image")
    ctx.check(size.shape == (count, 2), f"image_size {size}", f"shape {(count, 2)}")
    return (buffers(ctx),)


def _flip(type_: str, objects: str) -> OpSpec:
    return OpSpec(
        type=type_,
        inputs=(objects, "image_size", "flip_code?"),
        infer=_with_size,
        attrs={"code": 0},
        sbp=rows,
        localize=own_region,
        host=True,
        doc="Mirrored with their images, whose sizes are (width, height).",
    )


def _scale(type_: str, objects: str) -> OpSpec:
    return OpSpec(
        type=type_,
        inputs=(objects, "scale"),
        infer=_with_scale,
        sbp=rows,
        localize=own_region,
        host=True,
        doc="Scaled with their images, by (width, height) factors.",
    )


OPS: tuple[OpSpec, ...] = (
    _flip("object_bbox_flip", "bbox"),
    _flip("object_segmentation_polygon_flip", "poly"),
    _scale("object_bbox_scale", "bbox"),
    _scale("object_segmentation_polygon_scale", "poly"),
    OpSpec(
        type="object_segmentation_polygon_to_mask",
        inputs=("poly", "poly_index", "image_size"),
        infer=_to_mask,
        sbp=rows,
        localize=own_region,
        host=True,
        doc="The inside of each object's polygons as 1: int8 (objects, height, width).",
    ),
)
