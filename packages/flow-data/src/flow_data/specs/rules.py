"""Checks of shape inference, SBP rules and defaults that several op specs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flow_core.authoring.op_rules import OpDef
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


def split_rows(ctx: SbpContext) -> Signatures:
    """Return the signature that splits axis 0, the sample axis, of all inputs and outputs."""
    return (Signature((S(0),) * len(ctx.inputs), (S(0),) * len(ctx.outputs)),)


def local_region(ctx: LocalContext) -> Mapping[str, AttrValue]:
    """Return a device's region of the logical batch if the op has the attribute ``region``."""
    return {"region": ctx.outputs[0].region} if "region" in ctx.attrs else {}


class RowOp(OpDef):
    """A host op that processes the rows of a batch independently."""

    host = True
    sbp = staticmethod(split_rows)
    localize = staticmethod(local_region)


def require_dtype(
    ctx: InferContext, index: int, dtype: DType, hint: str | None = None
) -> TensorType:
    """Return the type of an input; raise an error unless its element type is ``dtype``."""
    found = ctx.inputs[index]
    ctx.check(found.dtype is dtype, f"input {index} of type {found}", f"{dtype}", hint)
    return found


def require_buffers(ctx: InferContext, index: int = 0) -> TensorType:
    """Return the type of an input; raise an error unless it is a TensorBuffer with one axis."""
    hint = "convert with flow.tensor_to_tensor_buffer or flow.tensor_list_to_tensor_buffer"
    found = require_dtype(ctx, index, tensor_buffer, hint)
    ctx.check(len(found.shape) == 1, f"shape {found.shape}", "one axis, which counts instances")
    return found


def require_records(ctx: InferContext) -> int:
    """Return the size of the first input; raise an error unless it is a list of records."""
    found = require_dtype(ctx, 0, record, "flow.data.ofrecord_reader returns records")
    ctx.check(len(found.shape) == 1, f"shape {found.shape}", "one axis, which counts records")
    return found.shape[0]


def require_equal_counts(ctx: InferContext) -> int:
    """Return the size of axis 0; raise an error unless it is equal for all inputs."""
    counts = [t.shape[0] if t.shape else 0 for t in ctx.inputs]
    same = len(set(counts)) == 1
    ctx.check(same, ", ".join(map(str, ctx.inputs)), "the same number of rows in all inputs")
    return counts[0]


def ragged(count: int) -> TensorType:
    """Return the type of a TensorBuffer with ``count`` elements."""
    return tensor_type((count,), tensor_buffer)


def dense(count: int, shape: Sequence[int], dtype: DType) -> TensorType:
    """Return the type of a batch of tensors of one shape."""
    return tensor_type((count, *shape), dtype)
