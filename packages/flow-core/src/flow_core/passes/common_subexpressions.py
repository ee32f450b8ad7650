"""Common-subexpression elimination."""

from __future__ import annotations

from dataclasses import dataclass

from flow_core.ir.graph import Graph, Op, Value
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.rewriter import Rewriter


@dataclass(frozen=True)
class CommonSubexpressions:
    """A pass that keeps only the first of several equal ops.

    Ops are equal if their types, inputs, attributes, placements, SBPs and control inputs are.  Ops
    that read a variable again are kept, because they free memory between the first ones and them.
    """

    name: str = "common_subexpressions"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with equal ops merged."""
        seen: dict[object, Op] = {}
        rewriter = Rewriter(graph)
        for original in graph.ops.values():
            spec = context.specs[original.type]
            if spec.effect or spec.random or spec.mutates or original.type in _UNIQUE:
                continue
            if graph.origin(original.name).recomputed and _reads_variables(graph, original):
                continue
            op = rewriter.resolved(original)
            key = (op.type, op.inputs, op.attrs, op.placement, op.sbp, op.control)
            first = seen.setdefault(key, op)
            if first is not op:
                rewriter.drop(op)
                for i in range(len(graph.types[op.name])):
                    rewriter.replace_value(Value(op.name, i), Value(first.name, i))
        return rewriter.finish()


_UNIQUE = ("input", "variable")


def _reads_variables(graph: Graph, op: Op) -> bool:
    return all(graph.ops[v.op].type == "variable" for v in op.inputs)
