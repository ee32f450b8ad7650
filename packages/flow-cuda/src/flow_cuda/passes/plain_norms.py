"""Replace batch normalization in inference by a multiplication and an addition.

Both ops are elementwise, so that they are fused with the ops that follow.
"""

from __future__ import annotations

from dataclasses import dataclass

from flow_core.authoring.inference_norms import NormParts, constant_norms
from flow_core.authoring.pass_api import PassContext, Rewriter
from flow_core.authoring.specs import Graph


@dataclass(frozen=True)
class PlainNorms:
    """The pass that replaces inference norms that could not be folded into convolutions."""

    device: str = "gpu"  # the device type whose ops are replaced
    name: str = "cuda_plain_norms"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with inference norms replaced by elementwise ops."""
        rewriter = Rewriter(graph)
        for norm in constant_norms(rewriter, context.specs, self.device):
            parts = NormParts.of(rewriter, context.specs, norm)
            parts.apply(*parts.scale_and_shift())
        return rewriter.finish()
