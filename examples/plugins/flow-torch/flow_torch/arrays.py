"""Device arrays: tensors with the interface that flow expects."""

from math import prod

import ml_dtypes
import numpy as np
import torch

ALIGNMENT = 64
DTYPES = {
    np.dtype(name): getattr(torch, name)
    for name in ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64")
} | {np.dtype(ml_dtypes.bfloat16): torch.bfloat16}
"""The element type of torch for each element type of numpy."""


class TorchArray:
    """A tensor in device memory.

    Attributes:
        tensor: the tensor, which is contiguous.
        dtype: the element type, as a numpy dtype.
    """

    __slots__ = ("dtype", "tensor")

    def __init__(self, tensor, dtype):
        self.tensor, self.dtype = tensor, dtype

    @property
    def shape(self):
        """Return the shape as a tuple of integers."""
        return tuple(self.tensor.shape)

    @property
    def size(self):
        """Return the number of elements."""
        return self.tensor.numel()

    def host(self):
        """Return a numpy array that shares the tensor's memory, which must be host memory."""
        flat = (
            self.tensor.reshape(-1).view(torch.uint8)
            if self.size
            else self.tensor.new_empty(0, dtype=torch.uint8)
        )
        return flat.numpy().view(self.dtype).reshape(self.shape)


def typed(data, shape, dtype):
    """Return an aligned tensor of bytes (uint8) as a tensor with another shape and type."""
    if not prod(shape):
        return data.new_empty(shape, dtype=dtype)
    return data.view(dtype).view(shape)


def carve(workspace, *parts):
    """Divide a workspace into tensors with the given shapes and numpy types."""
    found, start = [], 0
    for shape, dtype in parts:
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        data = workspace.tensor[start : start + nbytes]
        found.append(typed(data, shape, DTYPES[np.dtype(dtype)]))
        start += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return found
