"""The names that the facade has at its top level: ``flow.image_decode`` and the like."""

from flow_data.ragged import (
    tensor_buffer_to_tensor,
    tensor_buffer_to_tensor_list,
    tensor_list_split,
    tensor_list_to_tensor_buffer,
    tensor_to_tensor_buffer,
)

__all__ = [
    "tensor_buffer_to_tensor",
    "tensor_buffer_to_tensor_list",
    "tensor_list_split",
    "tensor_list_to_tensor_buffer",
    "tensor_to_tensor_buffer",
]
