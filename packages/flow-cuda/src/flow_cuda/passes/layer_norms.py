"""Replace layer normalization by an op of cuDNN if no op reads its statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flow_core.authoring.pass_api import PassContext, Rewriter, like_op
from flow_core.authoring.specs import KernelQuery, Op
from flow_cuda.cudnn.pass_base import CudnnPass, planned
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.kernels.dnn import layer_norm_problem, takes_layer_norm
from flow_cuda.passes.convolutions import first_device


@dataclass(frozen=True)
class LayerNorms(CudnnPass):
    """The pass that replaces layer norms by ops of cuDNN."""

    name: str = "cudnn_layer_norms"

    def find(self, rewriter: Rewriter) -> list[Op]:
        """Return the layer norms with scale and shift whose statistics no op reads."""
        return [
            op
            for op in self.of(rewriter.graph, "layer_norm")
            if len(op.inputs) == 3 and not any(rewriter.is_used(op.output(i)) for i in (1, 2))
        ]

    def rewrite(
        self, rewriter: Rewriter, found: Sequence[Op], plans: DnnPlans, context: PassContext
    ) -> None:
        """Replace layer norms by ops of cuDNN."""
        graph, allowed = rewriter.graph, self.search(tf32=True)  # no TF32 here
        for op in found:
            made = graph.types[op.name][:1]
            begin = op.attrs["begin_norm_axis"] % len(made[0].shape)
            attrs = {"begin": begin, "epsilon": op.attrs["epsilon"]}
            new = like_op(op, "cudnn_layer_norm", attrs, op.inputs)
            query = KernelQuery(new.type, new.attrs, graph.input_types(op), made)
            fits = takes_layer_norm(query)
            choice = plans.choose(layer_norm_problem(query), allowed) if fits else None
            if choice is not None:
                rewriter.replace(op, planned(new, choice), made)


def configured() -> LayerNorms:
    """Return the pass, which takes plans from the first device."""
    return LayerNorms(first_device)
