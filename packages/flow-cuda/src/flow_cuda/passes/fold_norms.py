"""Batch normalisation outside of training goes into the convolution before it.

By moving statistics it is ``x * scale + shift`` with two numbers per channel.  The one is a factor
of the convolution's weights, the other a bias, which a plan of cuDNN's takes along with a sum and
relu.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flow_core.ir.graph import Graph, Op, Value
from flow_cuda.cudnn.inference_norm import (
    NewOps,
    changed_values,
    channel_axis,
    numbers,
    settled,
    with_new,
)
from flow_cuda.cudnn.pass_base import only_reader

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")


@dataclass(frozen=True)
class FoldNorms:
    """Folds into convolutions, where their weights are no larger than their results.

    Attributes:
        device: the device type whose ops it replaces.
    """

    device: str = "gpu"
    name: str = "cuda_fold_norms"

    def apply(self, graph: Graph, context: Any) -> Graph:
        """The graph with biases in place of such norms."""
        put: dict[str, NewOps] = {}
        gone: set[str] = set()
        readers, changed = graph.consumers(), changed_values(graph, context.specs)
        for norm in settled(graph, context.specs, self.device):
            conv, add = _before(graph, readers, norm)
            if conv is None or not _fits(graph, conv):
                continue
            bias = () if add is None else add.inputs[1:]
            if not changed & {conv.inputs[1], _wide_weight(graph, conv), *bias}:
                put[norm.name] = _folded(graph, norm, conv, add)
                gone |= {op.name for op in (conv, add) if op is not None}
        return with_new(graph, put, gone)


def _before(graph: Graph, readers: Mapping[Value, Any], norm: Op) -> tuple[Op | None, Op | None]:
    """The convolution that only this norm reads, and the sum with a bias between them."""
    add: Op | None = None
    made = graph.ops[norm.inputs[0].op]
    if made.type == "bias_add" and only_reader(graph, readers, made.output(), norm.type):
        add, made = made, graph.ops[made.inputs[0].op]
    reader = norm if add is None else add
    fits = made.type in CONVOLUTIONS and only_reader(graph, readers, made.output(), reader.type)
    channel = channel_of(graph, made) if fits else None
    if any(channel_axis(graph, op) != channel for op in (norm, add) if op is not None):
        return None, None
    alone = norm.placement == made.placement and not made.control
    return (made, add) if alone else (None, None)


def channel_of(graph: Graph, conv: Op) -> int:
    """The axis of a convolution's channels."""
    first = conv.attrs["data_format"] == "channels_first"
    return 1 if first else len(graph.type_of(conv.output()).shape) - 1


def _fits(graph: Graph, conv: Op) -> bool:
    """Whether it saves more than it costs: a cast of the weights takes the factor for nothing."""
    weight, made = graph.type_of(conv.inputs[1]), graph.type_of(conv.output())
    return graph.ops[conv.inputs[1].op].type == "cast" or weight.size <= made.size


def _wide_weight(graph: Graph, conv: Op) -> Value:
    """The weights as they were before a cast to a half type."""
    weight = conv.inputs[1]
    cast, wide = graph.ops[weight.op], graph.type_of(weight).dtype.accumulate
    fits = cast.type == "cast" and graph.type_of(cast.inputs[0]).dtype is wide
    return cast.inputs[0] if fits else weight


def _folded(graph: Graph, norm: Op, conv: Op, add: Op | None) -> NewOps:
    """The convolution with other weights, then the sum with a bias.

    Weights that were cast are multiplied before that.
    """
    ops, dtype = NewOps(graph, norm), graph.type_of(conv.output()).dtype
    scale, shift = numbers(ops, None if add is None else add.inputs[1])
    weight = ops.cast(_wide_weight(graph, conv), dtype.accumulate)
    filters, *rest = ops.type_of(weight).shape
    factor = ops.shaped(scale, filters, *(1 for _ in rest))
    weight = ops.cast(ops.add("broadcast_mul", weight, factor), dtype)
    made = ops.add(conv.type, conv.inputs[0], weight, to=graph.type_of(conv.output()), **conv.attrs)
    ops.finish("bias_add", made, ops.cast(shift, dtype), axis=norm.attrs["axis"])
    return ops
