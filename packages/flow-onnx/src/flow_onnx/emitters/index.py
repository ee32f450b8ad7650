"""Emitters of gather, scatter and one-hot ops.

In a job, an index out of range reads zeros and writes nothing. In ONNX, such an index is an error,
and negative indices count from the end.
"""

from __future__ import annotations

from collections.abc import Mapping

from flow_core.authoring.specs import TensorType
from flow_onnx.emission import Emission
from flow_onnx.emitters.common import Emit
from flow_onnx.emitters.shape import unsqueeze


def _wide_index(e: Emission, position: int) -> str:
    """Cast an index to int64."""
    name, kind = e.inputs[position], e.types[position]
    return name if kind.dtype.name == "int64" else e.cast(name, "int64")


def _whole(e: Emission) -> None:
    """Raise `UnsupportedOp` if the table is only a device's part of a logical table."""
    if e.op.attrs.get("first"):
        e.unsupported("a device's part of a table")


def _gather(e: Emission) -> str:
    _whole(e)
    return e.node("Gather", e.x, _wide_index(e, 1), axis=e.attr("axis"))


def _batch_gather(e: Emission) -> str:
    _whole(e)
    lead = len(e.types[1].shape) - 1
    if not lead:
        return e.node("Gather", e.x, _wide_index(e, 1), axis=0)
    e.require_opset(12, "a gather with batch axes")
    rows = unsqueeze(e, _wide_index(e, 1), [lead + 1])
    return e.node("GatherND", e.x, rows, batch_dims=lead)


def _gather_nd(e: Emission) -> str:
    _whole(e)
    return e.node("GatherND", e.x, _wide_index(e, 1))


def _dim_gather(e: Emission) -> str:
    _whole(e)
    return e.node("GatherElements", e.x, _wide_index(e, 1), axis=e.attr("dim"))


def _zeros(e: Emission, kind: TensorType) -> str:
    """Emit zeros with the shape and element type of the output."""
    return e.node("Expand", e.const(0, kind.dtype), e.ints(e.outputs[0].shape))


def _added(e: Emission, table: str, index: str, updates: str) -> str:
    """Emit the sum of a table and updates; updates of the same position are added up."""
    e.require_opset(16, "a sum of what goes to the same position")
    return e.node("ScatterND", table, index, updates, reduction="add")


def _scatter_nd(e: Emission) -> str:
    _whole(e)
    return _added(e, _zeros(e, e.types[1]), _wide_index(e, 0), e.inputs[1])


def _scatter_nd_like(e: Emission) -> str:
    _whole(e)
    return _added(e, _zeros(e, e.types[2]), _wide_index(e, 1), e.inputs[2])


def _scatter_add(e: Emission) -> str:
    _whole(e)
    return _added(e, e.x, _wide_index(e, 2), e.inputs[1])


def _scatter_update(e: Emission) -> str:
    _whole(e)
    return e.node("ScatterND", e.x, _wide_index(e, 2), e.inputs[1])


def _dim_scatter_add(e: Emission) -> str:
    _whole(e)
    e.require_opset(16, "a sum of what goes to the same position")
    zeros, index = _zeros(e, e.types[1]), _wide_index(e, 2)
    attrs = {"axis": e.attr("dim"), "reduction": "add"}
    return e.node("ScatterElements", zeros, index, e.inputs[1], **attrs)


def _segment_sum(e: Emission) -> str:
    _whole(e)
    if e.attr("axis"):
        e.unsupported("a sum of segments behind the first axis")
    rows = unsqueeze(e, _wide_index(e, 1), [len(e.types[1].shape)])
    return _added(e, _zeros(e, e.types[0]), rows, e.x)


def _one_hot(e: Emission) -> str:
    _whole(e)
    dtype = e.outputs[0].dtype
    kind, plain = ("floating", "float32") if dtype.is_floating else ("integer", "int64")
    values = e.const([e.attr(f"{kind}_off_value"), e.attr(f"{kind}_on_value")], plain)
    hot = e.node("OneHot", _wide_index(e, 0), e.const(e.attr("depth"), "int64"), values, axis=-1)
    return hot if dtype.name == plain else e.cast(hot, dtype)


EMITTERS: Mapping[str, Emit] = {
    "gather": _gather,
    "batch_gather": _batch_gather,
    "gather_nd": _gather_nd,
    "dim_gather": _dim_gather,
    "scatter_nd": _scatter_nd,
    "scatter_nd_like": _scatter_nd_like,
    "tensor_scatter_nd_add": _scatter_add,
    "tensor_scatter_nd_update": _scatter_update,
    "dim_scatter_add_like": _dim_scatter_add,
    "unsorted_segment_sum": _segment_sum,
    "one_hot": _one_hot,
}
