"""Op specs of conversions between tensors, TensorBuffer and TensorList."""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.authoring.op_rules import OpDef, specs
from flow_core.authoring.specs import (
    REQUIRED,
    InferContext,
    S,
    SbpContext,
    Signature,
    Signatures,
    TensorType,
    tensor_type,
)
from flow_core.base.dtypes import as_dtype, tensor_buffer
from flow_data.specs.rules import RowOp, ragged, require_buffers, require_dtype


class TensorToTensorBuffer(OpDef):
    """Convert the last axes of a tensor to instances."""

    schema = "tensor_to_tensor_buffer(in) -> out"
    attrs = {"instance_dims": REQUIRED}
    host = True

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        x, dims = ctx.inputs[0], ctx.attrs["instance_dims"]
        ctx.check(not x.dtype.is_object, f"input of type {x}", "a tensor of numbers")
        ctx.check(
            0 < dims < len(x.shape),
            f"instance_dims {dims} for shape {x.shape}",
            f"1 to {len(x.shape) - 1}",
        )
        return (tensor_type(x.shape[:-dims], tensor_buffer),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        axes = range(len(ctx.outputs[0].shape))
        return tuple(Signature((S(i),), (S(i),)) for i in axes)

    def gradient(self, g: Any) -> tuple[Any]:
        shape = g.x.shape[len(g.dy.shape) :]
        dtype = g.x.dtype.name
        return (g.one("tensor_buffer_to_tensor", g.dy, dtype=dtype, instance_shape=shape),)


class TensorBufferToTensor(OpDef):
    """Stack instances of one shape to a tensor."""

    schema = "tensor_buffer_to_tensor(in) -> out"
    attrs = {"dtype": REQUIRED, "instance_shape": REQUIRED}
    host = True

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        x = require_dtype(ctx, 0, tensor_buffer, "convert with flow.tensor_to_tensor_buffer")
        shape = tuple(ctx.attrs["instance_shape"])
        ctx.check(all(n > 0 for n in shape), f"instance_shape {shape}", "positive sizes")
        return (tensor_type((*x.shape, *shape), as_dtype(ctx.attrs["dtype"])),)

    def sbp(self, ctx: SbpContext) -> Signatures:
        axes = range(len(ctx.inputs[0].shape))
        return tuple(Signature((S(i),), (S(i),)) for i in axes)

    def gradient(self, g: Any) -> tuple[Any]:
        return (
            g.one("tensor_to_tensor_buffer", g.dy, instance_dims=len(g.attrs["instance_shape"])),
        )


class TensorListToTensorBuffer(RowOp):
    """Convert a TensorList to a TensorBuffer of the same objects."""

    schema = "tensor_list_to_tensor_buffer(in) -> out"
    gradient = staticmethod(lambda g: (g.dy,))
    alias = 0

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        return (require_buffers(ctx),)


class TensorBufferToTensorList(RowOp):
    """Convert a TensorBuffer to a TensorList of a given rank and maximum size."""

    schema = "tensor_buffer_to_tensor_list(in) -> out"
    attrs = {"shape": REQUIRED, "dtype": REQUIRED}
    gradient = staticmethod(lambda g: (g.dy,))

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        found = require_buffers(ctx)
        as_dtype(ctx.attrs["dtype"])
        shape = tuple(ctx.attrs["shape"])
        ctx.check(all(n > 0 for n in shape), f"shape {shape}", "positive sizes")
        return (found,)


class TensorListSplit(OpDef):
    """Return the tensors of a list separately."""

    schema = "tensor_list_split(in) -> out*"
    host = True

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        return (ragged(1),) * require_buffers(ctx).shape[0]


class GenTensorBuffer(OpDef):
    """A TensorBuffer whose instances have the given shapes, each filled with one value."""

    schema = "gen_tensor_buffer() -> out"
    attrs = {
        "shape": REQUIRED, "shape_list": REQUIRED, "value_list": REQUIRED, "data_type": "float32",
    }  # fmt: skip
    host = True

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        found = tensor_type(tuple(ctx.attrs["shape"]), tensor_buffer)
        shapes, values = ctx.attrs["shape_list"], ctx.attrs["value_list"]
        given = f"{len(shapes)} shapes and {len(values)} values for shape {found.shape}"
        ctx.check(len(shapes) == len(values) == found.size, given, f"{found.size} of each")
        ctx.check(
            all(n >= 0 for shape in shapes for n in shape), f"shapes {shapes}", "sizes from 0"
        )
        dtype = as_dtype(ctx.attrs["data_type"])
        ctx.check(not dtype.is_object, f"data_type {dtype}", "a type of numbers")
        if np.issubdtype(dtype.numpy, np.integer):
            low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
            fits = all(low <= value <= high for value in values)
            ctx.check(fits, f"values {values} of type {dtype}", f"{low} to {high}")
        return (found,)


class TensorBufferToListOfTensors(OpDef):
    """Return the instances separately, as tensors of one shape or with a maximum size."""

    schema = "tensor_buffer_to_list_of_tensors(in) -> out*"
    attrs = {"out_shape": REQUIRED, "out_dtype": REQUIRED, "dynamic_out": False}
    host = True

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        x = require_dtype(ctx, 0, tensor_buffer, "convert with flow.tensor_to_tensor_buffer")
        ctx.check(x.size, f"an input of shape {x.shape}", "one instance or more")
        one = tensor_type(tuple(ctx.attrs["out_shape"]), as_dtype(ctx.attrs["out_dtype"]))
        ctx.check(not one.dtype.is_object, f"out_dtype {one.dtype}", "a type of numbers")
        return (ragged(1) if ctx.attrs["dynamic_out"] else one,) * x.size


OPS = specs(
    TensorToTensorBuffer, TensorBufferToTensor, TensorListToTensorBuffer, TensorBufferToTensorList,
    TensorListSplit, GenTensorBuffer, TensorBufferToListOfTensors,
)  # fmt: skip
