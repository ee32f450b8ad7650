"""Inference and SBP rules that the ops share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flow_core.authoring.specs import (
    AttrValue,
    InferContext,
    LocalContext,
    S,
    SbpContext,
    Signature,
    Signatures,
    TensorType,
    tensor_type,
)
from flow_core.base.dtypes import DType, record, tensor_buffer


def rows(ctx: SbpContext) -> Signatures:
    """Axis 0 counts samples, which do not know of each other."""
    return (Signature((S(0),) * len(ctx.inputs), (S(0),) * len(ctx.outputs)),)


def own_region(ctx: LocalContext) -> Mapping[str, AttrValue]:
    """Which samples of the logical batch a device's op makes, where it asks for that."""
    return {"region": ctx.outputs[0].region} if "region" in ctx.attrs else {}


def need(ctx: InferContext, index: int, dtype: DType, hint: str | None = None) -> TensorType:
    """The type of an input, which must have an element type."""
    found = ctx.inputs[index]
    ctx.check(found.dtype is dtype, f"input {index} of type {found}", f"{dtype}", hint)
    return found


def buffers(ctx: InferContext, index: int = 0) -> TensorType:
    """The type of an input of ragged instances along one axis."""
    hint = "flow.tensor_to_tensor_buffer or flow.tensor_list_to_tensor_buffer makes it"
    found = need(ctx, index, tensor_buffer, hint)
    ctx.check(len(found.shape) == 1, f"shape {found.shape}", "one axis, which counts instances")
    return found


def records(ctx: InferContext) -> int:
    """The number of records of the first input."""
    found = need(ctx, 0, record, "flow.data.ofrecord_reader makes records")
    ctx.check(len(found.shape) == 1, f"shape {found.shape}", "one axis, which counts records")
    return found.shape[0]


def same_count(ctx: InferContext) -> int:
    """The size of axis 0, which all inputs have in common."""
    counts = [t.shape[0] if t.shape else 0 for t in ctx.inputs]
    same = len(set(counts)) == 1
    ctx.check(same, ", ".join(map(str, ctx.inputs)), "as many rows in all inputs")
    return counts[0]


def ragged(count: int) -> TensorType:
    """The type of some instances."""
    return tensor_type((count,), tensor_buffer)


def dense(count: int, shape: Sequence[int], dtype: DType) -> TensorType:
    """The type of a batch of equal tensors."""
    return tensor_type((count, *shape), dtype)
