"""Op specs for bounding boxes and polygons of objects in images."""

from __future__ import annotations

from flow_core.authoring.op_rules import specs
from flow_core.authoring.specs import InferContext, TensorType
from flow_core.base.dtypes import DType, float32, int32
from flow_data.specs.rules import RowOp, require_buffers, require_dtype, require_equal_counts


def _check_pairs(ctx: InferContext, index: int, dtype: DType, name: str, hint: str) -> None:
    count, found = require_equal_counts(ctx), require_dtype(ctx, index, dtype, hint)
    ctx.check(found.shape == (count, 2), f"{name} {found}", f"shape {(count, 2)}")


class ObjectBboxFlip(RowOp):
    schema = "object_bbox_flip(bbox, image_size, flip_code?) -> out"
    attrs = {"code": 0}
    doc = "Flip coordinates with their images, of size (width, height)."

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        _check_pairs(ctx, 1, int32, "image_size", "(width, height) of each image")
        return (require_buffers(ctx),)


class ObjectSegmentationPolygonFlip(ObjectBboxFlip):
    schema = "object_segmentation_polygon_flip(poly, image_size, flip_code?) -> out"


class ObjectBboxScale(RowOp):
    schema = "object_bbox_scale(bbox, scale) -> out"
    doc = "Scale coordinates by (width, height) factors of their images."

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        _check_pairs(ctx, 1, float32, "scale", "(width, height) factors of each image")
        return (require_buffers(ctx),)


class ObjectSegmentationPolygonScale(ObjectBboxScale):
    schema = "object_segmentation_polygon_scale(poly, scale) -> out"


class ObjectSegmentationPolygonToMask(RowOp):
    """Rasterize each object's polygons: int8 (objects, height, width)."""

    schema = "object_segmentation_polygon_to_mask(poly, poly_index, image_size) -> out"

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        require_equal_counts(ctx)
        require_buffers(ctx, 1)
        _check_pairs(ctx, 2, int32, "image_size", "(width, height) of each image")
        return (require_buffers(ctx),)


OPS = specs(
    ObjectBboxFlip, ObjectSegmentationPolygonFlip, ObjectBboxScale, ObjectSegmentationPolygonScale,
    ObjectSegmentationPolygonToMask,
)  # fmt: skip
