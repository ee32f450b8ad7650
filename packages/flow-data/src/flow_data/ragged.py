"""Ragged values in jobs: ``flow.tensor_buffer_to_tensor`` and related functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flow_core.authoring.specs import emit
from flow_core.base.dtypes import as_dtype, float32
from flow_core.base.errors import InferenceError

Blob = Any


def tensor_to_tensor_buffer(x: Blob, instance_dims: int, name: str | None = None) -> Blob:
    """Convert the last axes of a tensor to instances of a TensorBuffer.

    Args:
        x: a tensor.
        instance_dims: number of axes of an instance, counted from the last axis of ``x``.
        name: name of the op.

    Returns:
        A blob of element type ``flow.tensor_buffer`` whose shape is that of the leading axes of
        ``x``.

    Raises:
        InferenceError: ``instance_dims`` leaves no leading axis.
    """
    return emit("tensor_to_tensor_buffer", x, instance_dims=instance_dims, name=name)


def tensor_buffer_to_tensor(
    x: Blob, dtype: Any, instance_shape: Sequence[int], name: str | None = None
) -> Blob:
    """Stack the instances of a TensorBuffer into a tensor.

    Args:
        x: a blob of element type ``flow.tensor_buffer``.
        dtype: element type of all instances.
        instance_shape: shape of all instances.
        name: name of the op.

    Returns:
        A tensor of the shape of ``x`` followed by ``instance_shape``. A step in which an instance
        has another type or shape raises `flow_data.instances.InstanceError`.
    """
    shape = tuple(instance_shape)
    dtype = as_dtype(dtype).name
    return emit("tensor_buffer_to_tensor", x, dtype=dtype, instance_shape=shape, name=name)


def tensor_list_to_tensor_buffer(input: Blob, name: str | None = None) -> Blob:
    """Convert a TensorList to a TensorBuffer of shape (count,).

    If one array is fed for the list, its rows are the tensors, which then have one shape.

    Args:
        input: a TensorList of count tensors.
        name: name of the op.

    Returns:
        A blob of shape (count,) and element type ``flow.tensor_buffer``.
    """
    if not input.dtype.is_object and not input.is_tensor_list:
        return tensor_to_tensor_buffer(input, len(input.shape) - 1, name)
    return emit("tensor_list_to_tensor_buffer", input, name=name)


def tensor_buffer_to_tensor_list(
    input: Blob, shape: Sequence[int], dtype: Any, name: str | None = None
) -> Blob:
    """Convert a TensorBuffer to a TensorList, which jobs return as ``tp.ListListNumpy``.

    Args:
        input: a blob of element type ``flow.tensor_buffer``.
        shape: bound of the instances, which must have the same rank and at most as many elements.
        dtype: element type of all instances.
        name: name of the op.

    Returns:
        A TensorList with a tensor for each instance.
    """
    wanted = as_dtype(dtype)
    bound = tuple(shape)
    blob = emit("tensor_buffer_to_tensor_list", input, shape=bound, dtype=wanted.name, name=name)
    return blob.with_bound((input.shape[0], *bound), wanted)


def tensor_list_split(input_tensor_list: Blob, name: str | None = None) -> tuple[Blob, ...]:
    """Return the tensors of a TensorList as separate blobs, for ``tp.ListNumpy``.

    Args:
        input_tensor_list: a TensorList of count tensors.
        name: name of the op.

    Returns:
        A tuple of count blobs, whose shapes vary between steps.
    """
    found = input_tensor_list
    if not found.is_dynamic:
        raise InferenceError.at_caller(
            "tensor_list_split",
            found=f"{found!r}",
            allowed="a TensorList",
            hint="convert a TensorBuffer with flow.tensor_buffer_to_tensor_list",
        )
    shape, dtype = found.shape[1:], found.dtype
    if not found.is_tensor_list:
        found = tensor_list_to_tensor_buffer(found)
    parts = emit("tensor_list_split", found, name=name)
    return tuple(part.with_bound(shape, dtype) for part in parts)


def gen_tensor_buffer(
    shape: Sequence[int],
    shape_list: Sequence[Sequence[int]],
    value_list: Sequence[float],
    data_type: Any = float32,
    dynamic_out: bool = False,
    name: str | None = None,
) -> Blob:
    """Return a TensorBuffer whose instances are filled with one value each.

    Args:
        shape: shape of the TensorBuffer.
        shape_list: the shape of each instance.
        value_list: the value of the elements of each instance.
        data_type: element type of all instances.
        dynamic_out: without effect: the instances have the given shapes in each step.
        name: name of the op.

    Returns:
        A blob of the given shape and element type ``flow.tensor_buffer``.

    Raises:
        InferenceError: ``shape_list`` or ``value_list`` has not one entry for each instance.

    Example:
        >>> @flow.global_function()
        ... def job() -> tp.Bundle[tp.ListNumpy]:
        ...     x = flow.gen_tensor_buffer((2,), [(1, 2), (3,)], [0.0, 1.0])
        ...     return flow.tensor_buffer_to_list_of_tensors(x, (4,), flow.float, True)
        >>> job()
        [[array([[0., 0.]], dtype=float32)], [array([1., 1., 1.], dtype=float32)]]
    """
    return emit(
        "gen_tensor_buffer",
        shape=_sizes(shape),
        shape_list=tuple(map(tuple, shape_list)),
        value_list=tuple(value_list),
        data_type=as_dtype(data_type).name,
        name=name,
    )


def _sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    """Return a shape that may be given as a list of one tuple, as in OneFlow's example."""
    first = shape[0] if len(shape) == 1 else shape
    return tuple(first) if isinstance(first, list | tuple) else tuple(shape)


def tensor_buffer_to_list_of_tensors(
    x: Blob,
    out_shape: Sequence[int],
    out_dtype: Any,
    dynamic_out: bool = False,
    name: str | None = None,
) -> list[Blob]:
    """Return the instances of a TensorBuffer as separate blobs, in the order of its elements.

    Args:
        x: a blob of element type ``flow.tensor_buffer``.
        out_shape: shape of the results.
        out_dtype: element type of all instances.
        dynamic_out: whether the instances keep their own shapes, which may have fewer elements than
            ``out_shape``; jobs return such blobs as ``tp.ListNumpy``.
        name: name of the op.

    Returns:
        A list of as many blobs as ``x`` has elements. A step in which an instance has another type,
        or does not have the number of elements of ``out_shape``, raises
        `flow_data.instances.InstanceError`.

    Example:
        >>> @flow.global_function()
        ... def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Bundle[tp.Numpy]:
        ...     buffer = flow.tensor_to_tensor_buffer(x, 1)
        ...     return flow.tensor_buffer_to_list_of_tensors(buffer, (3, 1), flow.float)
        >>> [y.shape for y in job([[1, 2, 3], [4, 5, 6]])]
        [(3, 1), (3, 1)]
    """
    dtype, shape = as_dtype(out_dtype), tuple(out_shape)
    parts = emit(
        "tensor_buffer_to_list_of_tensors",
        x,
        out_shape=shape,
        out_dtype=dtype.name,
        dynamic_out=dynamic_out,
        name=name,
    )
    return [part.with_bound(shape, dtype) if dynamic_out else part for part in parts]
