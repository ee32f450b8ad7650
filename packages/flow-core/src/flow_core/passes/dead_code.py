"""Dead-code elimination."""

from __future__ import annotations

from dataclasses import dataclass

from flow_core.ir.graph import Graph
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.rewriter import Rewriter


@dataclass(frozen=True)
class DeadCode:
    """A pass that keeps only the job's inputs and the ops on which results and effects depend."""

    name: str = "dead_code"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph without dead ops."""
        live = {v.op for v in graph.results} | set(graph.effects)
        rewriter = Rewriter(graph)
        for op in reversed(list(graph.ops.values())):
            if op.name in live:
                live.update([v.op for v in op.inputs])
                live.update(op.control)
            elif op.type != "input":
                rewriter.drop(op)
        return rewriter.finish()
