"""Batch normalisation outside of training becomes a product and a sum.

They are elementwise, and are gathered with what follows into one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flow_core.ir import Graph, Op
from flow_cuda.settled_norms import NewOps, channel_axis, numbers, settled, with_new


@dataclass(frozen=True)
class PlainNorms:
    """The pass; norms that could be folded are no longer there.

    Attributes:
        device: the device type whose ops it replaces.
    """

    device: str = "gpu"
    name: str = "cuda_plain_norms"

    def apply(self, graph: Graph, context: Any) -> Graph:
        """The graph with elementwise ops in place of such norms."""
        found = settled(graph, context.specs, self.device)
        return with_new(graph, {norm.name: _spread(graph, norm) for norm in found}, set())


def _spread(graph: Graph, norm: Op) -> NewOps:
    """A product and a sum, in the type of sums."""
    ops, x = NewOps(graph, norm), graph.type_of(norm.inputs[0])
    axis = channel_axis(graph, norm)
    wide = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
    scale, shift = (ops.shaped(v, *wide) for v in numbers(ops))
    value = ops.cast(norm.inputs[0], x.dtype.accumulate)
    value = ops.add("broadcast_mul", value, scale)
    if ops.type_of(value).dtype is x.dtype:
        ops.finish("broadcast_add", value, shift)
    else:
        ops.finish("cast", ops.add("broadcast_add", value, shift), dtype=x.dtype.name)
    return ops
