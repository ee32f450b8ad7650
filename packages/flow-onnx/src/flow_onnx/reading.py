"""Read models and their tensors from files."""

from __future__ import annotations

import os
from math import prod
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import (
    GraphProto,
    ModelProto,
    SparseTensorProto,
    TensorProto,
    external_data_helper,
    numpy_helper,
)

from flow_core.base.formats.regular_files import open_regular

LARGEST_SPARSE = 2**28
"""Maximum bytes of a sparse tensor as an array, whose zeros are not stored in the file."""


class UnreadableModel(Exception):
    """A file is not a valid model.

    Args:
        reason: what was found instead.
    """


def read_model(path: str) -> ModelProto:
    """Return a model, with the external data in its tensors, after ONNX's own checks.

    Raises:
        UnreadableModel: the file, or a file of external data, cannot be read or is not valid.
    """
    try:
        with open_regular(path) as file:
            model: ModelProto = onnx.load(file, load_external_data=False)
        onnx.checker.check_model(path)
        folder = os.path.dirname(os.path.abspath(path))
        external_data_helper.load_external_data_for_model(model, folder)
    except (
        OSError,
        RuntimeError,  # of C++: the name of a file of external data is too long
        TypeError,
        ValueError,
        DecodeError,
        onnx.checker.ValidationError,
    ) as error:
        raise UnreadableModel(str(error)) from error
    return model


def initializers(graph: GraphProto) -> dict[str, Any]:
    """Return the arrays of all initializers by name, including sparse ones.

    Raises `UnreadableModel` if an initializer is not valid, or two have the same name.
    """
    found = {}
    for tensor in graph.initializer:
        found[tensor.name] = array_of(tensor)
    for sparse in graph.sparse_initializer:
        found[sparse.values.name] = dense_array(sparse)
    if len(found) < len(graph.initializer) + len(graph.sparse_initializer):
        raise UnreadableModel("two initializers with the same name")
    return found


def array_of(tensor: TensorProto) -> Any:
    """Return the array of a tensor.

    Raises `UnreadableModel` if element type, shape and data do not fit together.
    """
    try:
        return numpy_helper.to_array(tensor)
    except (KeyError, TypeError, ValueError, OverflowError, MemoryError) as error:
        kind = f"element type {tensor.data_type}, shape {tuple(tensor.dims)}"
        raise UnreadableModel(f"tensor {tensor.name!r} of {kind}: {error}") from error


def dense_array(sparse: SparseTensorProto) -> Any:
    """Return the array of a sparse tensor.

    Its indices are positions in the flattened tensor, or rows with one position per axis.  Raises
    `UnreadableModel` if an index is out of range, or the array would be too large.
    """
    values, index, shape = array_of(sparse.values), array_of(sparse.indices), tuple(sparse.dims)
    name = sparse.values.name
    if min(shape, default=0) < 0 or prod(shape) * values.itemsize > LARGEST_SPARSE:
        raise UnreadableModel(f"sparse tensor {name!r} of shape {shape}")
    limits = np.array(shape if index.ndim == 2 else prod(shape))
    if index.shape not in ((values.size,), (values.size, len(shape))) or (
        ((index < 0) | (index >= limits)).any()
    ):
        raise UnreadableModel(f"sparse tensor {name!r} of shape {shape} with wrong indices")
    dense = np.zeros(shape, values.dtype)
    dense[tuple(index.T) if index.ndim == 2 else np.unravel_index(index, shape)] = values
    return dense
