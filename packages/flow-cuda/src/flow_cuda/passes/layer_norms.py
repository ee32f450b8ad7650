"""Layer normalisation outside of training, where nobody reads its statistics, becomes cuDNN's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.ir.graph import Graph, Op, rebuild
from flow_core.plugins.specs import KernelQuery
from flow_cuda.cudnn.pass_base import CudnnPass, new_op, planned, search
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.kernels.dnn import layer_norm_problem, takes_layer_norm
from flow_cuda.passes.convolutions import first_device


@dataclass(frozen=True)
class LayerNorms(CudnnPass):
    """The pass."""

    name: str = "cudnn_layer_norms"

    def find(self, graph: Graph) -> list[Op]:
        """Those with factor and summand whose statistics nobody reads."""
        found = self.of(graph, "layer_norm")
        read = {*graph.consumers(), *graph.results} if found else set()
        return [op for op in found if len(op.inputs) == 3 and not read & {*map(op.output, (1, 2))}]

    def rewritten(
        self, graph: Graph, found: Sequence[Op], plans: DnnPlans, options: Mapping[str, Any]
    ) -> Graph:
        """The graph with ops of cuDNN."""
        types, put = dict(graph.types), dict(graph.ops)
        for op in found:
            begin = op.attrs["begin_norm_axis"] % len(types[op.name][0].shape)
            epsilon = op.attrs["epsilon"]
            new = new_op(op, "cudnn_layer_norm", op.inputs, begin=begin, epsilon=epsilon)
            made = types[op.name][:1]
            query = KernelQuery(new.type, new.attrs, tuple(map(graph.type_of, op.inputs)), made)
            allowed = search(options, tf32=True)  # nothing is multiplied by it
            fits = takes_layer_norm(query)
            choice = plans.choose(layer_norm_problem(query), allowed) if fits else None
            if choice is not None:
                put[op.name], types[op.name] = planned(new, choice), made
        return rebuild(graph, put.values(), types=types)


def configured() -> LayerNorms:
    """The pass on machines with devices; it asks the first one."""
    return LayerNorms(first_device)
