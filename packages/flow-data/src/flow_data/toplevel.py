"""The names of flow-data at the top level of the API, such as ``flow.image_decode``."""

from flow_data.detection import (
    object_bbox_flip,
    object_bbox_scale,
    object_segmentation_polygon_flip,
    object_segmentation_polygon_scale,
    object_segmentation_polygon_to_mask,
)
from flow_data.image import batch_align as image_batch_align
from flow_data.image import decode as image_decode
from flow_data.image import flip as image_flip
from flow_data.image import normalize as image_normalize
from flow_data.image import random_crop as image_random_crop
from flow_data.image import resize as image_resize
from flow_data.image import target_resize as image_target_resize
from flow_data.ragged import (
    gen_tensor_buffer,
    tensor_buffer_to_list_of_tensors,
    tensor_buffer_to_tensor,
    tensor_buffer_to_tensor_list,
    tensor_list_split,
    tensor_list_to_tensor_buffer,
    tensor_to_tensor_buffer,
)

__all__ = [
    "gen_tensor_buffer", "image_batch_align", "image_decode", "image_flip", "image_normalize",
    "image_random_crop", "image_resize", "image_target_resize", "object_bbox_flip",
    "object_bbox_scale", "object_segmentation_polygon_flip", "object_segmentation_polygon_scale",
    "object_segmentation_polygon_to_mask", "tensor_buffer_to_list_of_tensors",
    "tensor_buffer_to_tensor", "tensor_buffer_to_tensor_list", "tensor_list_split",
    "tensor_list_to_tensor_buffer", "tensor_to_tensor_buffer",
]  # fmt: skip
