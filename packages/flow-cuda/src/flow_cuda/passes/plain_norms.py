"""Batch normalisation outside of training becomes a product and a sum.

They are elementwise, and are gathered with what follows into one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flow_core.ir.graph import Graph, Op
from flow_cuda.cudnn.inference_norm import NewOps, affine, numbers, settled, with_new


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
    ops = NewOps(graph, norm)
    affine(ops, *numbers(ops))
    return ops
