"""Op specs of conversions between tensors, TensorBuffer and TensorList."""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.authoring.specs import (
    REQUIRED,
    InferContext,
    OpSpec,
    S,
    SbpContext,
    Signature,
    Signatures,
    TensorType,
    tensor_type,
)
from flow_core.base.dtypes import as_dtype, tensor_buffer
from flow_data.specs.rules import ragged, require_buffers, require_dtype, row_op


def _to_buffer(ctx: InferContext) -> tuple[TensorType, ...]:
    x, dims = ctx.inputs[0], ctx.attrs["instance_dims"]
    ctx.check(not x.dtype.is_object, f"input of type {x}", "a tensor of numbers")
    ctx.check(
        0 < dims < len(x.shape),
        f"instance_dims {dims} for shape {x.shape}",
        f"1 to {len(x.shape) - 1}",
    )
    return (tensor_type(x.shape[:-dims], tensor_buffer),)


def _to_buffer_sbp(ctx: SbpContext) -> Signatures:
    axes = range(len(ctx.outputs[0].shape))
    return tuple(Signature((S(i),), (S(i),)) for i in axes)


def _to_tensor(ctx: InferContext) -> tuple[TensorType, ...]:
    x = require_dtype(ctx, 0, tensor_buffer, "convert with flow.tensor_to_tensor_buffer")
    shape = tuple(ctx.attrs["instance_shape"])
    ctx.check(all(n > 0 for n in shape), f"instance_shape {shape}", "positive sizes")
    return (tensor_type((*x.shape, *shape), as_dtype(ctx.attrs["dtype"])),)


def _to_tensor_sbp(ctx: SbpContext) -> Signatures:
    axes = range(len(ctx.inputs[0].shape))
    return tuple(Signature((S(i),), (S(i),)) for i in axes)


def _to_tensor_gradient(g: Any) -> tuple[Any]:
    return (g.one("tensor_to_tensor_buffer", g.dy, instance_dims=len(g.attrs["instance_shape"])),)


def _to_buffer_gradient(g: Any) -> tuple[Any]:
    shape = g.x.shape[len(g.dy.shape) :]
    dtype = g.x.dtype.name
    return (g.one("tensor_buffer_to_tensor", g.dy, dtype=dtype, instance_shape=shape),)


def _same(ctx: InferContext) -> tuple[TensorType, ...]:
    return (require_buffers(ctx),)


def _to_list(ctx: InferContext) -> tuple[TensorType, ...]:
    found = require_buffers(ctx)
    as_dtype(ctx.attrs["dtype"])
    shape = tuple(ctx.attrs["shape"])
    ctx.check(all(n > 0 for n in shape), f"shape {shape}", "positive sizes")
    return (found,)


def _split(ctx: InferContext) -> tuple[TensorType, ...]:
    return (ragged(1),) * require_buffers(ctx).shape[0]


def _generated(ctx: InferContext) -> tuple[TensorType, ...]:
    found = tensor_type(tuple(ctx.attrs["shape"]), tensor_buffer)
    shapes, values = ctx.attrs["shape_list"], ctx.attrs["value_list"]
    given = f"{len(shapes)} shapes and {len(values)} values for shape {found.shape}"
    ctx.check(len(shapes) == len(values) == found.size, given, f"{found.size} of each")
    ctx.check(all(n >= 0 for shape in shapes for n in shape), f"shapes {shapes}", "sizes from 0")
    dtype = as_dtype(ctx.attrs["data_type"])
    ctx.check(not dtype.is_object, f"data_type {dtype}", "a type of numbers")
    if np.issubdtype(dtype.numpy, np.integer):
        low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
        fits = all(low <= value <= high for value in values)
        ctx.check(fits, f"values {values} of type {dtype}", f"{low} to {high}")
    return (found,)


def _tensors(ctx: InferContext) -> tuple[TensorType, ...]:
    x = require_dtype(ctx, 0, tensor_buffer, "convert with flow.tensor_to_tensor_buffer")
    ctx.check(x.size, f"an input of shape {x.shape}", "one instance or more")
    one = tensor_type(tuple(ctx.attrs["out_shape"]), as_dtype(ctx.attrs["out_dtype"]))
    ctx.check(not one.dtype.is_object, f"out_dtype {one.dtype}", "a type of numbers")
    return (ragged(1) if ctx.attrs["dynamic_out"] else one,) * x.size


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="tensor_to_tensor_buffer",
        inputs=("in",),
        infer=_to_buffer,
        attrs={"instance_dims": REQUIRED},
        sbp=_to_buffer_sbp,
        gradient=_to_buffer_gradient,
        host=True,
        doc="Convert the last axes of a tensor to instances.",
    ),
    OpSpec(
        type="tensor_buffer_to_tensor",
        inputs=("in",),
        infer=_to_tensor,
        attrs={"dtype": REQUIRED, "instance_shape": REQUIRED},
        sbp=_to_tensor_sbp,
        gradient=_to_tensor_gradient,
        host=True,
        doc="Stack instances of one shape to a tensor.",
    ),
    row_op(
        type="tensor_list_to_tensor_buffer",
        inputs=("in",),
        infer=_same,
        gradient=lambda g: (g.dy,),
        alias=0,
        doc="Convert a TensorList to a TensorBuffer of the same objects.",
    ),
    row_op(
        type="tensor_buffer_to_tensor_list",
        inputs=("in",),
        infer=_to_list,
        attrs={"shape": REQUIRED, "dtype": REQUIRED},
        gradient=lambda g: (g.dy,),
        doc="Convert a TensorBuffer to a TensorList of a given rank and maximum size.",
    ),
    OpSpec(
        type="tensor_list_split",
        inputs=("in",),
        outputs=("out*",),
        infer=_split,
        host=True,
        doc="Return the tensors of a list separately.",
    ),
    OpSpec(
        type="gen_tensor_buffer",
        inputs=(),
        infer=_generated,
        attrs={
            "shape": REQUIRED,
            "shape_list": REQUIRED,
            "value_list": REQUIRED,
            "data_type": "float32",
        },
        host=True,
        doc="A TensorBuffer whose instances have the given shapes, each filled with one value.",
    ),
    OpSpec(
        type="tensor_buffer_to_list_of_tensors",
        inputs=("in",),
        outputs=("out*",),
        infer=_tensors,
        attrs={"out_shape": REQUIRED, "out_dtype": REQUIRED, "dynamic_out": False},
        host=True,
        doc="Return the instances separately, as tensors of one shape or with a maximum size.",
    ),
)
