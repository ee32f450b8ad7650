"""Batch normalisation in training takes its sums from the convolution before it.

Where cuDNN has a plan for a convolution with the sums of its result and of its squares, the norm
reads that result once instead of twice: what is left of it is two numbers per channel, a product
and a sum, which are gathered with what follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.base.dtypes import float32
from flow_core.ir.graph import Graph, Op, Value, tensor_type
from flow_core.plugins.specs import KernelQuery
from flow_cuda.cudnn.inference_norm import NewOps, affine, channel_axis, with_new
from flow_cuda.cudnn.pass_base import CudnnPass, new_op, planned, search
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.device.config import allows_tf32, sums_in_convolutions
from flow_cuda.kernels.dnn import conv_problem, takes_norm, takes_sums
from flow_cuda.passes.convolutions import REWRITES, SHARED, first_device
from flow_cuda.passes.fold_norms import CONVOLUTIONS, channel_of

Pair = tuple[Op, Op]
"""A convolution, and the norm that reads it."""


@dataclass(frozen=True)
class ConvSums(CudnnPass):
    """The pass.

    Attributes:
        wanted: whether it does anything.
    """

    wanted: bool = False
    name: str = "cudnn_conv_sums"

    def find(self, graph: Graph) -> list[Pair]:
        """Convolutions whose results only a norm in training and its gradient read."""
        norms = self.of(graph, "normalization") if self.wanted else []
        readers = graph.consumers() if norms else {}
        return [(graph.ops[op.inputs[0].op], op) for op in norms if _sums(graph, readers, op)]

    def rewritten(
        self, graph: Graph, found: Sequence[Pair], plans: DnnPlans, options: Mapping[str, Any]
    ) -> Graph:
        """The graph with sums from convolutions."""
        put: dict[str, NewOps] = {}
        same: dict[Value, Value] = {}
        allowed = search(options, tf32=allows_tf32(options.get("kernels", {})))
        for conv, norm in found:
            query = _query(graph, conv)
            choice = plans.choose(conv_problem(query), allowed) if takes_sums(query) else None
            if choice is not None:
                op = planned(new_op(conv, query.op, conv.inputs, **query.attrs), choice)
                put[conv.name] = NewOps(graph, conv, [op], {conv.name: query.outputs})
                put[norm.name] = ops = NewOps(graph, norm, types={conv.name: query.outputs})
                same |= dict(zip((norm.output(1), norm.output(2)), _normalised(ops), strict=True))
        return with_new(graph, put, set(), same)


def _sums(graph: Graph, readers: Mapping[Value, Sequence[Op]], norm: Op) -> bool:
    """Whether a norm may have its sums from a convolution."""
    conv = graph.ops[norm.inputs[0].op]
    if not norm.attrs["training"] or conv.type not in CONVOLUTIONS or conv.type not in REWRITES:
        return False
    types = {op.type for op in readers[conv.output()]}
    alone = types <= {"normalization", "normalization_grad"}
    moving = {op.name for v in norm.inputs[1:3] for op in readers[v]}
    query = KernelQuery(norm.type, norm.attrs, _types(graph, norm), graph.types[norm.name])
    last = conv.attrs["data_format"] == "channels_last"
    fits = last and channel_axis(graph, norm) == channel_of(graph, conv)
    one = [op.name for op in readers[conv.output()] if op.type == norm.type] == [norm.name]
    plain = conv.output() not in graph.results and norm.placement == conv.placement
    return alone and one and moving == {norm.name} and fits and plain and takes_norm(query)


def _types(graph: Graph, op: Op) -> tuple[Any, ...]:
    return tuple(map(graph.type_of, op.inputs))


def _query(graph: Graph, conv: Op) -> KernelQuery:
    """The op that takes the convolution's place."""
    attrs = {name: conv.attrs[name] for name in SHARED} | {
        "padding_after": conv.attrs["padding_after"] or conv.attrs["padding_before"],
        "activation": "",
        "compute": "float32",
    }
    y = graph.type_of(conv.output())
    row = tensor_type((graph.type_of(conv.inputs[1]).shape[0],), float32)
    return KernelQuery("cudnn_conv_sums", attrs, _types(graph, conv), (y, row, row))


def _normalised(ops: NewOps) -> tuple[Value, Value]:
    """The norm by sums; gives what stands for its statistics.

    Half types cannot hold numbers for which the difference of sums in float32 would be all error;
    it is kept from being negative.
    """
    norm, x = ops.at, ops.at.inputs[0]
    _, moving_mean, moving_variance, gamma, beta = norm.inputs
    type_ = ops.type_of(x)
    count = type_.size // ops.type_of(Value(x.op, 1)).size
    mean = ops.add("scalar_mul", Value(x.op, 1), operand=1 / count)
    squares = ops.add("scalar_mul", Value(x.op, 2), operand=1 / count)
    spread = ops.add("broadcast_sub", squares, ops.add("broadcast_mul", mean, mean))
    variance = ops.add("relu", spread)
    shifted = ops.add("scalar_add", variance, operand=norm.attrs["epsilon"])
    inverse = ops.add("rsqrt", shifted)
    scale = ops.add("broadcast_mul", inverse, gamma)
    shift = ops.add("broadcast_sub", beta, ops.add("broadcast_mul", scale, mean))
    fresh = (mean, 1.0), (variance, count / max(count - 1, 1))
    for moving, (value, factor) in zip((moving_mean, moving_variance), fresh, strict=True):
        _move(ops, moving, value, factor)
    affine(ops, scale, shift)
    return mean, inverse


def _move(ops: NewOps, moving: Value, value: Value, factor: float) -> None:
    """A statistic takes up what the batch has."""
    momentum = ops.at.attrs["momentum"]
    kept = ops.add("scalar_mul", moving, operand=momentum)
    taken = ops.add("scalar_mul", value, operand=(1 - momentum) * factor)
    ops.effect("assign", moving, ops.add("broadcast_add", kept, taken))


def configured() -> ConvSums:
    """The pass on machines with devices; it asks the first one."""
    return ConvSums(first_device, wanted=sums_in_convolutions())
