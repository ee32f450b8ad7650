"""Merges ops that compute the same thing."""

from __future__ import annotations

from dataclasses import dataclass

from flow_core.ir.graph import Graph, Op, Value
from flow_core.passes.base import PassContext
from flow_core.passes.rewrite import redirect, substitute


@dataclass(frozen=True)
class CommonSubexpressions:
    """Keeps the first of several equal ops (type, inputs, attributes, placement, SBP)."""

    name: str = "common_subexpressions"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """The graph with equal ops merged."""
        seen: dict[object, Op] = {}
        same: dict[Value, Value] = {}
        dropped: set[str] = set()
        for original in graph.ops.values():
            spec = context.specs[original.type]
            if spec.effect or spec.random or spec.mutates or original.type in _UNIQUE:
                continue
            op = redirect(original, same, dropped)
            key = (op.type, op.inputs, op.attrs, op.placement, op.sbp, op.control)
            first = seen.setdefault(key, op)
            if first is not op:
                dropped.add(op.name)
                for i in range(len(graph.types[op.name])):
                    same[Value(op.name, i)] = Value(first.name, i)
        return substitute(graph, same, dropped) if dropped else graph


_UNIQUE = ("input", "variable")
