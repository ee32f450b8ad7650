"""Means as sums times a factor, for device types without a kernel for means."""

from __future__ import annotations

from dataclasses import dataclass

from flow_core.base.missing_kernels import HOST
from flow_core.ir.graph import Graph, Op
from flow_core.ops.build import Emitter, Maker, Sym
from flow_core.ops.math.reduce import mean_count
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.decomposition import cast_to
from flow_core.passes.rewriting.rewriter import Rewriter, like_op

MEAN = "reduce_mean"


@dataclass(frozen=True, slots=True)
class PlainMeans:
    """A pass that replaces means of floating-point numbers whose device type has no kernel."""

    name: str = "plain_means"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph without such means; they sum in the accumulation type."""
        missing = [op for op in graph.of_type(MEAN) if _lacks_kernel(graph, context, op)]
        if not missing:
            return graph
        rewriter = Rewriter(graph)
        for op in missing:
            emitter = Emitter(rewriter.before(op), context.specs)
            maker = Maker(emitter, op.placement, op.name, graph.lines.get(op.name))
            x = Sym(maker, op.inputs[0])
            wide = cast_to(x, x.dtype.accumulate)
            axes = {"axis": op.attrs["axis"], "keepdims": op.attrs["keepdims"]}
            factor = 1.0 / max(1, mean_count(op.attrs, x.shape))
            mean = maker.one("reduce_sum", wide, **axes) * factor
            last = like_op(op, "cast", {"dtype": x.dtype.name}, [mean.value])
            rewriter.replace(op, last, graph.types[op.name])
        return rewriter.finish()


def _lacks_kernel(graph: Graph, context: PassContext, op: Op) -> bool:
    if op.placement.device_type == HOST:
        return False
    inputs, outputs = [graph.type_of(v) for v in op.inputs], graph.types[op.name]
    return inputs[0].dtype.is_floating and not context.has_kernel(op, inputs, outputs)
