"""Drops ops that no result and no effect depends on."""

from __future__ import annotations

from dataclasses import dataclass

from flow_core.ir.graph import Graph, rebuild
from flow_core.passes.base import PassContext


@dataclass(frozen=True)
class DeadCode:
    """Keeps what results, effects and fed placeholders need."""

    name: str = "dead_code"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """The graph without dead ops."""
        live = {v.op for v in graph.results} | set(graph.effects)
        for op in reversed(list(graph.ops.values())):
            if op.name in live:
                live.update(v.op for v in op.inputs)
                live.update(op.control)
        kept = [op for op in graph.ops.values() if op.name in live or op.type == "input"]
        return graph if len(kept) == len(graph.ops) else rebuild(graph, kept)
