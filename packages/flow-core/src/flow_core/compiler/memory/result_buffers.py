"""Results of a job that later steps must not change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flow_core.compiler.memory.aliases import alias_roots, overwritten
from flow_core.compiler.memory.replica_dedup import ReplicaDedup
from flow_core.ir.graph import Graph, Op, Value
from flow_core.plugins.specs import OpSpec


def protected(graph: Graph, specs: Mapping[str, OpSpec], sharing: ReplicaDedup) -> Graph:
    """Copy the results that are views of variables which a step changes.

    Args:
        graph: the physical graph.
        specs: the op specs.
        sharing: the replicas that its devices share.
    """
    roots = alias_roots(graph, specs, sharing)
    changed = {v for op in graph.ops.values() for v in overwritten(op, specs, roots)}
    copies = {v for v in graph.results if roots.get(v, v) in changed}
    return _with_copies(graph, copies) if copies else graph


def _with_copies(graph: Graph, copies: set[Value]) -> Graph:
    ops, types, same = dict(graph.ops), dict(graph.types), {}
    for value in sorted(copies):
        source = graph.ops[value.op]
        name = f"{value.op}/copy_{value.index}"
        ops[name] = Op(name, "copy", (value,), type(source.attrs)(), source.placement)
        types[name] = (graph.type_of(value),)
        same[value] = Value(name, 0)
    results = tuple(same.get(v, v) for v in graph.results)
    return replace(graph, ops=ops, types=types, results=results)
