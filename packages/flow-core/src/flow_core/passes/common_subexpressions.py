"""Common-subexpression elimination."""

from __future__ import annotations

from dataclasses import dataclass

from flow_core.ir.graph import Graph, Op, Value
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.rewriter import Rewriter


@dataclass(frozen=True)
class CommonSubexpressions:
    """A pass that keeps only the first of several equal ops.

    Ops are equal if their types, inputs, attributes, placements, SBPs and control inputs are.
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
            op = rewriter.resolved(original)
            key = (op.type, op.inputs, op.attrs, op.placement, op.sbp, op.control)
            first = seen.setdefault(key, op)
            if first is not op:
                rewriter.drop(op)
                for i in range(len(graph.types[op.name])):
                    rewriter.replace_value(Value(op.name, i), Value(first.name, i))
        return rewriter.finish()


_UNIQUE = ("input", "variable")
