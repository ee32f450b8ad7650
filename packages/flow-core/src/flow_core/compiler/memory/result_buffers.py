"""Copies of results that later steps would overwrite."""

from __future__ import annotations

from collections.abc import Mapping

from flow_core.compiler.memory.aliases import alias_roots, overwritten
from flow_core.compiler.memory.replica_dedup import ReplicaDedup
from flow_core.ir.graph import NO_ATTRS, Graph, Op, Value
from flow_core.passes.rewriting.rewriter import Rewriter
from flow_core.plugins.specs import OpSpec


def protected(graph: Graph, specs: Mapping[str, OpSpec], sharing: ReplicaDedup) -> Graph:
    """Return the graph with copies of results that are views of variables that a step changes."""
    roots = alias_roots(graph, specs, sharing)
    changed = {v for op in graph.ops.values() for v in overwritten(op, specs, roots)}
    copies = {v for v in graph.results if roots.get(v, v) in changed}
    return _with_copies(graph, copies) if copies else graph


def _with_copies(graph: Graph, values: set[Value]) -> Graph:
    rewriter, copies = Rewriter(graph).at_end(), dict[Value, Value]()
    for value in sorted(values):
        source = graph.ops[value.op]
        copy = Op(f"{value.op}/copy_{value.index}", "copy", (value,), NO_ATTRS, source.placement)
        copies[value] = rewriter.add(copy, (graph.type_of(value),)).output()
    rewriter.results = tuple([copies.get(v, v) for v in graph.results])
    return rewriter.finish()
